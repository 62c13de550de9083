"""The questions to NVIDIA's driver, asked of stub libraries that a C compiler makes here: doubles for the driver of a GPU that is not there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CUDA = """
#include <string.h>
#include <stddef.h>
int cuInit(unsigned flags) { return INIT; }
int cuDeviceGetCount(int *count) { *count = COUNT; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = 7; return ordinal; }
int cuDeviceGetName(char *name, int length, int device) { strncpy(name, device == 7 ? "Stub L4" : "?", length); return 0; }
int cuDriverGetVersion(int *version) { *version = 13010; return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 24152899584UL; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute == 75 ? 8 : attribute == 76 ? 9 : -1; return 0; }
"""
NVML = """
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned length) { strncpy(text, "580.65.06", length); return 0; }
"""
ASK = "import dataclasses, json; from pipeline.gpus import first_gpu; g = first_gpu(); print(json.dumps(g and dataclasses.asdict(g)))"


def ask(folder: Path, *, init: int = 0, count: int = 1, nvml: bool = True) -> dict[str, object] | None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the stub libraries")
    for name, source in {"libcuda.so.1": CUDA, **({"libnvidia-ml.so.1": NVML} if nvml else {})}.items():
        defines = [f"-DINIT={init}", f"-DCOUNT={count}"]
        subprocess.run([compiler, "-shared", "-fPIC", *defines, "-o", str(folder / name), "-xc", "-"], input=source, text=True, check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(ROOT)}
    answer: dict[str, object] | None = json.loads(
        subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True).stdout
    )
    return answer


def test_the_driver_is_asked_for_all_that_keys_and_measurements_need(tmp_path: Path) -> None:
    assert ask(tmp_path) == {"name": "Stub L4", "compute_capability": "8.9", "memory_gib": 22, "driver": "580.65.06", "driver_cuda": "13.1"}


@pytest.mark.parametrize("answers", [{"init": 100}, {"count": 0}])
def test_a_driver_without_a_device_is_no_gpu(tmp_path: Path, answers: dict[str, int]) -> None:
    assert ask(tmp_path, **answers) is None


def test_without_nvml_the_driver_is_unknown(tmp_path: Path) -> None:
    found = ask(tmp_path, nvml=False)
    assert found is not None
    assert (found["name"], found["driver"]) == ("Stub L4", "unknown")
