"""What `validate@TARGET` asks besides accuracy and latency: does a second runtime compute the same, and which hop lost what?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import engines
from calibration.agree import agree
from calibration.exposing import Opener, Run, as_written
from calibration.hops import Station, attribute
from calibration.onnx_model import read_model
from engines.once import deployed
from pipeline.errors import ModelError
from pipeline.records import Agreement, Attribution, Engine, ExportedModel, QuantizedModel
from pipeline.tensors import Batch
from stages import paths

if TYPE_CHECKING:
    import onnx

ROWS = 64
"""Rows that are run twice: the difference between two runtimes is no matter of luck."""
SECOND = {"openvino-cpu": "onnxruntime-cpu", "onnxruntime-cpu": "openvino-cpu"}
"""The runtime that each CPU target is held to, where it runs the scheme; else ONNX Runtime without optimizations."""


def measure(target: str, exported: ExportedModel, rows: Batch) -> Agreement:
    """The engine of `target`, as it is deployed, against a second runtime on the same Q/DQ model and `rows` `{input: (n, ...)}`.

    Raises ModelError where no Q/DQ model is the one that the engine was built from.
    """
    engine = Engine.load(paths.ENGINES / target / "int8" / "engine.json", next=f"run `dvc repro build@{target}`")
    scheme = _scheme(target, engine)
    model = read_model(paths.CHOSEN / scheme / "model.onnx")
    second = SECOND.get(target)
    if second is not None and (scheme not in engines.backend(second).SCHEMES[second] or engines.backend(second).unrunnable(second)):
        second = None
    other = (f"{second} as deployed", deployed(second, exported.inputs, exported.shapes)) if second else ("ONNX Runtime as written", as_written)
    batch = exported.shapes[str(exported.inputs[0].shape[0])]
    return agree(model, engine.model_sha256, rows, batch, (f"{target} as deployed", _as_built(target, engine, exported)), other)


def journey(target: str, exported: ExportedModel, rows: Batch) -> Attribution:
    """`rows` through the float graph, the Q/DQ graph as written and the engine of `target`: which hop lost what, and where.

    The hops before, from torch, are in `exported.parity`. Raises as `measure`.
    """
    engine = Engine.load(paths.ENGINES / target / "int8" / "engine.json", next=f"run `dvc repro build@{target}`")
    quantized = read_model(paths.CHOSEN / _scheme(target, engine) / "model.onnx")
    stations = (
        Station("simplified", as_written, read_model(paths.EXPORT / "model.onnx")),
        Station("qdq", as_written, quantized),
        Station(target, _as_built(target, engine, exported), quantized, rewrites=True),
    )
    return attribute(stations, rows, exported.shapes[str(exported.inputs[0].shape[0])])


def _scheme(target: str, engine: Engine) -> str:
    for scheme in engines.backend(target).SCHEMES[target]:
        record = paths.CHOSEN / scheme / "quantized.json"
        if record.is_file() and QuantizedModel.load(record).onnx_sha256 == engine.model_sha256:
            return scheme
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
