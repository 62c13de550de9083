"""Rebuild variance: what differs between two builds of one recipe. The engine that ships is the one that was measured, whatever this says."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

import engines
from engines.onnx_file import probe
from pipeline.records import Engine


@dataclasses.dataclass(frozen=True)
class Variance:
    """`equal_bytes`: every file is byte for byte the other's. `largest_difference` and `largest_value` are of outputs on made-up rows at `opt`.

    Both are None where the engines cannot be run.
    """

    equal_bytes: bool
    differing_files: tuple[str, ...]
    largest_difference: float | None
    largest_value: float | None


def variance(first: Path, second: Path) -> Variance:
    """Compare two engine folders of one recipe. Raises what opening them raises, where their target runs here."""
    one, two = (engines.read_engine(folder) for folder in (first, second))
    names = sorted(set(one.files) | set(two.files))
    differing = tuple(name for name in names if one.files.get(name) != two.files.get(name))
    if engines.backend(one.target).unrunnable(one.target):
        return Variance(not differing, differing, None, None)
    outputs = [_run(folder, engine) for folder, engine in ((first, one), (second, two))]
    largest = max(float(np.abs(outputs[0][name].astype(np.float64) - outputs[1][name]).max(initial=0)) for name in outputs[0])
    return Variance(not differing, differing, largest, max(float(np.abs(array).max(initial=0)) for array in outputs[0].values()))


def _run(folder: Path, engine: Engine) -> dict[str, np.ndarray]:
    with engines.open_engine(folder) as session:
        return session.run(probe(engine.inputs, engine.shapes))
