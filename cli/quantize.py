"""`qwarm quantize MODEL --calibration DATA --scheme S --out FILE`: a Q/DQ model from an ONNX file and rows, without a pipeline."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibration.rounding.methods import EVERY, Calibration, Methods
from cli.options import existing, pairs_of, sizes_of
from cli.quantize_report import SHOWN, describe, report
from cli.quantize_search import searched
from cli.rows import Rows, read_rows
from pipeline.digests import sha256_file
from pipeline.errors import ConfigError, QuantizeError, RangeError
from pipeline.files import replacing
from pipeline.records import AxisRange, ExportedModel, QuantizedModel, Ranges
from pipeline.side_files import MAX_INSIDE, save_model
from pipeline.weights import Scratch

if TYPE_CHECKING:
    import onnx

MIN_ROWS, BATCH_ROWS, JUDGED_ROWS = 32, 32, 64
METHOD = "mse"
MIN_SQNR_DB = 10.0
"""Below, a tenth of the output's power is error: ranges that one row or one pixel set, and no accuracy that anybody wants."""
BATCH = AxisRange(1, 8, 16)
ROUNDINGS = ("compensated", "nearest")
Progress = Callable[[int, int, str], None]


@dataclasses.dataclass(frozen=True)
class Asked:
    """What the command line asks for. `search`: rows that judge; without them the first calibration rows do. `ranges`: taken before.

    `methods`: how weights are fitted on the calibration rows.
    `float_layers`: nodes or torch modules that stay in float. `max_drift`: beyond this error power over the output's, layers go back to float.
    """

    scheme: str
    method: str = METHOD
    min_rows: int = MIN_ROWS
    columns: Mapping[str, str] = dataclasses.field(default_factory=dict)
    preprocess: str | None = None
    quarantine: bool = False
    search: Path | None = None
    ranges: Path | None = None
    save_ranges: Path | None = None
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    min_sqnr_db: float = MIN_SQNR_DB
    methods: Methods = EVERY
    float_layers: tuple[str, ...] = ()
    max_drift: float | None = None


def quantize_file(
    path: Path, calibration: Path, out: Path, asked: Asked, progress: Progress = lambda *_: None, limit: int = MAX_INSIDE
) -> dict[str, Any]:
    """Write the Q/DQ model to `out`, whole or not at all, and say what was done, measured and noticed: what the stage `quantize` does, without one.

    Weights beyond `limit` bytes go to a file beside `out`. Everything that can be refused is refused before `out` exists: rows that are not
    finite, too few or all alike, ranges of another model or of other rows, an axis that the model does not follow, values that overflow on the
    way, a model of which the scheme quantizes nothing, a result that the lint of the scheme refuses, and one below `min_sqnr_db`. The result,
    and which way of rounding is better, is judged on `search` rows, else on calibration rows that are no outliers. Raises ConfigError,
    DataError, ModelError, RangeError, QuantizeError or Refused.
    """
    from calibration.dynamic import follow_batch
    from calibration.float_layers import resolve
    from calibration.onnx_model import as_exported, axis_ranges, describe, read_lean
    from calibration.quantizable import refuse_unquantizable
    from calibration.safe_names import name_nodes
    from calibration.variants import Job

    _check_asked(path, out, asked)
    scratch = Scratch()
    model = read_lean(path, scratch.path)
    found = describe(model)
    name_nodes(model)
    in_float = resolve(model, asked.float_layers, "--float-layer")
    _refuse_quantized(model, path)
    rows = _rows(calibration, found.inputs, asked)
    first = rows.first(JUDGED_ROWS)
    sizes = {
        axis: size for spec in found.inputs for axis, size in zip(spec.shape[1:], first[spec.name].shape[1:], strict=True) if isinstance(axis, str)
    }
    shapes = axis_ranges(found, {**sizes, **asked.sizes}, batch=BATCH)
    with tempfile.TemporaryDirectory(prefix="qwarm-quantize-") as workplace:
        work = Path(workplace)
        exported = as_exported(model, save_model(model, work / "model.onnx", limit), found, shapes)
        refuse_unquantizable(model, asked.scheme, exported)
        follow_batch(model, found, shapes, first)
        del model, scratch
        if len(rows.ids) < asked.min_rows:
            raise RangeError(
                "There are too few calibration rows", where=str(calibration), expected=f"at least {asked.min_rows}", got=str(len(rows.ids)),
                next=f"give more rows; --min-rows {len(rows.ids)} allows it, and the ranges will be what these few happen to reach",
            )  # fmt: skip
        ranges = _ranges(work / "model.onnx", exported, rows, asked, progress)
        outliers = {row for entry in ranges.outliers for row in entry.rows}
        judges = _rows(asked.search, found.inputs, asked) if asked.search else rows
        judged = judges.first(JUDGED_ROWS, () if asked.search or len(outliers) >= len(rows.ids) else outliers)
        fitting = Calibration(lambda: rows.batches(BATCH_ROWS), rows.ids, asked.methods)
        if asked.max_drift is None:
            record = _quantizer(asked.scheme)(
                work / "model.onnx", exported, ranges, work / "quantized", judged,
                calibration=fitting, float_layers=in_float, classes=_has_classes(exported), progress=progress, limit=limit,
            )  # fmt: skip
        else:
            job = Job(work / "model.onnx", exported, ranges, judged, fitting, limit)
            record = searched(asked.scheme, job, work / "quantized", asked.max_drift, in_float, classes=_has_classes(exported), progress=progress)
        _lint(work / "quantized" / "model.onnx", asked.scheme)
        _refuse_far(record, ranges, asked)
        sha256 = _write(work / "quantized" / "model.onnx", out, limit)
        if asked.save_ranges is not None:
            ranges.save(asked.save_ranges)
    return report(path, out, asked, rows, ranges, record, sha256)


