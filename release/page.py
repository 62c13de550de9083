"""report.html: one file that opens offline. The verdict in one sentence, then the evidence behind it; what is missing says why."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.records import Choice, DriftReport, Evidence, ExportedModel, LeakCost, QuantizedModel, Roles
from release import charts, compatibility, warmup_plots
from release.agreement import loss_text
from release.changes import Change
from release.data_report import data_section
from release.report import headline
from release.summary import lines
from release.texts import figure_text, interval_text, limit_text

TEMPLATE = Path(__file__).with_name("report.html.jinja")
Inputs = Mapping[int, Mapping[str, list[str]]]
"""By place among the validation rows: what `release.thumbnail.shown` makes of the row."""


def render(
    *,
    name: str,
    version: str,
    evidences: Sequence[Evidence],
    exported: ExportedModel,
    quantized: Sequence[QuantizedModel],
    searches: Mapping[str, Mapping[str, float]],
    roles: Roles,
    cost: LeakCost | None,
    inputs: Inputs | str,
    since: tuple[str, Sequence[Change]] | None,
    made_from: Mapping[str, str],
    now: datetime.datetime,
    key_fields: Mapping[str, Mapping[str, str]] | None = None,
    choices: Sequence[Choice] = (),
    signers: Mapping[str, str | None] | None = None,
) -> str:
    """The page's text. `searches`: by scheme, SQNR gained by each layer alone in float; `inputs`: the rows, or why they cannot be shown.
    `signers`: by target, the runner that signed its evidence, None for an unsigned one.

    `since`: the previous release and what differs, None where there is none. `made_from`: label and digest or version of what reproduces this.
    """
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    refused = any(evidence.refuses for evidence in evidences) or not any(evidence.ships for evidence in evidences)
    return page.render(
        title=f"{name} {version}",
        verdict=_html(headline(name, version, evidences)),
        state="refused" if refused else "partly" if any(not evidence.ships for evidence in evidences) else "ships",
        targets=[{**_target(evidence, inputs, now), "signer": (signers or {}).get(evidence.target)} for evidence in evidences],
        waived=[(evidence.target, check.name, check.waived) for evidence in evidences for check in evidence.checks if check.waived],
        schemes=[
            {**_scheme(model, searches.get(model.scheme)), "choices": [choice for choice in choices if choice.scheme == model.scheme]}
            for model in quantized
        ],
        data=_html("\n".join(data_section(roles, cost))),
        model=exported,
        parity=exported.parity,
        since=since,
        made_from=made_from,
        compatibility=(compatibility.HEADER, compatibility.rows(evidences, key_fields or {})),
        now=now.strftime("%Y-%m-%d %H:%M UTC"),
    )


def _target(evidence: Evidence, inputs: Inputs | str, now: datetime.datetime) -> dict[str, Any]:
    details, figures = evidence.details, evidence.figures
    measured = datetime.datetime.fromisoformat(evidence.measured_at)
    checks = [
        {"name": check.name, "verdict": check.verdict.name, "note": "excused" if check.excused else "waived" if check.waived else "",
         "figure": figure_text(check), "interval": interval_text(check), "limit": limit_text(check), "evidence": check.evidence,
         "decide": check.decide}
        for check in evidence.checks
    ]  # fmt: skip
    found: dict[str, Any] = {
        "name": evidence.target,
        "verdict": evidence.verdict.name,
        "reason": evidence.reason,
        "required": evidence.required,
        "ships": evidence.ships,
        "checks": checks,
        "lines": lines(evidence) if figures else [],
        "glance": _glance(figures),
        "machine": evidence.machine if figures else {},
        "measured": f"{measured:%Y-%m-%d %H:%M}, {age(now - measured)}" if figures else "never",
        "loss": loss_text(evidence.attribution) if evidence.attribution else "",
        "drift": "",
        "drawings": [],
        "worst": [],
        "padding": (),
        "absent": "" if details else f"Nothing is drawn of {evidence.target}: {evidence.reason}",
    }
    if details is not None:
        drawings = [
            ("Drift", "dot: observed; line: two one-sided 95 % bounds; dashed: the limits, red for all rows, amber for a slice",
             charts.drift(details.drift, evidence.checks)),
            ("Latency", "median over fresh processes, with the 10th to 90th percentile", charts.latency(details.bands)),
            ("Cold start", "medians over fresh processes; cold runs no warm-up plan", charts.cold_start(details.bands)),
            ("Warm-up steps",
             "the first request that loses most where a step is left out (rounds: all at once): green with it, brown without; medians over processes",
             warmup_plots.gains(details.gains)),
            ("INT8 coverage", "what the runtime really executes, by layer", charts.coverage(details.census) if details.census else ""),
        ]  # fmt: skip
        found["drawings"] = [{"title": title, "note": note, "svg": svg} for title, note, svg in drawings]
        found["worst"] = [
            {"row": row, "input": inputs.get(row.place) if not isinstance(inputs, str) else None} for row in details.drift.worst
        ]  # fmt: skip
        found["padding"] = details.padding
        found["drift"] = _drift_line(details.drift)
        found["no_inputs"] = inputs if isinstance(inputs, str) else ""
    return found


def _glance(figures: Mapping[str, float]) -> list[str]:
    """Both accuracies, the speed-up, the steady p50 and the first request in the fewest words."""
    accuracy = "{float_metric:.4g}, {int8_metric:.4g}" if "float_metric" in figures else "{float_accuracy:.2%}, {int8_accuracy:.2%}"
    found = []
    for text in (accuracy, "{speedup:.2f}x", "{steady_p50_ms:.3g} ms", "{warm_first_over_p50:.2f}x p50"):
        try:
            found.append(text.format(**figures))
        except KeyError:
            found.append("-")
    return found


def _drift_line(report: DriftReport) -> str:
    """Figures that have no drawing of their own, in one line."""

    def decibels(value: float | None) -> str:
        return "equal" if value is None else f"{value:.1f} dB"

    parts = [f"SQNR {decibels(report.sqnr_db)}"]
    parts += [f"agreement {report.agreement:.2%}"] if report.agreement is not None else []
    parts += [f"KL divergence {report.kl_divergence:.3g} nats"] if report.kl_divergence is not None else []
    known = [(value, place) for place, value in enumerate(report.channel_sqnr_db) if value is not None]
    parts += [f"worst output channel {min(known)[1]} at {decibels(min(known)[0])}"] if len(known) > 1 else []
    if report.batch_sqnr_db and set(report.batch_sqnr_db.values()) == {None}:
        parts += [f"the same answers in batches of {', '.join(report.batch_sqnr_db)} as in the largest"]
    else:
        parts += [f"answers in batches of {size} against the largest: {decibels(value)}" for size, value in report.batch_sqnr_db.items()]
    return "; ".join(parts)


def _scheme(model: QuantizedModel, gains: Mapping[str, float] | None) -> dict[str, Any]:
    why = "" if gains else "No sensitivity: no search ran for this scheme (quantize.max_drift), or it needed no layer in float."
    return {"model": model, "sensitivity": charts.sensitivity(gains or {}), "absent": why}


def age(passed: datetime.timedelta) -> str:
    """How old a measurement is, in the largest fitting unit."""
    hours = passed.total_seconds() / 3600
    if hours < 1:
        return "less than an hour old"
    number, unit = (hours / 24, "day") if hours >= 48 else (hours, "hour")
    return f"{int(number)} {unit}{'' if int(number) == 1 else 's'} old"


def _html(markdown: str) -> str:
    """Markdown of ours to HTML, everything in it escaped; links to files beside the report stay."""
    from markdown_it import MarkdownIt
    from markupsafe import Markup

    text = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    return Markup(re.sub(r"<(/?)h3>", r"<\1h4>", re.sub(r"<(/?)h2>", r"<\1h3>", text)))
