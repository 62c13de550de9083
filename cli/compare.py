"""`qwarm compare A B --data D`: how far is B from A, overall, by class, channel and layer? ONNX files or engine folders, without a pipeline."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from cli.options import by_hand, existing, pairs_of
from cli.rows import Rows, read_rows
from pipeline.errors import ConfigError
from pipeline.files import write_text
from pipeline.records import AxisRange, TensorSpec
from pipeline.tensors import Batch
from pipeline.verdicts import Interval, Verdict, judge
from pipeline.weights import Scratch
from release.breakdown import Breakdown, breakdown

MIN_SQNR_DB = 10.0
"""Below, a tenth of an output's power is error."""
CHUNK = AxisRange(1, 8, 16)
"""Rows at once where a model leaves that open."""
SHOWN = 5
NO_LABELS = "name the labels with --label, or leave out the option"
Run = Callable[[Batch], Mapping[str, np.ndarray]]


def compare_files(
    first: Path, second: Path, data: Path, *, columns: Mapping[str, str] | None = None, preprocess: str | None = None, label: str | None = None,
    class_names: Sequence[str] = (),
) -> tuple[Breakdown, Rows, str | None]:  # fmt: skip
    """Run every row of `data` through both and hold the second to the first; also the rows, and with labels the lines that `qwarm gate` reads.

    An ONNX file runs as it is written, in ONNX Runtime without optimizations; an engine folder in its own runtime with its own options. Raises
    ConfigError, DataError, ModelError, Refused (a file that changed), RecordError and TargetError.
    """
    with _opened(first) as one, _opened(second) as two:
        if [(spec.name, spec.dtype) for spec in one.inputs] != [(spec.name, spec.dtype) for spec in two.inputs]:
            names = [", ".join(f"{spec.name} {spec.dtype}" for spec in side.inputs) for side in (one, two)]
            raise ConfigError(
                "The two models have other inputs", where=f"{first} and {second}", expected=names[0], got=names[1], next="give two of one model"
            )
        rows = read_rows(data, one.inputs, columns=columns or {}, preprocess=preprocess, label=label, class_names=class_names)
        outputs = [_run(side, rows) for side in (one, two)]
    labels = rows.labels()
    found = breakdown(outputs[0], outputs[1], labels, class_names)
    return found, rows, None if labels is None else _pairs(outputs[0], outputs[1], labels)


def _pairs(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray], labels: np.ndarray) -> str:
    name = next(iter(first))
    right, still = ((outputs[name].argmax(axis=1) == labels).astype(int) for outputs in (first, second))
    return "".join(f"{line}\n" for line in ("fp32_correct,int8_correct", *(f"{one},{other}" for one, other in zip(right, still, strict=True))))


class _Side:
    """An opened model: its inputs, how many rows at once, and its run."""

    def __init__(self, inputs: tuple[TensorSpec, ...], batch: AxisRange, run: Run) -> None:
        self.inputs, self.batch, self.run = inputs, batch, run


def _opened(path: Path) -> AbstractContextManager[_Side]:
    if path.is_dir():
        return _engine(path)
    return _model(path)


@contextlib.contextmanager
def _engine(folder: Path) -> Iterator[_Side]:
    import engines

    with engines.open_engine(folder) as session, session.lease() as run:
        axis = session.engine.inputs[0].shape[0]
        yield _Side(session.engine.inputs, AxisRange(axis, axis, axis) if isinstance(axis, int) else session.engine.shapes[axis], run)


@contextlib.contextmanager
def _model(path: Path) -> Iterator[_Side]:
    from calibration.exposing import as_written
    from calibration.onnx_model import describe, read_lean

    scratch = Scratch()
    model = read_lean(path, scratch.path)
    found = describe(model)
    axis = found.batch_axis
    with as_written(model) as run:
        yield _Side(found.inputs, AxisRange(axis, axis, axis) if isinstance(axis, int) else CHUNK, run)


def _run(side: _Side, rows: Rows) -> dict[str, np.ndarray]:
    from calibration.exposing import run_rows

    parts = [run_rows(side.run, batch, side.batch) for batch in rows.batches(max(side.batch.max, 1))]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def judge_drift(found: Breakdown, min_sqnr_db: float, max_drop: float | None) -> tuple[Verdict, tuple[str, ...]]:
    """Is B near enough, and what speaks against it? `max_drop`, a fraction of rows with labels, is held against the 90 % interval of the drop."""
    reasons = [
        f"output {name}: {drift.sqnr_db:.1f} dB where at least {min_sqnr_db:g} dB is allowed"
        for name, drift in found.outputs.items()
        if drift.sqnr_db is not None and drift.sqnr_db < min_sqnr_db
    ]
    verdict = Verdict.FAIL if reasons else Verdict.PASS
    if max_drop is not None:
        if found.top1 is None:
            raise ConfigError("There are no labels to be right about", where="--max-drop", expected="labels in the data", got="none", next=NO_LABELS)
        dropped = judge(Interval(found.top1.interval_low, found.top1.interval_high, 0.95), max_drop)
        if dropped is not Verdict.PASS:
            reasons.append(f"top-1 drops by {100 * found.top1.drop:.2f} points where at most {100 * max_drop:g} are allowed: {dropped.name}")
        verdict = dropped if verdict is Verdict.PASS else verdict
    return verdict, tuple(reasons)


