"""Activation ranges over the calibration rows: streamed, per tensor, refused when they could not become a scale."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from calibration.histograms import NOTHING, SMALLEST, Histogram, Outliers, Tally
from calibration.input_watch import InputWatch, refuse_non_finite
from calibration.observe import Observer, Seen
from calibration.range_methods import PARAMETERS, Chosen, choose
from pipeline.digests import sha256_file
from pipeline.errors import RangeError
from pipeline.platforms import package_version
from pipeline.records import ExportedModel, OutlierRows, Ranges, Roles, TensorRange
from pipeline.tensors import Batch

MAX = "max"
TOOLS = ("onnx", "onnxruntime-gpu", "numpy")
CONVERGED = 0.5
"""Below this `halves_ratio`, half of the rows would have clipped the other half by more than a bit: a warning says so."""


def collect(model: Path, exported: ExportedModel, batches: Iterable[Batch], row_ids: Sequence[str], *, method: str = MAX, **options: Any) -> Ranges:
    """Range of every float tensor that a scheme could quantize, by one `method`: see `collect_each`."""
    return collect_each(model, exported, batches, row_ids, methods=(method,), **options)[method]


def collect_each(
    model: Path,
    exported: ExportedModel,
    batches: Iterable[Batch],
    row_ids: Sequence[str],
    *,
    calibration_root: str,
    preprocess_sha256: str,
    min_rows: int,
    batch_rows: int,
    methods: Collection[str],
    only: Collection[str] | None = None,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> dict[str, Ranges]:
    """Range of every float tensor that a scheme could quantize, by each of `methods` (keys of `range_methods.PARAMETERS`), in one pass over all rows.

    Memory holds one batch, the activations of a few rows, and a few histograms for each tensor, however many rows there are.
    `row_ids` name the rows in the order in which `batches` gives them. Convergence compares the first half of the rows with the second.
    A tensor that only a Relu or a Clip reads takes the range of what leaves that, since both are one kernel.
    Rows far beyond all others in a tensor are listed; `max` covers them, the other methods leave them out there.
    `only`: the tensors that are looked at, if not all.
    Raises RangeError for a model that is not `exported`, fewer than `min_rows` rows or other rows than `row_ids`, a value that is not finite
    (naming row and tensor) and an input that is the same in every row.
    """
    for method in methods:
        if method not in PARAMETERS:
            raise RangeError("There is no such method", where="quantize.method", expected=f"one of {', '.join(PARAMETERS)}", got=method)
    digest = sha256_file(model)
    if digest != exported.onnx_sha256:
        raise RangeError(
            "The model is not the one that was exported", where=str(model), expected=exported.onnx_sha256, got=digest, next="run `dvc repro export`"
        )
    if (total := len(row_ids)) < min_rows:
        raise RangeError(
            "There are too few calibration rows",
            where="role calibration",
            expected=f"at least quantize.min_rows = {min_rows}",
            got=str(total),
            next="raise data.roles.calibration in params.yaml",
        )
    observer, inputs = Observer(model, exported, only), InputWatch()
    tallies = _stream(observer, inputs, batches, row_ids, set(methods) != {MAX}, progress)
    dead = tuple(name for name, tally in tallies.items() if set(tally.groups) == {NOTHING})
    inputs.refuse_constant(total, dead)
    outliers = {name: found for name, tally in tallies.items() if (found := tally.outliers()) is not None}
    by_method = {}
    for method in methods:
        tensors = {name: _range(tally, method, outliers.get(name)) for name, tally in tallies.items()}
        shared = {name: tensors[end] for name, end in observer.fused.items() if end in tensors}
        by_method[method] = Ranges(
            onnx_sha256=exported.onnx_sha256,
            calibration_root=calibration_root,
            preprocess_sha256=preprocess_sha256,
            method=method,
            parameters=PARAMETERS[method],
            calibration_rows=total,
            batch_rows=batch_rows,
            tools={name: package_version(name) for name in TOOLS},
            tensors=dict(sorted((tensors | shared).items())),
            dead=dead,
            outliers=tuple(OutlierRows(name, entry.names, entry.rows, entry.largest, entry.others) for name, entry in outliers.items()),
            warnings=(*inputs.warnings(total), *_warnings(tensors, dead, outliers, method), *_mask_warning(observer.masked)),
        )
    return by_method


def _stream(
    observer: Observer,
    inputs: InputWatch,
    batches: Iterable[Batch],
    row_ids: Sequence[str],
    histograms: bool,
    progress: Callable[[int, int, str], None],
) -> dict[str, Tally]:
    """Run every row once; gives what was kept of each tensor that has a range, by name."""
    tallies = {name: Tally(histograms) for name in sorted(observer.tensors)}
    total, done = len(row_ids), 0
    for batch in batches:
        size = len(next(iter(batch.values())))
        ids = row_ids[done : done + size]
        if len(ids) < size:
            raise _miscounted(total, f"at least {done + size}")
        refuse_non_finite(batch, ids)
        inputs.add(batch)
        middle = min(max(total // 2 - done, 0), size)
        for half, (start, end) in enumerate(((0, middle), (middle, size))):

            def take(name: str, seen: Seen, half: int = half) -> None:
                tallies[name].add(half, seen)

            if start < end:
                observer.run({name: array[start:end] for name, array in batch.items()}, ids[start:end], take)
        done += size
        progress(done, total, "")
    if done != total:
        raise _miscounted(total, str(done))
    return {name: tally for name, tally in tallies.items() if tally.groups and name not in observer.masked}


def _miscounted(expected: int, got: str) -> RangeError:
    return RangeError("The rows are not those that were named", where="calibration rows", expected=f"{expected} rows", got=got)


def _range(tally: Tally, method: str, outliers: Outliers | None) -> TensorRange:
    """A tensor that is never more than SMALLEST has the range 0 to 0: no grid fits it, and each scheme has a safe scale for it."""
    low, high = tally.extremes()
    if max(-low, high) < SMALLEST:
        return TensorRange(0.0, 0.0, 1.0)
    if method == MAX:
        return TensorRange(low, high, _ratio(*(max(-half_low, half_high) for half_low, half_high in (tally.extremes([0]), tally.extremes([1])))))
    without = outliers.exponents if outliers is not None else frozenset()
    chosen, *halves = (_chosen(method, tally.histogram(without, rows)) for rows in ([0, 1], [0], [1]))
    return TensorRange(chosen.low, chosen.high, _ratio(*(half.magnitude for half in halves)), chosen.magnitude, low, high)


def _chosen(method: str, histogram: Histogram | None) -> Chosen:
    return choose(method, histogram) if histogram is not None else Chosen(0.0, 0.0, 0.0)


def _ratio(first: float, second: float) -> float:
    """Smaller over larger magnitude of two halves; 0 where one half has no row."""
    smaller, larger = sorted((first, second))
    return 1.0 if larger == 0 else max(smaller, 0.0) / larger


def _mask_warning(masked: Collection[str]) -> list[str]:
    if not masked:
        return []
    return [f"{len(masked)} tensors in front of a Softmax hold a mask's infinities and stay in float: {', '.join(sorted(masked)[:5])}"]


def _warnings(tensors: Mapping[str, TensorRange], dead: Sequence[str], outliers: Mapping[str, Outliers], method: str) -> list[str]:
    warnings = [f"{len(dead)} tensors are zero for every row: {', '.join(dead[:5])}"] if dead else []
    if outliers:
        shown = "; ".join(
            f"{name}: row {', '.join(entry.names)} reaches {entry.largest:.4g}, every other row at most {entry.others:.4g}"
            for name, entry in sorted(outliers.items(), key=lambda item: item[1].others / item[1].largest)[:5]
        )
        effect = "they alone set its range; quantize.method percentile, entropy or mse leaves them out" if method == MAX else "left out of its range"
        warnings.append(f"{len(outliers)} tensors have outlier rows ({effect}): {shown}")
    loose = sorted((entry.halves_ratio, name) for name, entry in tensors.items() if entry.halves_ratio < CONVERGED)
    if loose:
        shown = ", ".join(f"{name} ({ratio:.2f})" for ratio, name in loose[:5])
        warnings.append(f"{len(loose)} ranges have not converged (halves agree less than {CONVERGED:g}): {shown}; more calibration rows would help")
    return warnings


def check_bound(ranges: Ranges, exported: ExportedModel, roles: Roles, *, method: str, batch_rows: int) -> None:
    """Refuse ranges of another model, other rows, another preprocessing, method, batch size or tool; raises RangeError naming which."""
    bindings: dict[str, tuple[object, object]] = {
        "model": (exported.onnx_sha256, ranges.onnx_sha256),
        "set of calibration rows": (roles.roles["calibration"].merkle_root, ranges.calibration_root),
        "preprocessing": (roles.preprocess_sha256, ranges.preprocess_sha256),
        "method": (_described(method, PARAMETERS[method]), _described(ranges.method, ranges.parameters)),
        "batch size": (batch_rows, ranges.batch_rows),
        **{f"version of {name}": (package_version(name), ranges.tools.get(name, "absent")) for name in TOOLS},
    }
    for name, (expected, got) in bindings.items():
        if expected != got:
            raise RangeError(
                f"The ranges were taken with another {name}",
                where="the ranges",
                expected=str(expected),
                got=str(got),
                next="run `dvc repro --single-item --force ranges`, then `dvc repro`",
            )


def _described(method: str, parameters: Mapping[str, float]) -> str:
    return " ".join([method, *(f"{name}={value:g}" for name, value in sorted(parameters.items()))])
