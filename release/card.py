"""The model card of a bundle (after Mitchell et al. 2019, "Model Cards for Model Reporting"): what it is, what was shown of it, what was not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.records import DriftReport, Evidence, ExportedModel, Roles, SliceDrift
from release.tables import table
from release.texts import figure_text, interval_text

SAYS_NOTHING = "The owner says nothing of intended use, limits and licence: name a Markdown file in `release.card` (params.yaml)."
SHOWN = 20


def card(
    name: str, version: str, *, owner: str | None, exported: ExportedModel, roles: Roles, evidences: Sequence[Evidence], left_out: Mapping[str, str]
) -> str:
    """Markdown. `owner`: what the model's owner wrote, taken as it is."""
    tensors = [("input", spec.name, spec.dtype, "x".join(map(str, spec.shape))) for spec in exported.inputs]
    tensors += [("output", spec.name, spec.dtype, "x".join(map(str, spec.shape))) for spec in exported.outputs]
    text = [f"# {name} {version}", "", "## Intended use, limits, licence", "", (owner or SAYS_NOTHING).strip(), "", "## Model", ""]
    text += [
        f"{exported.macs / 1e6:.1f} million multiply-accumulates a row, in INT8 as far as `int8_share` below says. Built by `{exported.factory}`.",
        "",
    ]
    text += table(("", "name", "type", "shape"), tensors)
    if roles.class_names:
        more = " ..." if len(roles.class_names) > SHOWN else ""
        text += ["", f"{len(roles.class_names)} classes: {', '.join(roles.class_names[:SHOWN])}{more}."]
    text += ["", "## Data", "", "No content and no group plays two roles.", ""]
    text += table(("role", "rows", "source"), [(role, str(len(entry.rows)), entry.source) for role, entry in roles.roles.items()])
    text += ["", "## What was shown"]
    for evidence in evidences:
        text += ["", f"### {evidence.target}", "", f"Measured {evidence.measured_at}.", ""]
        rows = [(check.name, check.verdict.name, figure_text(check), interval_text(check)) for check in evidence.checks]
        text += table(("check", "verdict", "figure", "interval"), rows)
        text += [f"\n**Waived**: {check.name}: {check.waived}" for check in evidence.checks if check.waived]
        text += _weakest(evidence.details.drift) if evidence.details else []
    text += ["", "## What was not shown", "", "Rows unlike those of the validation role, and hosts unlike those that measured, were not tried."]
    text += [f"- {target}: {reason}" for target, reason in sorted(left_out.items())]
    return "\n".join(text) + "\n"


def _weakest(drift: DriftReport) -> list[str]:
    parts = sorted((part for part in drift.slices if part.engine_value is not None), key=lambda part: part.engine_value or 0.0)[:SHOWN]
    if not parts:
        return []

    def flips(part: SliceDrift) -> str:
        return "-" if part.lost is None else f"{part.lost}, {part.gained}"

    value = "{:.4g}".format if drift.lost is None else "{:.2%}".format
    rows = [
        (
            part.name,
            str(part.rows),
            value(part.reference_value),
            value(part.engine_value),
            f"{part.lost}, {part.gained}" if part.lost is not None else "-",
        )
        for part in parts
    ]
    return ["", "Weakest slices:", "", *table(("slice", "rows", "FP32", "INT8", "lost, gained"), rows)]
