"""A real `tritonserver` of the nvidia-pytriton wheel with small models of its Python backend; kept in $QWARM_CACHE between runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import zipfile
from pathlib import Path

import pytest

from pipeline.caches import cache_folder
from pipeline.digests import sha256_file

WHEEL = "nvidia-pytriton==0.7.0"
WHEEL_SHA256 = "21f063ff93bb426d0c06b7a55e7eb9efcfe62c0dddd9a908e9877e18710128df"
CONFIG = """backend: "python"
max_batch_size: 0
input [{{ name: "x" data_type: TYPE_FP32 dims: [ 2 ] }}]
output [{{ name: "y" data_type: TYPE_FP32 dims: [ 2 ] }}]
instance_group [{{ kind: KIND_CPU count: 1 }}]
"""
MODEL = """import time

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        time.sleep({load_s})
        {fault}

    def execute(self, requests):
        # by DLPack: the wheel's stub reads arrays as numpy 1 lays them out
        inputs = [np.from_dlpack(pb.get_input_tensor_by_name(request, "x")) for request in requests]
        return [pb.InferenceResponse([pb.Tensor.from_dlpack("y", ({factor} * array).astype(np.float32))]) for array in inputs]
"""


def distribution() -> Path:
    """The unpacked wheel; skips the test where it cannot be had."""
    place = cache_folder("tests") / "pytriton-0.7.0"
    if not (place / "pytriton").is_dir():
        wheels = place.parent / "wheels"
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(wheels), WHEEL]
        done = subprocess.run(command, capture_output=True, text=True)
        found = list(wheels.glob("nvidia_pytriton-0.7.0-*.whl"))
        if done.returncode or not found:
            pytest.skip(f"no tritonserver: pip download {WHEEL} failed: {done.stderr.strip()[-200:]}")
        if sha256_file(found[0]) != WHEEL_SHA256:
            pytest.skip("no tritonserver: the wheel is another file than the one that this test knows")
        staging = place.with_suffix(".tmp")
        shutil.rmtree(staging, ignore_errors=True)
        with zipfile.ZipFile(found[0]) as archive:
            archive.extractall(staging)
        staging.rename(place)
    return place


class TritonServer:
    """With `--model-control-mode=explicit`, on free ports."""

    def __init__(self, folder: Path) -> None:
        wheel = distribution()
        server = wheel / "pytriton" / "tritonserver"
        self.folder, self.models = folder, folder / "models"
        self.models.mkdir(parents=True)
        backends = Path(shutil.copytree(server / "backends", folder / "backends"))
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        stub = shutil.copy(server / "python_backend_stubs" / version / "triton_python_backend_stub", backends / "python")
        Path(stub).chmod(0o755)
        self.binary = folder / "tritonserver"
        shutil.copy(server / "bin" / "tritonserver", self.binary)
        self.binary.chmod(0o755)
        libraries = [str(wheel / "nvidia_pytriton.libs"), str(sysconfig.get_config_var("LIBDIR"))]
        self.environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries), "PYTHONPATH": sysconfig.get_paths()["purelib"]}
        self.http, self.grpc, self.metrics = free_ports(3)
        self.process: subprocess.Popen[bytes] | None = None
        self._stop = threading.Event()

    def add(self, name: str, *, factor: float, load_s: float = 0.2, fault: str = "") -> None:
        """A model that multiplies by `factor` and takes `load_s` to load."""
        (self.models / name / "1").mkdir(parents=True)
        (self.models / name / "config.pbtxt").write_text(CONFIG.format())
        (self.models / name / "1" / "model.py").write_text(MODEL.format(factor=factor, load_s=load_s, fault=fault))

    def start(self) -> None:
        """Run it from now on, again when it dies, as a supervisor would: on a busy machine this tritonserver now and then aborts by itself."""
        self._stop.clear()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)
        self._supervisor.start()

    def _supervise(self) -> None:
        command = [
            str(self.binary), f"--model-repository={self.models}", f"--backend-directory={self.folder / 'backends'}", "--model-control-mode=explicit",
            "--http-address=127.0.0.1", f"--http-port={self.http}", "--grpc-address=127.0.0.1", f"--grpc-port={self.grpc}",
            f"--metrics-port={self.metrics}", "--metrics-address=127.0.0.1", "--backend-config=python,stub-timeout-seconds=300",
        ]  # fmt: skip
        while not self._stop.wait(0.2):
            if self.process is None or self.process.poll() is not None:
                self._end()
                with open(self.folder / "log", "ab") as log:
                    self.process = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment, start_new_session=True)

    def _end(self) -> None:
        """The process with the stubs of its models."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def kill(self) -> None:
        """As if it crashed: it is started again."""
        assert self.process is not None
        self.process.kill()

    def stop(self) -> None:
        """For good."""
        self._stop.set()
        self._supervisor.join()
        self._end()

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-3000:]


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    import socket

    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [item.getsockname()[1] for item in sockets]
    for item in sockets:
        item.close()
    return ports
