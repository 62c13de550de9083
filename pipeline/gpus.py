"""What NVIDIA's driver says about the first GPU, asked through its own libraries: no CUDA toolkit, no library of Python, no context."""

from __future__ import annotations

import ctypes
import dataclasses
import functools

TEXT_BYTES = 256
MAJOR, MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of cuda.h."""


@dataclasses.dataclass(frozen=True)
class Gpu:
    """`compute_capability` such as "8.9"; `driver` such as "580.65.06"; `driver_cuda` is the newest CUDA that the driver serves, such as "13.0"."""

    name: str
    compute_capability: str
    memory_gib: int
    driver: str
    driver_cuda: str

    def machine_fields(self) -> dict[str, str]:
        """What a latency on this GPU depends on. Its UUID is none of it: equal GPUs would differ."""
        return {
            "gpu": self.name,
            "compute_capability": self.compute_capability,
            "gpu_memory_gib": str(self.memory_gib),
            "driver": self.driver,
            "driver_cuda": self.driver_cuda,
        }


@functools.cache
def first_gpu() -> Gpu | None:
    """The first GPU that CUDA sees, so that CUDA_VISIBLE_DEVICES counts; None without a driver or a device. Run only on stub libraries so far."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count, device, version, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) or not count.value or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return None
    name = ctypes.create_string_buffer(TEXT_BYTES)
    cuda.cuDeviceGetName(name, TEXT_BYTES, device)
    cuda.cuDriverGetVersion(ctypes.byref(version))
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    capability = []
    for attribute in (MAJOR, MINOR):
        value = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        capability.append(str(value.value))
    return Gpu(
        name=name.value.decode(errors="replace"),
        compute_capability=".".join(capability),
        memory_gib=round(memory.value / 2**30),
        driver=_driver(),
        driver_cuda=f"{version.value // 1000}.{version.value % 1000 // 10}",
    )


def _driver() -> str:
    """The driver's version by NVML, or "unknown"."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return "unknown"
    text = ctypes.create_string_buffer(TEXT_BYTES)
    if nvml.nvmlInit_v2():
        return "unknown"
    failed = nvml.nvmlSystemGetDriverVersion(text, TEXT_BYTES)
    nvml.nvmlShutdown()
    return "unknown" if failed else text.value.decode(errors="replace")
