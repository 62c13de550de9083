"""Where a cold request's excess goes, by the runtime's own profiler. `python -m warmup.attribution` is one fresh process; it prints an Excess."""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import engines
from engines.stored import read_engine
from pipeline.arrays import read_arrays
from pipeline.errors import TargetError
from pipeline.strict import Record
from warmup.child import answer
from warmup.coldstart import child_environment, fresh
from warmup.trial import first_request

REQUESTS, SETTLING = 21, 11
SHOWN = 8


@dataclasses.dataclass(frozen=True)
class LayerExcess(Record):
    """A layer's time in the first request, and its steady median (ms)."""

    layer: str
    first_ms: float
    steady_ms: float


@dataclasses.dataclass(frozen=True)
class Excess(Record):
    """The layers that lose most in the first request, the most first, and all of them together. What a request's own time holds beyond its
    layers (kernels that are made, memory that is first touched between them) is in no layer."""

    SCHEMA: ClassVar[str] = "qwarm.excess/1"
    layers: tuple[LayerExcess, ...]
    all_layers: LayerExcess


def command(folder: Path, rows: Path) -> list[str]:
    return [sys.executable, "-P", "-m", "warmup.attribution", "--engine", str(folder), "--rows", str(rows)]


def attribute(folder: Path, rows: Path, processes: int = 3) -> Excess:
    """Medians over fresh processes of the engine in `folder`. Raises TrialError when one fails, for one because its runtime has no profiler."""
    seen = [fresh("profiled", command(folder, rows), Excess, child_environment()) for _ in range(processes)]
    names = {layer.layer for one in seen for layer in one.layers}

    def middle(name: str) -> LayerExcess:
        mine = [layer for one in seen for layer in (*one.layers, one.all_layers) if layer.layer == name]
        return LayerExcess(name, statistics.median(one.first_ms for one in mine), statistics.median(one.steady_ms for one in mine))

    layers = sorted(map(middle, names), key=lambda layer: layer.steady_ms - layer.first_ms)
    return Excess(tuple(layers[:SHOWN]), middle(seen[0].all_layers.layer))


def excess(times: Sequence[dict[str, float]]) -> Excess:
    """From each layer's time (ms) in each request of one process."""
    steady = times[SETTLING:]
    layers = [LayerExcess(name, times[0].get(name, 0.0), statistics.median(one.get(name, 0.0) for one in steady)) for name in times[0] | times[-1]]
    whole = LayerExcess("all layers", sum(times[0].values()), statistics.median(sum(one.values()) for one in steady))
    return Excess(tuple(sorted(layers, key=lambda layer: layer.steady_ms - layer.first_ms)), whole)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m warmup.attribution", description="Profile the first requests of one process.")
    parser.add_argument("--engine", type=Path, required=True, help="engine folder")
    parser.add_argument("--rows", type=Path, required=True, help="rows (.npz); the first is the request")
    options = parser.parse_args(arguments)
    return answer(lambda: _run(options))


def _run(options: argparse.Namespace) -> Excess:
    engine = read_engine(options.engine)
    profile = getattr(engines.backend(engine.target), "profile", None)
    if profile is None:
        raise TargetError(
            "No profiler is wired up for this target", where=engine.target, expected="openvino-cpu or onnxruntime-cpu", got=engine.target
        )
    request = first_request(engine, read_arrays(options.rows, what="Rows"))
    return excess(profile(options.engine, engine, request, REQUESTS))


if __name__ == "__main__":
    raise SystemExit(main())
