"""report.md for a pull request and metrics.json for `dvc metrics diff`, from the evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.records import Choice, Evidence, ExportedModel, LeakCost, QuantizedModel, Roles
from release import compatibility
from release.agreement import loss_text
from release.data_report import data_section
from release.summary import lines
from release.tables import table
from release.texts import figure_text, interval_text, limit_text


def headline(name: str, version: str, evidences: Sequence[Evidence]) -> str:
    """The verdict in one sentence."""
    refusing = [evidence.target for evidence in evidences if evidence.refuses]
    shipping = [evidence.target for evidence in evidences if evidence.ships]
    left = [evidence.target for evidence in evidences if not evidence.ships]
    if refusing:
        return f"**{name} {version} is refused**: {', '.join(refusing)} refuses it."
    if not shipping:
        return f"**{name} {version} is refused**: no target ships."
    parts = [f"**{name} {version} may ship** for {', '.join(shipping)}"]
    parts += [f"left out: {', '.join(left)}"] if left else []
    undecided = {evidence.target: sum(check.excused for check in evidence.checks) for evidence in evidences if evidence.ships}
    said = [f"{count} check{'s' if count > 1 else ''} of {target}" for target, count in undecided.items() if count]
    parts += [f"not decided on a busy machine: {', '.join(said)}"] if said else []
    return "; ".join(parts) + "."


def target_section(evidence: Evidence) -> list[str]:
    """One target: verdict, figures, checks, and what would decide the undecided ones."""
    text = [f"## {evidence.target}: {evidence.verdict.name}", "", evidence.reason, ""]
    if evidence.figures:
        text += [*table(("figure", "value"), lines(evidence)), ""]
    rows = [
        (check.name, check.verdict.name + (" (excused)" if check.excused else ""), figure_text(check), interval_text(check),
         limit_text(check), check.evidence)
        for check in evidence.checks
    ]  # fmt: skip
    text += table(("check", "verdict", "figure", "interval", "limit", "evidence"), rows)
    deciding = [f"- `{check.name}`: {check.decide}" for check in evidence.checks if check.decide]
    if deciding:
        text += ["", "What would decide:", *deciding]
    if evidence.attribution is not None:
        text += ["", loss_text(evidence.attribution)]
    if evidence.details is not None and evidence.details.padding:
        costs = [
            (f"{cost.axis} {cost.size}", str(cost.padded_to), f"{cost.padded_ms:.3g} ms", f"{cost.own_ms:.3g} ms", f"{cost.own_first_ms:.3g} ms")
            for cost in evidence.details.padding
        ]
        text += ["", *table(("request", "padded to", "padded", "at its own size", "its first request there"), costs)]
    machine = ", ".join(f"{key} {value}" for key, value in evidence.machine.items())
    return [*text, "", f"Measured {evidence.measured_at} on: {machine}.", ""]


def markdown(
    name: str,
    version: str,
    evidences: Sequence[Evidence],
    exported: ExportedModel,
    quantized: Sequence[QuantizedModel],
    roles: Roles,
    cost: LeakCost | None = None,
    choices: Sequence[Choice] = (),
    key_fields: Mapping[str, Mapping[str, str]] | None = None,
) -> str:
    """The whole report."""
    text = [f"# {name} {version}", "", headline(name, version, evidences), ""]
    for evidence in evidences:
        text += target_section(evidence)
    text += data_section(roles, cost)
    text += [
        "## Model",
        "",
        f"{exported.macs / 1e6:.1f} million multiply-accumulates a row, opset {exported.opset}, exported by {exported.exporter}.",
        "",
    ]
    rows = [
        (point.hop, ", ".join(f"{axis} {size}" for axis, size in point.sizes.items()), point.output,
         f"{point.max_absolute:.3g}", f"{point.max_relative:.3g}", "equal" if point.sqnr_db is None else f"{point.sqnr_db:.1f}")
        for point in exported.parity
    ]  # fmt: skip
    text += table(("hop", "sizes", "output", "absolute", "relative", "SQNR dB"), rows)
    for model in quantized:
        text += [
            "",
            f"Scheme `{model.scheme}` by {model.quantizer}: {model.quantize_linear} QuantizeLinear, {model.dequantize_linear} DequantizeLinear.",
        ]
        text += [f"- all-zero channels of `{weight}`: {', '.join(map(str, channels))}" for weight, channels in model.zero_channels.items()]
        text += [f"- chosen: {choice.chosen}: {choice.why}" for choice in choices if choice.scheme == model.scheme]
        text += [f"- left in float: {line}" for line in model.left_in_float]
    text += ["", *compatibility.section(evidences, key_fields or {})]
    return "\n".join([*text, "", "Reproduce: `make repro` (or `dvc repro`) in this repository; `qwarm stage summary` prints the table again.", ""])


def metrics(evidences: Sequence[Evidence]) -> dict[str, Any]:
    """Figures and verdicts by target, as `dvc metrics show` and `dvc metrics diff` read them."""
    return {
        evidence.target: {
            "verdict": evidence.verdict.name,
            "ships": evidence.ships,
            **{name: float(f"{figure:.6g}") for name, figure in evidence.figures.items()},
        }
        for evidence in evidences
    }
