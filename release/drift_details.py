"""Where the drift lies: by slice of rows, by output channel, and the rows that moved most."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pipeline import decibels
from pipeline.errors import DataError
from pipeline.records import WorstRow
from pipeline.tensors import Batch

SHOWN_ROWS = 12
"""Rows that moved most, as the report shows them."""


def parts(slices: Mapping[str, Sequence[str]], labels: np.ndarray | None, class_names: Sequence[str], rows: int) -> dict[tuple[str, str], np.ndarray]:
    """Which rows (N,) of bool each value of each slice has; raises DataError for a slice that does not name every row."""
    found = {}
    for of, values in slices.items():
        if of == "class" and labels is not None:
            values = [class_names[label] if label < len(class_names) else str(label) for label in labels]
        if of == "class" and labels is None:
            continue
        if len(values) != rows:
            raise DataError("A slice does not name every row", where=f"gates.slices: {of}", expected=f"{rows} values", got=str(len(values)))
        array = np.asarray(values)
        found.update({(of, str(value)): array == value for value in np.unique(array)})
    return found


def kl(reference: np.ndarray, engine: np.ndarray) -> float:
    """Mean over rows of KL(reference || engine) of the softmax of class scores (N, C), in nats (Kullback & Leibler 1951)."""

    def log_softmax(scores: np.ndarray) -> np.ndarray:
        shifted = scores.astype(np.float64) - scores.max(axis=1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))

    first, second = log_softmax(reference), log_softmax(engine)
    return max(0.0, float((np.exp(first) * (first - second)).sum(axis=1).mean()))


def by_channel(reference: np.ndarray, engine: np.ndarray, name: str) -> tuple[float | None, ...]:
    """SQNR by place along axis 1; None too where the reference's channel is zero throughout."""
    places = range(reference.shape[1]) if reference.ndim > 1 else range(0)
    return tuple(sqnr_db(reference[:, place], engine[:, place], name) if reference[:, place].any() else None for place in places)


def by_batch(run: Callable[[Batch], Mapping[str, np.ndarray]], batch: Batch, sizes: Sequence[int]) -> dict[str, float | None]:
    """By batch size, the SQNR of an engine's answers to the first rows of `batch` alone against its answers to the same rows in the whole of it.

    A row's answer should not depend on its neighbours; kernels are chosen by shape, so that it does in the last digits. The worst output counts.
    """
    whole = run(batch)
    rows = len(next(iter(whole.values())))
    found: dict[str, float | None] = {}
    for size in sorted(size for size in sizes if size < rows):
        part = run({name: array[:size] for name, array in batch.items()})
        decibels = [sqnr_db(whole[name][:size], part[name], name) for name in whole]
        found[str(size)] = min((value for value in decibels if value is not None), default=None)
    return found


def worst(reference: np.ndarray, engine: np.ndarray, labels: np.ndarray | None, class_names: Sequence[str] | None) -> tuple[WorstRow, ...]:
    """The rows that moved most, lost ones first; `class_names` is None where the outputs are no class scores."""
    rows = len(reference)
    exact, moved = (np.reshape(array.astype(np.float64), (rows, -1)) for array in (reference, engine))
    typical = float(np.median(np.linalg.norm(exact, axis=1))) or 1.0
    distances = np.linalg.norm(exact - moved, axis=1) / typical
    lost = np.zeros(rows, bool)
    if class_names is not None and labels is not None:
        lost = (reference.argmax(axis=1) == labels) & (engine.argmax(axis=1) != labels)
    order = [place for place in np.lexsort((-distances, ~lost))[:SHOWN_ROWS] if distances[place] > 0]

    def name(index: int) -> str | None:
        return None if class_names is None else class_names[index] if index < len(class_names) else str(index)

    return tuple(
        WorstRow(
            place=int(place),
            distance=float(distances[place]),
            label=None if labels is None else name(int(labels[place])) if class_names is not None else str(labels[place]),
            reference=name(int(reference[place].argmax())),
            engine=name(int(engine[place].argmax())),
        )
        for place in order
    )


def sqnr_db(reference: np.ndarray, engine: np.ndarray, name: str) -> float | None:
    """10 log10 of the reference's energy over the difference's, in float64; None where nothing differs. Raises DataError for a reference of zeros."""
    if not reference.any() and engine.any():
        raise DataError(
            "Every output of the reference is zero, and the engine's are not",
            where=f"validation rows, output {name}",
            expected="a reference that answers",
            got="zeros",
            next="check the checkpoint and the exported model",
        )
    return decibels.sqnr_db(reference, engine)
