"""What NVIDIA's driver says about the first GPU, asked through `libcuda` itself: no CUDA toolkit, no library of Python, no context."""

from __future__ import annotations

import ctypes
import dataclasses
import functools

NAME_BYTES = 256
MAJOR, MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of cuda.h."""


@dataclasses.dataclass(frozen=True)
class Gpu:
    """`compute_capability` such as "8.9"; `driver_cuda` is the newest CUDA version the driver can serve, such as "13.0"."""

    name: str
    compute_capability: str
    driver_cuda: str


@functools.cache
def first_gpu() -> Gpu | None:
    """The first visible GPU, or None without a driver or a device. Never run on a machine that has one."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count, device, version = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) or not count.value or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return None
    name = ctypes.create_string_buffer(NAME_BYTES)
    cuda.cuDeviceGetName(name, NAME_BYTES, device)
    cuda.cuDriverGetVersion(ctypes.byref(version))
    capability = []
    for attribute in (MAJOR, MINOR):
        value = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        capability.append(str(value.value))
    return Gpu(name.value.decode(errors="replace"), ".".join(capability), f"{version.value // 1000}.{version.value % 1000 // 10}")
