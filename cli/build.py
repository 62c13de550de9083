"""`qwarm build MODEL --target T --out DIR`: one engine from an ONNX file, by way of the cache store, without a pipeline."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

import engines
from cli.options import by_hand, existing, known_target, pairs_of, sizes_of
from engines.caches import Store
from engines.kept import build as build_engine
from engines.variance import variance
from pipeline.errors import ConfigError, TargetError
from pipeline.progress import bar
from pipeline.records import AxisRange, Engine
from pipeline.side_files import save_model
from pipeline.weights import Scratch

SHOWN = 5


def build_file(
    model: Path, target: str, out: Path, *, batch: AxisRange, sizes: Mapping[str, int] | None = None, settings: Mapping[str, Any] | None = None,
    store: Store | None, twice: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Build `out`/engine.json and the files it lists, and say what came of it: cache state, files, what executes in INT8, what differs in a rebuild.

    A model with QuantizeLinear nodes is built as int8, another as float32. Raises ConfigError, ModelError, Refused and TargetError.
    """
    from calibration.onnx_model import axis_ranges, describe, read_lean

    if reason := engines.backend(known_target(target)).unavailable(target):
        raise TargetError(
            f"The target {target} cannot be built here", where=target, expected="its runtime and its hardware", got=reason,
            next="build on a machine that has them; `qwarm doctor` says what can be built here",
        )  # fmt: skip
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not (out / "engine.json").is_file()):
        raise ConfigError(
            "The output is no folder of an engine", where=f"--out {out}", expected="a new folder, or an engine's", got="other files",
            next="give another --out, or remove what is there",
        )  # fmt: skip
    weights = Scratch()
    proto = read_lean(model, weights.path)
    found = describe(proto)
    precision = "int8" if any(node.op_type == "QuantizeLinear" for node in proto.graph.node) else "float32"
    platform = engines.platform_here(target)
    declared: dict[str, Any] = {
        "target": target, "precision": precision, "inputs": found.inputs, "outputs": found.outputs,
        "shapes": axis_ranges(found, sizes or {}, batch=batch), "platform": platform, "settings": settings or {},
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="qwarm-build-") as scratch:
        whole = Path(scratch) / "model.onnx"  # with its weights inside, up to 2 GiB, wherever the file keeps them
        save_model(proto, whole)
        del proto, weights
        with by_hand(f"--setting {', '.join(settings or ())}", "correct --setting"), bar(f"build {target}") as progress:
            engine, state = build_engine(
                whole, out, store=store, progress=progress, subject=f"{precision} engine of {target} from {model.resolve()}", **declared
            )
        report: dict[str, Any] = {
            "target": target, "precision": precision, "folder": str(out), "platform_key": platform.key, "recipe_sha256": engine.recipe_sha256,
            "cache": state.state.value, "cache_why": list(state.why), "cache_notes": list(state.notes), "settings": engine.recipe["settings"],
            "files": {name: file.to_json() for name, file in engine.files.items()}, "not_run": platform.unrunnable, **_executed(engine),
        }  # fmt: skip
        if twice:
            build_engine(whole, Path(scratch) / "again", store=None, **declared)
            report["rebuild"] = variance(out, Path(scratch) / "again").to_json()
    return report


def _executed(engine: Engine) -> dict[str, Any]:
    if engine.census is None:
        return {"int8_share": None, "in_float": {}, "conversions": {}}
    return {
        "int8_share": engine.census.int8_share,
        "in_float": {layer.name: f"{layer.precision} ({layer.why})" for layer in engine.census.layers if layer.precision != "INT8"},
        "conversions": dict(engine.census.conversions),
    }


def describe_report(report: Mapping[str, Any]) -> str:
    """The report in lines for a person."""
    size = sum(file["bytes"] for file in report["files"].values())
    why = "".join(f"; {line}" for line in (*report["cache_why"], *report["cache_notes"]))
    lines = [
        f"{report['folder']}: {report['precision']} engine of {report['target']}, {size / 1e6:.2f} MB in {len(report['files'])} files",
        f"cache: {report['cache']}{why}",
    ]
    if report["int8_share"] is None:
        lines.append(f"what it executes in is unknown until it runs: {report['not_run']}")
    else:
        slow = ", ".join(f"{node} in {precision}" for node, precision in list(report["in_float"].items())[:SHOWN])
        lines.append(f"{report['int8_share']:.1%} of multiply-accumulates in INT8" + (f"; not: {slow}" if slow else ""))
        if report["conversions"]:
            lines.append("layers that only convert: " + ", ".join(f"{count} {kind}" for kind, count in report["conversions"].items()))
    if (again := report.get("rebuild")) is not None:
        bytes_said = f"other bytes in {', '.join(again['differing_files'])}" if again["differing_files"] else "equal bytes"
        apart = [value for value in again["sqnr_db_by_output"].values() if value is not None]
        ran = f"outputs {min(apart):.1f} dB apart at the worst" if apart else "equal outputs"
        lines.append(f"built again: {bytes_said}; {ran if again['rows'] else 'not run'}")
    return "\n".join(lines)


def _value(name: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        got = " ".join(str(error).split())[:200]
        raise ConfigError(
            "A setting is not YAML", where=f"--setting {name}", expected="a value of YAML", got=got, next="correct --setting"
        ) from error


def build(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="an ONNX file, with Q/DQ for INT8", callback=existing)],
    target: Annotated[str, typer.Option(help=", ".join(engines.targets()))],
    out: Annotated[Path, typer.Option(metavar="DIR", help="folder of the engine")],
    batch: Annotated[str, typer.Option(metavar="MIN,OPT,MAX", help="sizes of the batch axis")] = "1,8,16",
    size: Annotated[list[str] | None, typer.Option(metavar="AXIS=N", help="size of a dynamic axis other than the batch; may be repeated")] = None,
    setting: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="as under targets: in params.yaml; may be repeated")] = None,
    cache: Annotated[bool, typer.Option(help="copy what was built before, and keep what is built")] = True,
    twice: Annotated[bool, typer.Option(help="build again and say what differs")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="one JSON object on standard output")] = False,
) -> None:
    """One engine with its caches. Exit 0, or the code of the one error."""
    numbers = batch.split(",")
    if len(numbers) != 3 or not all(number.isdecimal() and int(number) for number in numbers) or sorted(map(int, numbers)) != list(map(int, numbers)):
        raise ConfigError(
            "The batch sizes do not fit", where="--batch", expected="MIN,OPT,MAX, each 1 or more, in order", got=batch, next="correct --batch"
        )
    settings = {name: _value(name, text) for name, text in pairs_of(setting, "--setting", "NAME=VALUE").items()}
    report = build_file(
        model,
        target,
        out,
        batch=AxisRange(*map(int, numbers)),
        sizes=sizes_of(size),
        settings=settings,
        store=Store() if cache else None,
        twice=twice,
    )
    typer.echo(json.dumps(report) if json_output else describe_report(report))
