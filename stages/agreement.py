"""What `validate@TARGET` asks besides accuracy and latency: does a second runtime compute the same, and a second build, and which hop lost what?"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import engines
from calibration.agree import BOUND_DB, agree
from calibration.exposing import Opener, Run, as_written
from calibration.hops import Station, attribute
from calibration.onnx_model import read_model
from calibration.rounding.channels import groups_of
from calibration.rounding.split import remembered
from engines.once import deployed
from engines.variance import variance
from pipeline.errors import ModelError
from pipeline.progress import bar
from pipeline.records import Agreement, Attribution, Engine, ExportedModel, Platform, QuantizedModel, Rebuild
from pipeline.tensors import Batch
from stages import paths

if TYPE_CHECKING:
    import onnx

ROWS = 64
"""Rows that are run twice: the difference between two runtimes is no matter of luck."""
SECOND = {"openvino-cpu": "onnxruntime-cpu", "onnxruntime-cpu": "openvino-cpu"}
"""The runtime that each CPU target is held to, where it runs the scheme; else ONNX Runtime without optimizations."""


def first_rows(batches: Iterable[Batch], count: int = ROWS) -> dict[str, np.ndarray]:
    """`count` rows of batches `{input: (n, ...)}` of equal sizes on every axis but the first; fewer where there are no more."""
    alike: dict[tuple[tuple[int, ...], ...], list[Batch]] = {}
    for batch in batches:
        parts = alike.setdefault(tuple(array.shape[1:] for array in batch.values()), [])
        parts.append(batch)
        if _count(parts) >= count:
            break
    most = max(alike.values(), key=_count)
    return {name: np.concatenate([part[name] for part in most])[:count] for name in most[0]}


def _count(parts: list[Batch]) -> int:
    return sum(len(next(iter(part.values()))) for part in parts)


def measure(target: str, exported: ExportedModel, rows: Batch, bound_db: float = BOUND_DB) -> Agreement:
    """The engine of `target`, as it is deployed, against a second runtime on the same Q/DQ model and `rows` `{input: (n, ...)}`.

    There is always a second: where no other target's runtime can run the scheme, ONNX Runtime without optimizations. Raises ModelError where
    no Q/DQ model is the one that the engine was built from.
    """
    engine = Engine.load(paths.ENGINES / target / "int8" / "engine.json", next=f"run `dvc repro build@{target}`")
    quantized, model = _quantized(target, engine)
    second = SECOND.get(target)
    if second is not None and (quantized.scheme not in engines.backend(second).SCHEMES[second] or engines.backend(second).unrunnable(second)):
        second = None
    other = (f"{second} as deployed", deployed(second, exported.inputs, exported.shapes)) if second else ("ONNX Runtime as written", as_written)
    batch = exported.shapes[str(exported.inputs[0].shape[0])]
    return agree(model, engine.model_sha256, rows, batch, (f"{target} as deployed", _as_built(target, engine, exported)), other, bound_db=bound_db)


def journey(target: str, exported: ExportedModel, rows: Batch) -> Attribution:
    """`rows` through the float graph, the Q/DQ graph as written and the engine of `target`: which hop lost what, and where.

    The hops before, from torch, are in `exported.parity`. Raises as `measure`.
    """
    engine = Engine.load(paths.ENGINES / target / "int8" / "engine.json", next=f"run `dvc repro build@{target}`")
    quantized, model = _quantized(target, engine)
    plain = remembered(model, read_model(paths.EXPORT / "model.onnx"))
    groups = groups_of(plain) if quantized.equalized_ranges_sha256 is not None else ()
    stations = (
        Station("simplified", as_written, plain),
        Station("qdq", as_written, model, groups=groups),
        Station(target, _as_built(target, engine, exported), model, rewrites=True),
    )
    return attribute(stations, rows, exported.shapes[str(exported.inputs[0].shape[0])])


def rebuild(target: str, rows: Batch, platform: Platform, settings: Mapping[str, Any]) -> Rebuild:
    """The recipe of the engine of `target` built again, past the store of engines, on `rows`. Raises as `measure` and the backend's build."""
    folder = paths.ENGINES / target / "int8"
    engine = Engine.load(folder / "engine.json", next=f"run `dvc repro build@{target}`")
    model = paths.CHOSEN / _quantized(target, engine)[0].scheme / "model.onnx"
    with tempfile.TemporaryDirectory() as scratch, bar(f"validate@{target}: build again") as progress:
        engines.backend(target).build(
            model, Path(scratch) / "again", target=target, precision=engine.precision, inputs=engine.inputs, outputs=engine.outputs,
            shapes=engine.shapes, platform=platform, settings=settings, progress=progress,
        )  # fmt: skip
        return variance(folder, Path(scratch) / "again", rows)


def _quantized(target: str, engine: Engine) -> tuple[QuantizedModel, onnx.ModelProto]:
    """The Q/DQ model that the engine was built from, and its record."""
    for scheme in engines.backend(target).SCHEMES[target]:
        record = paths.CHOSEN / scheme / "quantized.json"
        if record.is_file() and (quantized := QuantizedModel.load(record)).onnx_sha256 == engine.model_sha256:
            return quantized, read_model(paths.CHOSEN / scheme / "model.onnx")
    raise ModelError(
        "The engine was built from another Q/DQ model",
        where=str(paths.ENGINES / target / "int8"),
        expected=f"one of {', '.join(engines.backend(target).SCHEMES[target])} in {paths.CHOSEN}",
        got=f"model {engine.model_sha256}",
        next=f"run `dvc repro build@{target}`",
    )


def _as_built(target: str, engine: Engine, exported: ExportedModel) -> Opener:
    """The very engine for the model itself; built like it for a model with inner tensors as outputs."""
    outputs = {spec.name for spec in engine.outputs}

    @contextlib.contextmanager
    def opened(model: onnx.ModelProto) -> Iterator[Run]:
        if {value.name for value in model.graph.output} != outputs:
            with deployed(target, exported.inputs, exported.shapes)(model) as run:
                yield run
            return
        with engines.open_engine(paths.ENGINES / target / "int8") as session, session.lease() as run:
            yield run

    return opened