def _write(path: Path, out: Path, limit: int) -> str:
    """The model at `path` as `out`, with a side file called after it where it needs one; its sha256. What `out` refers to is there before it."""
    from calibration.onnx_model import read_lean

    folder = path.parent / "out"
    folder.mkdir()
    scratch = Scratch()
    sha256 = save_model(read_lean(path, scratch.path), folder / out.name, limit)
    for name in sorted((file.name for file in folder.iterdir()), reverse=True):
        with replacing(out.with_name(name)) as temporary:
            shutil.copyfile(folder / name, temporary)
            (folder / name).unlink()
    return sha256


def _check_asked(path: Path, out: Path, asked: Asked) -> None:
    from calibration.lint import SCHEMES
    from calibration.range_methods import PARAMETERS

    for value, known, option in (
        (asked.scheme, SCHEMES, "--scheme"), (asked.method, tuple(PARAMETERS), "--method"), (asked.methods.rounding, ROUNDINGS, "--rounding"),
    ):  # fmt: skip
        if value not in known:
            raise ConfigError(f"Unknown value of {option}", where=option, expected=" or ".join(known), got=value, next=f"correct {option}")
    if asked.max_drift is not None and not 0 < asked.max_drift < 1:
        raise ConfigError(
            "The drift is no part of the output's power", where="--max-drift", expected="more than 0, less than 1", got=str(asked.max_drift),
            next="correct --max-drift",
        )  # fmt: skip
    if asked.min_rows < 1:
        raise ConfigError(
            "There must be a calibration row", where="--min-rows", expected="1 or more", got=str(asked.min_rows), next="correct --min-rows"
        )
    if out.is_dir() or out.resolve() == path.resolve():
        got = "a folder" if out.is_dir() else "the model itself"
        raise ConfigError("The output is no file of its own", where=f"--out {out}", expected="a file to write", got=got, next="give another --out")


def _refuse_quantized(model: onnx.ModelProto, path: Path) -> None:
    quantizers = [node.name for node in model.graph.node if node.op_type in {"QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul"}]
    if quantizers:
        more = f" and {len(quantizers) - SHOWN} more" if len(quantizers) > SHOWN else ""
        raise QuantizeError(
            "The model is quantized already", where=str(path), expected="a float model", got=f"node {', '.join(quantizers[:SHOWN])}{more}",
            next=f"give the float model that it was made from; `qwarm lint {path.name}` says what this one is",
        )  # fmt: skip


def _rows(path: Path, specs: Any, asked: Asked) -> Rows:
    return read_rows(path, specs, columns=asked.columns, preprocess=asked.preprocess, label=None, class_names=(), quarantine=asked.quarantine)


def _ranges(model: Path, exported: ExportedModel, rows: Rows, asked: Asked, progress: Progress) -> Ranges:
    from calibration.ranges import collect

    preprocess = sha256_file(asked.preprocess.partition(":")[0]) if asked.preprocess and ".py:" in asked.preprocess else ""
    if asked.ranges is None:
        return collect(
            model, exported, rows.batches(BATCH_ROWS), rows.ids, calibration_root=rows.root, preprocess_sha256=preprocess,
            min_rows=asked.min_rows, batch_rows=BATCH_ROWS, method=asked.method, progress=progress,
        )  # fmt: skip
    ranges = Ranges.load(asked.ranges, next="run `qwarm quantize` with --save-ranges")
    for name, expected, got in (
        ("model", exported.onnx_sha256, ranges.onnx_sha256),
        ("set of calibration rows", rows.root, ranges.calibration_root),
        ("preprocessing", preprocess, ranges.preprocess_sha256),
        ("method", asked.method, ranges.method),
    ):
        if expected != got:
            raise RangeError(
                f"The ranges were taken with another {name}", where=str(asked.ranges), expected=expected, got=got,
                next="leave out --ranges, to take them again",
            )  # fmt: skip
    return ranges


def _quantizer(scheme: str) -> Callable[..., QuantizedModel]:
    from stages.schemes import QUANTIZERS

    return QUANTIZERS[scheme]


def _has_classes(exported: ExportedModel) -> bool:
    """Whether the first output looks like class scores: (batch, two or more) floats."""
    spec = exported.outputs[0]
    return len(spec.shape) == 2 and spec.dtype == "float32" and isinstance(spec.shape[1], int) and spec.shape[1] > 1


