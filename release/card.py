"""The model card of a bundle (after Mitchell et al. 2019, "Model Cards for Model Reporting"): what it is, what was shown of it, what was not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.records import Evidence, ExportedModel, Roles
from release.summary import figure_text, interval_text
from release.tables import table

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
        parts = evidence.details.drift.slices if evidence.details else ()
        if parts:
            worst = sorted(parts, key=lambda part: part.engine_value)[:SHOWN]
            weak = [
                (f"{part.of} {part.value}", str(part.rows), f"{part.reference_value:.2%}", f"{part.engine_value:.2%}", f"{part.lost}, {part.gained}")
                for part in worst
            ]
            text += ["", "Weakest slices:", "", *table(("slice", "rows", "FP32", "INT8", "lost, gained"), weak)]
    text += ["", "## What was not shown", "", "Rows unlike those of the validation role, and hosts unlike those that measured, were not tried."]
    text += [f"- {target}: {reason}" for target, reason in sorted(left_out.items())]
    return "\n".join(text) + "\n"
