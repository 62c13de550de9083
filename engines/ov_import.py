"""OpenVINO's Python module, imported as a process needs it that shall soon be hot."""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any

import numpy as np

CONVERTER = "openvino.tools.ovc"
_FIRST_TENSOR = threading.Lock()


@functools.cache
def openvino_module() -> Any:
    """OpenVINO without its telemetry, its converter when it is asked for, and ready for threads.

    Telemetry forks a child that tries to reach the network: it would disturb the timings and inherit a server's socket. The converter from other
    frameworks takes half of the import's time (45 instead of 97 ms on 2 busy cores), for one function that no engine calls: it is imported when
    somebody does. OpenVINO tolerates that either cannot be imported.

    Two threads that make a process's first `Tensor` together can deadlock (seen in 6 of 25 processes): in the binding's first use of numpy
    one thread waits for a C++ static's guard while it holds the GIL, and the other for the GIL while it holds the guard. One tensor made
    here, before there is a session, is that first use (then 0 of 125 processes).
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None makes an import fail
    first = "openvino" not in sys.modules
    if first:
        sys.modules[CONVERTER] = None  # type: ignore[assignment]
    try:
        import openvino
    finally:
        if first:
            del sys.modules[CONVERTER]
    if first:
        openvino.convert_model = _convert_model
    with _FIRST_TENSOR:
        openvino.Tensor(np.zeros(1, np.float32), shared_memory=True)
    return openvino


def _convert_model(*arguments: Any, **named: Any) -> Any:
    from openvino.tools.ovc import convert_model

    return convert_model(*arguments, **named)
