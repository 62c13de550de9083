"""`qwarm lint MODEL --scheme tensorrt|cpu`: is this Q/DQ legal, finite, fused, and really INT8 there? On any ONNX file, without a pipeline."""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.options import sizes_of
from pipeline.errors import ConfigError, ModelError, QwarmError, Refused
from pipeline.records import AxisRange, Census
from pipeline.tensors import Batch

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from calibration.exposing import Opener
    from calibration.lint_rules import Finding
    from calibration.onnx_model import Described

BATCH = AxisRange(1, 2, 4)
"""Sizes at which the model is built and run: two or more, because a declared axis proves nothing."""
SHOWN = 5


def lint_file(path: Path, scheme: str, sizes: Mapping[str, int], *, run: bool = True) -> dict[str, Any]:
    """Everything that is wrong with the Q/DQ model at `path` for `scheme`, and what each runtime of the scheme really executes.

    `sizes` gives dynamic axes other than the batch a size. The graph's rules come first; a model that passes them is built for every target of
    the scheme that this machine can build, and where it can be run, run on made-up rows and its census taken (`run=False` leaves that out). Raises
    ConfigError, ModelError and Refused for what is no model, a size that is missing, and side files that changed.
    """
    from calibration.lint import SCHEMES, lint
    from calibration.onnx_model import axis_ranges, describe, read_model
    from engines.onnx_file import probe

    if scheme not in SCHEMES:
        raise ConfigError(f"Unknown scheme {scheme!r}", where="--scheme", expected=" or ".join(SCHEMES), got=scheme)
    model = read_model(path)
    found = describe(model)
    shapes = axis_ranges(found, sizes, batch=BATCH)
    findings, placement = lint(model, scheme, found, shapes)
    runtimes: dict[str, Any] = {}
    if run and not any(finding.rule in {"invalid", "not-constant"} for finding in findings):
        rows = probe(found.inputs, shapes)
        stopped = _unfit(model, found, shapes, rows)
        findings = (*stopped, *findings)
        if not any(finding.severity == "error" for finding in findings):
            ran, runtimes = _run(model, scheme, found, shapes, rows, placement.quantized_nodes)
            findings = tuple(sorted((*findings, *ran), key=lambda finding: finding.severity != "error"))
    return {
        "model": str(path),
        "scheme": scheme,
        "verdict": "FAIL" if any(finding.severity == "error" for finding in findings) else "PASS",
        "findings": [finding.to_json() for finding in findings],
        "quantize_linear": placement.quantize_linear,
        "dequantize_linear": placement.dequantize_linear,
        "quantized_nodes": list(placement.quantized_nodes),
        "float_nodes": [node.to_json() for node in placement.float_nodes],
        "runtimes": runtimes,
    }


def _unfit(model: onnx.ModelProto, found: Described, shapes: dict[str, AxisRange], rows: Batch) -> list[Finding]:
    """A model that ONNX Runtime does not open, or that does not follow its batch axis, is fit for nothing further."""
    from calibration.dynamic import follow_batch
    from calibration.exposing import as_written
    from calibration.graph import nodes_that_fix

    try:
        with as_written(model) as run:
            run(rows)
    except ModelError as error:
        fixing = nodes_that_fix(model, str(found.batch_axis)) if error.what.startswith("ONNX Runtime cannot run") else []
        if not fixing:
            return [_of_error("unsupported", "error", error, "graph")]
    try:
        follow_batch(model, found, shapes, rows)
    except ModelError as error:
        return [_of_error("fixed-axis", "error", error, ", ".join(nodes_that_fix(model, str(found.batch_axis))) or "graph")]
    return []


def _run(
    model: onnx.ModelProto, scheme: str, found: Described, shapes: dict[str, AxisRange], rows: Batch, quantized: Sequence[str]
) -> tuple[list[Finding], dict[str, Any]]:
    """Findings of building and running, and by target what was seen there."""
    import engines
    from calibration.exposing import as_written

    findings: list[Finding] = []
    with as_written(model) as run:
        written = run(rows)
    runtimes: dict[str, Any] = {}
    failures: dict[str, QwarmError] = {}
    for target in engines.targets():
        backend = engines.backend(target)
        if scheme not in backend.SCHEMES[target]:
            continue
        if reason := backend.unavailable(target):
            runtimes[target] = {"not_built": reason}
            continue
        try:
            runtimes[target], parted = _on_target(target, backend.unrunnable(target), model, found, shapes, rows, written, quantized)
            findings += parted
        except QwarmError as error:
            failures[target] = error
            runtimes[target] = {"refused": error.got}
    could = [target for target, seen in runtimes.items() if "refused" not in seen and "not_built" not in seen]
    for target, failure in failures.items():
        only = target.startswith("tensorrt") or not could
        findings.append(_of_error("build", "error" if only else "warning", failure, target))
    if "onnxruntime-cpu" in runtimes:
        findings += _by_default(model, rows, written)
    return findings + _in_float(runtimes, quantized), runtimes