def blamed_layers(first: Path, second: Path, rows: Rows) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Why B is far from A, where both are ONNX files: the operators that lose most on the first rows, the worst first, and layers whose 8-bit
    weights are too coarse, by the SQNR in dB of their worst tenth of channels.
    """
    if first.is_dir() or second.is_dir():
        return [], {}
    from calibration.layer_loss import layer_losses
    from calibration.onnx_model import describe, read_lean
    from calibration.rounding.check import coarse_layers

    scratch = Scratch()
    models = [read_lean(path, scratch.path) for path in (first, second)]
    fixed = {axis for model in models if isinstance(axis := describe(model).batch_axis, int)}
    layers: list[dict[str, Any]] = []
    if len(fixed) <= 1:
        count = fixed.pop() if fixed else min(CHUNK.opt, len(rows.ids))
        batch = {name: np.resize(array, (count, *array.shape[1:])) for name, array in rows.first(count).items()}
        layers = [layer.to_json() for layer in layer_losses(models[0], models[1], batch)[:SHOWN]]
    return layers, dict(coarse_layers(models[0], models[1])[:SHOWN])


def describe_verdict(verdict: Verdict, reasons: Sequence[str], layers: Sequence[Mapping[str, Any]], coarse: Mapping[str, float]) -> str:
    """What the comparison comes to, in lines for a person."""
    lines = [f"verdict: {verdict.name}" + "".join(f"; {reason}" for reason in reasons)]
    for layer in layers:
        lines.append(f"  loses most: {layer['node']} ({layer['operator']}): {_db(layer['before_db'])} before it, {_db(layer['sqnr_db'])} behind")
    lines += [f"  weights too coarse: {name}: {value:.1f} dB in its worst channels; a scale a channel mends it" for name, value in coarse.items()]
    return "\n".join(lines)


def describe_report(found: Breakdown) -> str:
    """The report in lines for a person, the worst classes and channels first."""
    lines = []
    for name, drift in found.outputs.items():
        lines.append(
            f"output {name}: {_db(drift.sqnr_db)}, largest difference {drift.max_absolute:.4g} ({drift.max_relative:.2%} of the largest value)"
        )
        channels = sorted((value, place) for place, value in enumerate(drift.channel_sqnr_db) if value is not None)
        if len(channels) > 1:
            worst = ", ".join(f"channel {place} {_db(value)}" for value, place in channels[:SHOWN])
            lines.append(f"  by channel: {worst}; median {_db(float(np.median([value for value, _ in channels])))}")
    if found.agreement is not None:
        lines.append(f"agreement: {found.agreement:.4f} of {found.rows} rows have the same largest score")
    if found.top1 is not None:
        top1 = found.top1
        interval = f"90 % interval {100 * top1.interval_low:+.2f} to {100 * top1.interval_high:+.2f} points"
        lines.append(f"top-1: {top1.first:.4f} to {top1.second:.4f}; {top1.lost} lost, {top1.gained} gained; drop {100 * top1.drop:+.2f}, {interval}")
        worst_classes = sorted(found.classes.items(), key=lambda item: (item[1].second_right - item[1].first_right, item[1].agreement))
        for name, one in worst_classes[:SHOWN]:
            right = f"{one.first_right:.3f} to {one.second_right:.3f} right"
            lines.append(f"  class {name}: {one.rows} rows, {right}, agreement {one.agreement:.3f}, {_db(one.sqnr_db)}")
    return "\n".join(lines)


def _db(value: float | None) -> str:
    return "equal" if value is None else f"{value:.1f} dB"


def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="the reference: an ONNX file, or an engine folder", callback=existing)],
    second: Annotated[Path, typer.Argument(metavar="B", help="what is held to it", callback=existing)],
    data: Annotated[Path, typer.Option(help=".npz with an array an input (and `label`), or a data set", callback=existing)],
    column: Annotated[list[str] | None, typer.Option(metavar="NAME=COLUMN", help="what --preprocess receives, from which column")] = None,
    preprocess: Annotated[str | None, typer.Option(help="file.py:function, one raw row to the model's inputs")] = None,
    label: Annotated[str | None, typer.Option(help="array or column of labels")] = None,
    classes: Annotated[str | None, typer.Option(help="file.py:NAMES, class names in the order of the first output")] = None,
    min_sqnr_db: Annotated[float, typer.Option(help="an output of B further from A than this is a FAIL")] = MIN_SQNR_DB,
    max_drop: Annotated[float | None, typer.Option(help="largest allowed drop of top-1, as a fraction: 0.005 is half a point")] = None,
    pairs: Annotated[Path | None, typer.Option(metavar="PAIRS.csv", help="write which rows each gets right, for `qwarm gate`")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="one JSON object on standard output")] = False,
) -> None:
    """How far is B from A: PASS (exit 0), FAIL (3, naming the layers) or UNDECIDED (4)? By output, class where there are labels, and channel."""
    from calibration.sources import load_class_names

    with by_hand("--classes"):
        names = load_class_names(classes, Path()) if classes else ()
    columns = pairs_of(column, "--column", "NAME=COLUMN")
    found, rows, lines = compare_files(first, second, data, columns=columns, preprocess=preprocess, label=label, class_names=names)
    if pairs is not None:
        if lines is None:
            raise ConfigError(
                "There are no labels to be right about", where=f"--pairs {pairs}", expected="labels in the data", got="none", next=NO_LABELS
            )
        write_text(pairs, lines)
    verdict, reasons = judge_drift(found, min_sqnr_db, max_drop)
    layers, coarse = blamed_layers(first, second, rows) if verdict is Verdict.FAIL else ([], {})
    report: dict[str, Any] = {"first": str(first), "second": str(second), "data": str(data), "data_root": rows.root, **found.to_json()}
    report |= {"verdict": verdict.name, "reasons": list(reasons), "layers": layers, "coarse_weights_db": coarse}
    typer.echo(json.dumps(report) if json_output else f"{describe_report(found)}\n{describe_verdict(verdict, reasons, layers, coarse)}")
    raise typer.Exit(verdict.exit_code)