def _lint(path: Path, scheme: str) -> None:
    """Hold the result to the rules of its scheme."""
    from calibration.lint import lint
    from calibration.onnx_model import axis_ranges, describe, read_model

    model = read_model(path)
    found = describe(model)
    sizes = {axis: 1 for axis in found.axes if axis != found.batch_axis}
    errors = [each for each in lint(model, scheme, found, axis_ranges(found, sizes, batch=BATCH))[0] if each.severity == "error"]
    if errors:
        first = errors[0]
        raise QuantizeError(
            f"The result is not fit for the scheme: {first.what}", where=first.node, expected=first.expected, got=first.got,
            next="leave the node in float with --float-layer, or quantize for the other scheme",
        )  # fmt: skip


def _refuse_far(record: QuantizedModel, ranges: Ranges, asked: Asked) -> None:
    if record.search_sqnr_db is None or record.search_sqnr_db >= asked.min_sqnr_db:
        return
    outliers = "; ".join(f"tensor {entry.tensor}: row {', '.join(entry.rows)} reaches {entry.magnitude:.4g}" for entry in ranges.outliers[:SHOWN])
    raise QuantizeError(
        "The quantized model is too far from the float model", where=f"{record.search_rows} rows, method {ranges.method}",
        expected=f"at least {asked.min_sqnr_db:g} dB", got=f"{record.search_sqnr_db:.1f} dB" + (f"; outlier rows: {outliers}" if outliers else ""),
        next="take another --method (mse and percentile leave outlier rows out), look at the rows that are named, or lower --min-sqnr-db",
    )  # fmt: skip


def quantize(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="a float ONNX file", callback=existing)],
    calibration: Annotated[Path, typer.Option(help=".npz with an array an input, or a data set", callback=existing)],
    scheme: Annotated[str, typer.Option(help="tensorrt or cpu")],
    out: Annotated[Path, typer.Option(help="the Q/DQ model to write")],
    method: Annotated[str, typer.Option(help="how a range follows from the values: max, percentile, entropy, mse")] = METHOD,
    min_rows: Annotated[int, typer.Option(help="fewer calibration rows are refused")] = MIN_ROWS,
    search: Annotated[Path | None, typer.Option(help="rows to judge the result on, apart from the calibration rows", callback=existing)] = None,
    column: Annotated[list[str] | None, typer.Option(metavar="NAME=COLUMN", help="what --preprocess receives, from which column")] = None,
    preprocess: Annotated[str | None, typer.Option(help="file.py:function, one raw row to the model's inputs")] = None,
    quarantine: Annotated[bool, typer.Option(help="leave out rows that are not finite, and list them")] = False,
    ranges: Annotated[Path | None, typer.Option(help="ranges that --save-ranges wrote, for the same model and rows", callback=existing)] = None,
    save_ranges: Annotated[Path | None, typer.Option(help="write the ranges")] = None,
    size: Annotated[list[str] | None, typer.Option(metavar="AXIS=N", help="size of a dynamic axis that the rows do not show")] = None,
    min_sqnr_db: Annotated[float, typer.Option(help="a result further from the float model is refused")] = MIN_SQNR_DB,
    rounding: Annotated[str, typer.Option(help="of weights: compensated (fitted on the calibration rows) or nearest")] = EVERY.rounding,
    splitting: Annotated[bool, typer.Option(help="let dead channels repeat those that rounding hurts most")] = EVERY.splitting,
    equalization: Annotated[bool, typer.Option(help="bring channels of a tensor nearer to one size")] = EVERY.equalization,
    adaptation: Annotated[bool, typer.Option(help="fit each layer to the float outputs, from the quantized inputs it meets")] = EVERY.adaptation,
    bias_correction: Annotated[bool, typer.Option(help="mend shifted means in the biases")] = EVERY.bias_correction,
    float_layer: Annotated[list[str] | None, typer.Option(metavar="NAME", help="a node or torch module that stays in float")] = None,
    max_drift: Annotated[float | None, typer.Option(help="error power over the output's (0.01 is 20 dB): beyond it layers go back to float")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="one JSON object on standard output")] = False,
) -> None:
    """Quantize an ONNX file to INT8 Q/DQ for a scheme. Refuses, and then writes nothing, what would give a silent failure."""
    from pipeline.progress import bar

    methods = Methods(splitting, equalization, adaptation, rounding, bias_correction)
    columns, sizes = pairs_of(column, "--column", "NAME=COLUMN"), sizes_of(size)
    asked = Asked(
        scheme, method, min_rows, columns, preprocess, quarantine, search, ranges, save_ranges, sizes, min_sqnr_db, methods,
        tuple(float_layer or ()), max_drift,
    )  # fmt: skip
    with bar(f"quantize: {model.name}") as progress:
        done = quantize_file(model, calibration, out, asked, progress)
    typer.echo(json.dumps(done) if json_output else describe(done))