def _on_target(
    target: str, unrunnable: str | None, model: onnx.ModelProto, found: Described, shapes: dict[str, AxisRange], rows: Batch,
    written: Mapping[str, np.ndarray], quantized: Sequence[str],
) -> tuple[dict[str, Any], list[Finding]]:  # fmt: skip
    """What a target executes in and how far it is from the graph as written; a finding where that is further than rounding explains."""
    from calibration.agree import decibel
    from engines.once import build_once, deployed, opened_once

    content = model.SerializeToString()
    if unrunnable:
        with tempfile.TemporaryDirectory(prefix="qwarm-lint-") as scratch:
            build_once(content, target, inputs=found.inputs, outputs=found.outputs, shapes=shapes, folder=Path(scratch))
        return {"not_run": unrunnable}, []
    with opened_once(content, target, inputs=found.inputs, outputs=found.outputs, shapes=shapes) as session:
        census, got = session.engine.census, session.run(rows)
    decibels = {name: decibel(written[name], array) for name, array in got.items()}
    what = f"{target} does not compute what the graph says"
    findings = _parted(model, rows, decibels, deployed(target, found.inputs, shapes), ("runtimes-part", "error", what))
    return {"sqnr_db_to_as_written": decibels} | (_seen(census, quantized) if census else {}), findings


def _by_default(model: onnx.ModelProto, rows: Batch, written: Mapping[str, np.ndarray]) -> list[Finding]:
    """Whether ONNX Runtime's default options break the model: the target's own options may be others, and a file goes anywhere."""
    from calibration.agree import decibel
    from calibration.exposing import by_default

    with by_default(model) as run:
        decibels = {name: decibel(written[name], array) for name, array in run(rows).items()}
    what = "ONNX Runtime's default options break the model; disabled_optimizers=['WeightBiasQuantization'], which the target sets, may not"
    return _parted(model, rows, decibels, by_default, ("default-options", "warning", what))


def _parted(model: onnx.ModelProto, rows: Batch, decibels: Mapping[str, float | None], opened: Opener, said: tuple[str, str, str]) -> list[Finding]:
    """A finding where a runtime is further from the graph as written than rounding explains, at the node where they part."""
    from calibration.agree import BOUND_DB, EQUAL_DB, part
    from calibration.exposing import as_written, cuts
    from calibration.lint_rules import Finding

    worst = min((value for value in decibels.values() if value is not None), default=EQUAL_DB)
    if worst >= BOUND_DB:
        return []
    parted = part(model, {name: name for name in cuts(model)}, rows, opened, as_written)
    node = f"{parted.node} ({parted.operator})" if parted else "graph"
    rule, severity, what = said
    return [Finding(rule, severity, node, (), what, f"at least {BOUND_DB:g} dB on made-up rows", f"{worst:.1f} dB")]


def _seen(census: Census, quantized: Sequence[str]) -> dict[str, Any]:
    precisions = {layer.name: layer.precision for layer in census.layers}
    return {
        "int8_share": census.int8_share,
        "in_float": {node: precisions.get(node, "UNCLAIMED") for node in quantized if precisions.get(node) != "INT8"},
    }


def _in_float(runtimes: Mapping[str, Any], quantized: Sequence[str]) -> list[Finding]:
    """A node between Q/DQ that runs in float is slower than without them: an error where no runtime of the scheme that was asked runs it in INT8."""
    from calibration.lint_rules import Finding

    asked = {target: seen["in_float"] for target, seen in runtimes.items() if "in_float" in seen}
    findings = []
    for node in quantized:
        slow = {target: floats[node] for target, floats in asked.items() if node in floats}
        if not slow:
            continue
        everywhere = len(slow) == len(asked)
        got = ", ".join(f"{precision} in {target}" for target, precision in slow.items())
        what = "A quantized node runs in float" + ("" if everywhere else " in one runtime of the scheme")
        findings.append(Finding("runs-in-float", "error" if everywhere else "warning", node, (), what, "an INT8 kernel", got))
    return findings


