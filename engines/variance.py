"""Rebuild variance: what differs between two builds of one recipe. The engine that ships is the one that was measured, whatever this says."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import engines
from engines.onnx_file import probe
from pipeline.decibels import sqnr_db
from pipeline.records import Rebuild
from pipeline.tensors import Batch


def variance(first: Path, second: Path, rows: Batch | None = None) -> Rebuild:
    """Compare two engine folders of one recipe on `rows` `{input: (N, ...)}`, by default made-up ones at the usual sizes.

    Where the target does not run here, files are compared and no row is run. Raises what opening the engines raises.
    """
    one, two = (engines.read_engine(folder) for folder in (first, second))
    differing = tuple(name for name in sorted(set(one.files) | set(two.files)) if one.files.get(name) != two.files.get(name))
    if engines.backend(one.target).unrunnable(one.target):
        return Rebuild(0, differing, {}, None)
    asked = probe(one.inputs, one.shapes) if rows is None else rows
    first_answers, second_answers = (_answers(folder, asked) for folder in (first, second))
    count = len(next(iter(first_answers.values())))
    largest = [next(iter(answers.values())).reshape(count, -1).argmax(axis=1) for answers in (first_answers, second_answers)]
    return Rebuild(
        rows=count,
        differing_files=differing,
        sqnr_db_by_output={name: sqnr_db(array, second_answers[name]) for name, array in first_answers.items()},
        agreement=float((largest[0] == largest[1]).mean()),
    )


def _answers(folder: Path, rows: Batch) -> dict[str, np.ndarray]:
    """Outputs for `rows`, in batches of at most what the engine takes; a rest below what it takes is left out."""
    with engines.open_engine(folder) as session:
        allowed = session.engine.shapes[str(session.engine.inputs[0].shape[0])]
        count = len(next(iter(rows.values())))
        starts = [start for start in range(0, count, allowed.max) if count - start >= allowed.min]
        parts = [session.run({name: array[start : start + allowed.max] for name, array in rows.items()}) for start in starts]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
