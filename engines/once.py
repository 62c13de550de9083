"""Any ONNX file on a target, outside the pipeline: built with that target's own options into a temporary folder, opened or only looked at."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import engines
from engines.contract import NO_SETTINGS, Run, Session
from pipeline.records import AxisRange, Engine, TensorSpec
from pipeline.side_files import save_model

if TYPE_CHECKING:
    import onnx


def build_once(
    content: bytes | onnx.ModelProto, target: str, *, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...],
    shapes: Mapping[str, AxisRange], folder: Path, precision: str = "int8", settings: Mapping[str, Any] = NO_SETTINGS,
) -> Engine:  # fmt: skip
    """Build `content`, an ONNX model with its weights inside, into `folder`/engine. Raises as the backend's `build` does."""
    backend = engines.backend(target)
    model = folder / "model.onnx"
    if isinstance(content, bytes):
        model.write_bytes(content)
    else:
        save_model(content, model)
    return backend.build(
        model, folder / "engine", target=target, precision=precision, inputs=inputs, outputs=outputs, shapes=dict(shapes),
        platform=engines.platform_here(target), settings=settings,
    )  # fmt: skip


@contextlib.contextmanager
def opened_once(
    content: bytes | onnx.ModelProto, target: str, *, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...],
    shapes: Mapping[str, AxisRange], precision: str = "int8",
) -> Iterator[Session]:  # fmt: skip
    """A session on what `build_once` builds, as it would be deployed; folder and session are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="qwarm-once-") as scratch:
        build_once(content, target, inputs=inputs, outputs=outputs, shapes=shapes, folder=Path(scratch), precision=precision)
        with engines.open_engine(Path(scratch) / "engine") as session:
            yield session


def deployed(
    target: str, inputs: tuple[TensorSpec, ...], shapes: Mapping[str, AxisRange], precision: str = "int8"
) -> Callable[[onnx.ModelProto], AbstractContextManager[Run]]:
    """Opens a model with its weights inside as an engine of `target`, with whatever outputs it has: what `calibration.agree` asks a runtime for."""

    @contextlib.contextmanager
    def opened(model: onnx.ModelProto) -> Iterator[Run]:
        import onnx

        names = {
            code: str(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(code))) for code in {v.type.tensor_type.elem_type for v in model.graph.output}
        }
        outputs = tuple(TensorSpec(value.name, names[value.type.tensor_type.elem_type], ()) for value in model.graph.output)
        with opened_once(model, target, inputs=inputs, outputs=outputs, shapes=shapes, precision=precision) as session, session.lease() as run:
            yield run

    return opened