def _of_error(rule: str, severity: str, error: QwarmError, node: str) -> Finding:
    from calibration.lint_rules import Finding

    return Finding(rule, severity, node, (), error.what, error.expected, f"{error.where}: {error.got}")


def refusal(report: Mapping[str, Any]) -> Refused:
    """The first error of a failing report, as the one error that the command ends with."""
    errors = [finding for finding in report["findings"] if finding["severity"] == "error"]
    first, more = errors[0], f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    model, scheme = Path(report["model"]).name, report["scheme"]
    again = f"quantize the float model again: `qwarm quantize FLOAT.onnx --calibration DATA --scheme {scheme} --out {model}`"
    if first["rule"] in {"codes", "int32-bias"} and scheme == "tensorrt":
        again += f"; or serve it on a CPU, if `qwarm lint {model} --scheme cpu` passes"
    ways = {
        "fixed-axis": "remove the fixed size from the model, or export it with a static batch",
        "unsupported": "replace the operator that is named, or export the model without it",
        "build": "replace the operator that is named, or serve the other targets of the scheme",
    }
    again = ways.get(first["rule"], again)
    where = f"{report['model']}: node {first['node']}" + (f", channel {', '.join(map(str, first['channels'][:SHOWN]))}" if first["channels"] else "")
    return Refused(f"{first['what']}{more}", where=where, expected=first["expected"], got=first["got"], next=again)


def describe_report(report: Mapping[str, Any]) -> str:
    """The report in lines for a person: verdict, counts, findings, and what each runtime executes."""
    lines = [
        f"{report['verdict']}: {report['model']} for the scheme {report['scheme']}: {report['quantize_linear']} QuantizeLinear, "
        f"{report['dequantize_linear']} DequantizeLinear, {len(report['quantized_nodes'])} nodes quantized, {len(report['float_nodes'])} in float"
    ]
    by_rule = Counter(finding["rule"] for finding in report["findings"])
    told: Counter[str] = Counter()
    for finding in report["findings"]:
        rule = finding["rule"]
        told[rule] += 1
        if told[rule] > SHOWN:
            continue
        channels = f", channels {finding['channels'][:SHOWN]}" if finding["channels"] else ""
        more = f" (and {by_rule[rule] - SHOWN} more)" if told[rule] == SHOWN < by_rule[rule] else ""
        said = f"{finding['what']}; expected {finding['expected']}; got {finding['got']}"
        lines.append(f"{finding['severity']} {rule}: node {finding['node']}{channels}: {said}{more}")
    for target, seen in report["runtimes"].items():
        if "int8_share" in seen:
            slow = ", ".join(f"{node} in {precision}" for node, precision in list(seen["in_float"].items())[:SHOWN])
            lines.append(
                f"{target}: {seen['int8_share']:.1%} of multiply-accumulates in INT8" + (f"; quantized, and run in float: {slow}" if slow else "")
            )
        else:
            key, reason = next(iter(seen.items()))
            lines.append(f"{target}: {key.replace('_', ' ')}: {reason}")
    lines += [f"in float: {node['node']} ({node['operator']}): {node['reason']}" for node in report["float_nodes"][:SHOWN]]
    return "\n".join(lines)


def lint(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="an ONNX file with Q/DQ")],
    scheme: Annotated[str, typer.Option(help="tensorrt or cpu")],
    size: Annotated[list[str] | None, typer.Option(metavar="AXIS=N", help="size of a dynamic axis other than the batch; may be repeated")] = None,
    run: Annotated[bool, typer.Option(help="also build and run it where this machine can")] = True,
    json_output: Annotated[bool, typer.Option("--json", help="one JSON object on standard output")] = False,
) -> None:
    """Is this Q/DQ legal, finite, fused and really INT8 for the scheme? Exit 0, or 3 naming node and rule."""
    report = lint_file(model, scheme, sizes_of(size), run=run)
    error = refusal(report) if report["verdict"] == "FAIL" else None
    typer.echo(json.dumps(report | (error.as_json() if error else {})) if json_output else describe_report(report))
    if error:
        print(f"qwarm: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code)
