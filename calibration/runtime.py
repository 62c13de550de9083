"""ONNX Runtime on the CPU, as this package uses it: one place for its options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pipeline.tensors import Batch


def session(model: bytes | Path, *, optimize: bool = True, graph_order: bool = False, arena: bool = True) -> Any:
    """A CPU session on ONNX bytes or a file.

    `optimize=False` runs the graph as written (no rewriting of Q/DQ, no fusion). `graph_order` runs nodes as early as they can
    run, in the order of the file; the default order starts from the outputs and keeps what late nodes need alive. `arena=False` gives
    memory back after each run, at some cost in time: for several sessions beside each other.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.use_deterministic_compute = True
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # a waiting thread that spins takes a core from numpy and others
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if graph_order:
        options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    options.enable_cpu_mem_arena = options.enable_mem_pattern = arena
    content = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def run_session(runtime: Any, batch: Batch) -> dict[str, np.ndarray]:
    """All outputs of a session by name."""
    names = [output.name for output in runtime.get_outputs()]
    return dict(zip(names, runtime.run(names, dict(batch)), strict=True))


def simulator(model: bytes) -> Any:
    """A CPU session that computes Q/DQ in float as they are written, and everything else as fast as it can."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.use_deterministic_compute = True
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], disabled_optimizers=["WeightBiasQuantization"])
