"""Activation ranges over the calibration rows: streamed, per tensor, refused when they could not become a scale."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from calibration.observe import Observer
from pipeline.digests import sha256_file
from pipeline.errors import RangeError
from pipeline.platforms import package_version
from pipeline.records import ExportedModel, Ranges, Roles, TensorRange
from pipeline.tensors import Batch

METHOD = "max"
CONVERGED = 0.5
"""Below this `halves_ratio`, half of the rows would have clipped the other half by more than a bit: a warning says so."""


@dataclasses.dataclass
class _Extremes:
    """Running minimum and maximum of one tensor, over the rows of even and of odd position."""

    low: list[float] = dataclasses.field(default_factory=lambda: [np.inf, np.inf])
    high: list[float] = dataclasses.field(default_factory=lambda: [-np.inf, -np.inf])

    def add(self, half: int, low: float, high: float) -> None:
        self.low[half] = min(self.low[half], low)
        self.high[half] = max(self.high[half], high)

    def result(self) -> TensorRange:
        sides = [max(abs(low), abs(high)) for low, high in zip(self.low, self.high, strict=True) if np.isfinite(low)]
        larger = max(sides)
        ratio = min(sides) / larger if len(sides) == 2 and larger > 0 else (1.0 if larger == 0 else 0.0)
        return TensorRange(low=min(self.low), high=max(self.high), halves_ratio=ratio)


def collect(
    model: Path,
    exported: ExportedModel,
    batches: Iterable[Batch],
    row_ids: Sequence[str],
    *,
    calibration_root: str,
    preprocess_sha256: str,
    min_rows: int,
    batch_rows: int,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> Ranges:
    """Smallest and largest value of every float tensor over all rows, in ONNX Runtime with its optimizations off.

    Reductions run inside the graph, so memory holds one batch of rows and a few activations.
    `row_ids` name the rows in the order in which `batches` gives them. Convergence compares rows of even with rows of odd
    position. Raises RangeError for a model that is not `exported`, fewer than `min_rows` rows, a value that is not finite
    (naming row and tensor) and an input that is the same in every row.
    """
    found = sha256_file(model)
    if found != exported.onnx_sha256:
        raise RangeError(
            "The model is not the one that was exported", where=str(model), expected=exported.onnx_sha256, got=found, next="run `dvc repro export`"
        )
    observer = Observer(model, exported)
    extremes: dict[str, _Extremes] = {}
    inputs = _InputWatch()
    done = 0
    for number, batch in enumerate(batches):
        size = len(next(iter(batch.values())))
        ids = row_ids[done : done + size]
        inputs.add(batch)
        for name, (low, high) in observer.run(batch, ids).items():
            entry = extremes.setdefault(name, _Extremes())
            # A tensor without a batch axis has one value a batch: whole batches alternate then.
            position = np.arange(done, done + size) if len(low) == size else np.array([number])
            for half in (0, 1):
                chosen = position % 2 == half
                if chosen.any():
                    entry.add(half, float(low[chosen].min()), float(high[chosen].max()))
        done += size
        progress(done, len(row_ids), "")
    if done < min_rows:
        raise RangeError(
            "There are too few calibration rows",
            where="role calibration",
            expected=f"at least quantize.min_rows = {min_rows}",
            got=str(done),
            next="raise data.roles.calibration in params.yaml",
        )
    inputs.refuse_constant(done)
    tensors = {name: entry.result() for name, entry in sorted(extremes.items()) if name not in observer.masked}
    dead = tuple(name for name, entry in tensors.items() if entry.low == entry.high == 0)
    return Ranges(
        onnx_sha256=exported.onnx_sha256,
        calibration_root=calibration_root,
        preprocess_sha256=preprocess_sha256,
        method=METHOD,
        calibration_rows=done,
        batch_rows=batch_rows,
        tools={name: package_version(name) for name in ("onnx", "onnxruntime-gpu", "numpy")},
        tensors=tensors,
        dead=dead,
        warnings=(*inputs.warnings(done), *_warnings(tensors, dead), *_mask_warning(observer.masked)),
    )


class _InputWatch:
    """Notices inputs that do not vary: every row equal, or single rows of one value (a mask of integers may be either)."""

    def __init__(self) -> None:
        self.first: dict[str, np.ndarray] = {}
        self.varies: set[str] = set()
        self.flat: dict[str, int] = {}
        self.masks: set[str] = set()

    def add(self, batch: Batch) -> None:
        for name, array in batch.items():
            self.masks |= {name} if array.dtype.kind in "ib" else set()
            first = self.first.setdefault(name, array[0].copy())
            if any(row.shape != first.shape or not np.array_equal(row, first) for row in array):
                self.varies.add(name)
            rows = array.reshape(len(array), -1)
            self.flat[name] = self.flat.get(name, 0) + int((rows == rows[:, :1]).all(axis=1).sum())

    def refuse_constant(self, rows: int) -> None:
        for name, first in self.first.items():
            if name not in self.varies and rows > 1 and (name not in self.masks or not self.varies):
                raise RangeError(
                    "The calibration rows are degenerate: an input is the same in every row",
                    where=f"input {name}",
                    expected="rows that differ",
                    got=f"{rows} equal rows, values {float(first.min()):g} to {float(first.max()):g}",
                    next="check data.preprocess and the source's column",
                )

    def warnings(self, rows: int) -> list[str]:
        return [
            f"input {name}: {count} of {rows} rows hold one single value"
            for name, count in sorted(self.flat.items())
            if count and name not in self.masks
        ]


def _mask_warning(masked: Collection[str]) -> list[str]:
    if not masked:
        return []
    return [f"{len(masked)} tensors in front of a Softmax hold a mask's infinities and stay in float: {', '.join(sorted(masked)[:5])}"]


def _warnings(tensors: Mapping[str, TensorRange], dead: Sequence[str]) -> list[str]:
    warnings = [f"{len(dead)} tensors are zero for every row: {', '.join(dead[:5])}"] if dead else []
    loose = sorted((entry.halves_ratio, name) for name, entry in tensors.items() if entry.halves_ratio < CONVERGED)
    if loose:
        shown = ", ".join(f"{name} ({ratio:.2f})" for ratio, name in loose[:5])
        warnings.append(f"{len(loose)} ranges have not converged (halves agree less than {CONVERGED:g}): {shown}; more calibration rows would help")
    return warnings


def check_bound(ranges: Ranges, exported: ExportedModel, roles: Roles) -> None:
    """Refuse ranges of another model, other calibration rows, another preprocessing or method; raises RangeError naming which."""
    bindings = {
        "model": (exported.onnx_sha256, ranges.onnx_sha256),
        "calibration rows": (roles.roles["calibration"].merkle_root, ranges.calibration_root),
        "preprocessing": (roles.preprocess_sha256, ranges.preprocess_sha256),
        "method": (METHOD, ranges.method),
    }
    for name, (expected, got) in bindings.items():
        if expected != got:
            raise RangeError(
                f"The ranges were taken with another {name}", where="ranges.json", expected=expected, got=got, next="run `dvc repro ranges`"
            )
