"""The fingerprint of a machine: what invalidates an engine, what a measurement, and what nothing.

Standard library only: it runs on every `dvc repro` and on serving hosts.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from pipeline.digests import sha256_json
from pipeline.gpus import Gpu
from pipeline.records import Platform

INSTALLED = re.compile(r"(.+?)-(\d[^-]*)(?:-py[\d.]+)?\.(?:dist|egg)-info")
"""A distribution's folder: packaging.python.org/specifications/recording-installed-packages, and its forerunner."""
ISA_LEVELS = (
    ("amx", ("amx_int8", "amx_tile")),
    ("avx512-vnni", ("avx512_vnni", "avx512vl")),
    ("avx512", ("avx512f", "avx512vl", "avx512bw")),
    ("avx-vnni", ("avx_vnni",)),
    ("avx2", ("avx2",)),
)
"""Highest first, by the kernel's flag names: what oneDNN and MLAS dispatch on."""


def cpu_facts() -> dict[str, str]:
    """First processor of /proc/cpuinfo as a mapping (empty where there is none)."""
    facts: dict[str, str] = {}
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return facts
    for line in lines:
        if not line.strip():
            break
        name, _, value = line.partition(":")
        facts[name.strip()] = value.strip()
    return facts


def isa() -> str:
    """The highest instruction-set level that INT8 kernels dispatch on, or the machine architecture."""
    flags = set(cpu_facts().get("flags", "").split())
    for level, needed in ISA_LEVELS:
        if flags.issuperset(needed):
            return level
    return platform.machine()


def memory_gib() -> int:
    """Physical memory, rounded to GiB."""
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)


def usable_cores() -> int:
    """Processors this process may run on (respects affinity and therefore most container limits)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def physical_cores() -> int:
    """Cores this process may run on, two hardware threads of one core counted once."""
    if not hasattr(os, "sched_getaffinity"):
        return usable_cores()
    cores = set()
    for number in os.sched_getaffinity(0):
        try:
            cores.add(Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list").read_text(encoding="ascii").strip())
        except OSError:
            cores.add(str(number))
    return len(cores)


@functools.cache
def _installed() -> dict[str, str]:
    """Version of each distribution on the path, by its normalized name, from the names of its folders: those of `importlib.metadata`, whose import
    takes longer than all the rest of what a host imports of ours."""
    found: dict[str, str] = {}
    for folder in sys.path:
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder or "."):
                if match := INSTALLED.fullmatch(entry.name):
                    found.setdefault(_normalized(match[1]), match[2])
    return found


def _normalized(name: str) -> str:
    """As PEP 503 has it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def package_version(name: str) -> str:
    """Version of an installed distribution, or "absent"; looked up once a process."""
    return _installed().get(_normalized(name), "absent")


def version_numbers(text: str) -> tuple[int, ...]:
    """`580.65.06` as numbers, as far as they go: () for what is no version, which is older than any."""
    return tuple(int(part) for part in itertools.takewhile(str.isdecimal, text.split(".")))


LIBRARIES = ("openvino", "onnxruntime", "onnxruntime-gpu", "tensorrt", "tensorrt-rtx")
CUDA_LIBRARIES = {"cuda-runtime": "nvidia-cuda-runtime", "cudnn": "nvidia-cudnn"}
"""CUDA's parts by the distribution that holds each; its name ends in the CUDA major version, or in nothing."""


def cuda_library_version(name: str) -> str:
    """Version of the installed distribution of a part of CUDA, whichever CUDA it is for, or "absent"."""
    versions = [package_version(f"{CUDA_LIBRARIES[name]}{suffix}") for suffix in ("", "-cu13", "-cu12")]
    return next((version for version in versions if version != "absent"), "absent")


def library_versions() -> dict[str, str]:
    """Every runtime that is installed here: provenance, of which each backend puts into its key what its engines depend on."""
    versions = {name: package_version(name) for name in LIBRARIES} | {name: cuda_library_version(name) for name in CUDA_LIBRARIES}
    return {name: version for name, version in versions.items() if version != "absent"}


def machine_facts(gpu: Gpu | None = None) -> dict[str, str]:
    """What a latency depends on; of the GPU too, for what runs on it. Never a host name, boot id or serial number: equal machines would differ."""
    cpu = cpu_facts()
    return (gpu.machine_fields() if gpu else {}) | {
        "cpu_model": cpu.get("model name") or platform.processor() or platform.machine(),
        "cpu_family": f"{cpu.get('cpu family', '?')}/{cpu.get('model', '?')}/{cpu.get('stepping', '?')}",
        "cores": str(usable_cores()),
        "memory_gib": str(memory_gib()),
        "isa": isa(),
    }


def fingerprint(
    target: str, key_fields: Mapping[str, str], unavailable: str | None, unrunnable: str | None = None, gpu: Gpu | None = None
) -> Platform:
    """The `Platform` record of `target` on this machine; `key_fields` come from the target's backend. `gpu`: the one that the target runs on."""
    machine = machine_facts(gpu)
    return Platform(
        target=target,
        key=sha256_json(dict(key_fields)),
        key_fields=dict(key_fields),
        machine_id=sha256_json(machine),
        machine_fields=machine,
        provenance={
            "kernel": platform.release(),
            "libc": "-".join(platform.libc_ver()),
            "python": platform.python_version(),
            **library_versions(),
        },
        unavailable=unavailable,
        unrunnable=unrunnable,
    )


def difference(wanted: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """One line for each key field that differs: `openvino: built for 2026.4.1, here 2026.3.0`."""
    return [
        f"{name}: built for {wanted.get(name, 'nothing')}, here {found.get(name, 'nothing')}"
        for name in sorted(set(wanted) | set(found))
        if wanted.get(name) != found.get(name)
    ]
