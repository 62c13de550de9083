"""`qwarm lint MODEL --scheme tensorrt|cpu`: is this Q/DQ legal, finite, fused, and really INT8 there? On any ONNX file, without a pipeline."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.lint_run import run_everywhere, unfit
from cli.options import existing, sizes_of
from pipeline.errors import ConfigError, Refused
from pipeline.records import AxisRange
from pipeline.weights import Scratch

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
    from calibration.onnx_model import axis_ranges, describe, read_lean
    from engines.onnx_file import probe

    if scheme not in SCHEMES:
        raise ConfigError(f"Unknown scheme {scheme!r}", where="--scheme", expected=" or ".join(SCHEMES), got=scheme)
    scratch = Scratch()
    model = read_lean(path, scratch.path)
    found = describe(model)
    shapes = axis_ranges(found, sizes, batch=BATCH)
    findings, placement = lint(model, scheme, found, shapes)
    runtimes: dict[str, Any] = {}
    if run and not any(finding.rule in {"invalid", "not-constant"} for finding in findings):
        rows = probe(found.inputs, shapes)
        stopped = unfit(model, found, shapes, rows)
        findings = (*stopped, *findings)
        if not any(finding.severity == "error" for finding in findings):
            ran, runtimes = run_everywhere(model, scheme, found, shapes, rows, placement.quantized_nodes)
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
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="an ONNX file with Q/DQ", callback=existing)],
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
