"""ONNX Runtime on the CPU, as this package uses it: one place for its options."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.errors import ModelError
from pipeline.side_files import whole_bytes
from pipeline.tensors import Batch
from pipeline.weights import HELD, folder_of, lean, relative

if TYPE_CHECKING:
    import onnx

FOLDER_OF_WEIGHTS = "session.model_external_initializers_file_folder_path"


def session(
    model: bytes | Path | onnx.ModelProto,
    *,
    optimize: bool = True,
    graph_order: bool = False,
    arena: bool = True,
    disabled: Sequence[str] = (),
    limit: int = HELD,
) -> Any:
    """A CPU session on ONNX bytes, a file (with its side files), or a graph, lean or with its weights inside, however large.

    `optimize=False` runs the graph as written (no rewriting of Q/DQ, no fusion). `graph_order` runs nodes as early as they can
    run, in the order of the file; the default order starts from the outputs and keeps what late nodes need alive. `arena=False` gives
    memory back after each run, at some cost in time: for several sessions beside each other. `disabled` names single
    optimizations. Weights beyond `limit` bytes are read from files, a temporary one if need be. Raises ModelError for a model that it cannot open.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised
    options.use_deterministic_compute = True
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # a waiting thread that spins takes a core from numpy and others
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if graph_order:
        options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    options.enable_cpu_mem_arena = options.enable_mem_pattern = arena
    try:
        return _opened(model, options, disabled, limit)
    except Exception as error:  # the binding's exceptions have no common base but Exception
        raise ModelError(
            "ONNX Runtime cannot open the model",
            where=str(model) if isinstance(model, Path) else "the graph",
            expected="operators and types that it has kernels for",
            got=_said(error),
            next="replace the operator that is named, or export the model without it",
        ) from error


def _opened(model: bytes | Path | onnx.ModelProto, options: Any, disabled: Sequence[str], limit: int) -> Any:
    """The session; what a graph of more than `limit` bytes holds passes through a file, which the runtime maps instead of copying it."""
    import onnxruntime

    def opened(content: bytes | str) -> Any:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"], disabled_optimizers=list(disabled))

    if isinstance(model, bytes):
        return opened(model)
    if isinstance(model, Path):
        return opened(str(model))
    folder = folder_of(model)
    if folder is None and (content := whole_bytes(model, limit)) is not None:
        return opened(content)
    with tempfile.TemporaryDirectory(prefix="qwarm-session-") as scratch:
        if folder is None:
            model, folder = lean(model, Path(scratch)), Path(scratch)
        options.add_session_config_entry(FOLDER_OF_WEIGHTS, str(folder))
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False  # which would keep the largest layer's room, rounded up
        return opened(relative(model).SerializeToString())


def run_session(runtime: Any, batch: Batch) -> dict[str, np.ndarray]:
    """All outputs of a session by name; raises ModelError for inputs that the model cannot take."""
    names = [output.name for output in runtime.get_outputs()]
    try:
        return dict(zip(names, runtime.run(names, dict(batch)), strict=True))
    except Exception as error:  # the binding's exceptions have no common base but Exception
        shapes = ", ".join(f"{name} {array.dtype} {list(array.shape)}" for name, array in batch.items())
        after = "look at the operator that is named: a size it fixes, or an index beyond its table"
        raise ModelError("ONNX Runtime cannot run the model", where=shapes, expected="outputs", got=_said(error), next=after) from error


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:600]


def simulator(model: onnx.ModelProto, limit: int = HELD) -> Any:
    """A CPU session that computes Q/DQ in float as they are written, and everything else as fast as it can. `limit` as for `session`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.use_deterministic_compute = True
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return _opened(model, options, ["WeightBiasQuantization"], limit)
