"""The report's section on data: roles, what they shared, unhealthy rows, how far calibration is from validation, what a leak would cost."""

from __future__ import annotations

from collections import Counter

from pipeline.records import Claim, LeakCost, Roles
from release.tables import table

SHOWN = 20
"""Findings and rows that are listed; the rest is counted."""
PAGE = "../firewall/findings.html"


def data_section(roles: Roles, cost: LeakCost | None) -> list[str]:
    """Markdown lines."""
    text = ["## Data roles", "", "No content and no group plays two roles; each root is the Merkle tree hash of the role's rows.", ""]
    rows = []
    for name, role in roles.roles.items():
        labels = ", ".join(f"{label}: {count}" for label, count in list(role.labels.items())[:SHOWN]) + (" ..." if len(role.labels) > SHOWN else "")
        rows.append((name, str(len(role.rows)), role.source, labels, f"`{role.merkle_root[:16]}`"))
    text += table(("role", "rows", "source", "labels", "Merkle root"), rows)
    leak = ["### What a leak would have cost", "", *cost_lines(cost), ""] if cost else []
    return [*text, "", *_findings(roles), *_health(roles), *_shifts(roles), *leak]


def _findings(roles: Roles) -> list[str]:
    total = sum(source.rows for source in roles.sources.values())
    repeats = sum(finding.roles == ("", "") for finding in roles.findings)
    between = [finding for finding in roles.findings if finding.roles != ("", "")]
    text = [f"{repeats} repeated rows of {total} were moved out before roles were drawn."]
    if not between:
        return [*text, "No row of one role is near a row of another.", ""]
    kinds = Counter((finding.kind, finding.action) for finding in between)
    text += [
        ", ".join(f"{count} {kind} {action}" for (kind, action), count in sorted(kinds.items())) + f"; side by side in [findings.html]({PAGE}).", "",
        *table(
            ("kind", "distance", "left", "right", "action"),
            [(f.kind, f"{f.distance:.3g}", f"{f.roles[0]} {f.left}", f"{f.roles[1]} {f.right}", f.action) for f in between[:SHOWN]],
        ),
    ]  # fmt: skip
    return [*text, *([f"and {len(between) - SHOWN} more"] if len(between) > SHOWN else []), ""]


def _health(roles: Roles) -> list[str]:
    if not roles.health:
        return ["Every row was healthy and of one form.", ""]
    rows = [
        (source, kind, str(anomaly.count), anomaly.action, ", ".join(list(anomaly.rows)[:5]) + (" ..." if anomaly.count > 5 else ""))
        for source, found in roles.health.items()
        for kind, anomaly in sorted(found.items())
    ]
    return [*table(("source", "rows that are", "count", "action", "which"), rows), ""]


def _shifts(roles: Roles) -> list[str]:
    if not roles.shifts:
        return []
    rows = [(s.of, s.statistic, f"{s.distance:.3f}", "" if s.p_value is None else f"{s.p_value:.3g}") for s in roles.shifts]
    return ["Calibration against validation (0 alike, 1 apart):", "", *table(("of", "statistic", "distance", "p"), rows), ""]


def cost_lines(cost: LeakCost) -> list[str]:
    """The sentence, and the four claims as a table."""

    def share(claim: Claim) -> str:
        if claim.changed is None or claim.changed_interval is None:
            return ""
        return f"{100 * claim.changed:.2f} % ({100 * claim.changed_interval.low:.2f} to {100 * claim.changed_interval.high:.2f})"

    def decibel(claim: Claim) -> str:
        if claim.sqnr_db is None or claim.sqnr_interval is None:
            return "no difference"
        return f"{claim.sqnr_db:.2f} dB ({claim.sqnr_interval.low:.2f} to {claim.sqnr_interval.high:.2f})"

    rows = [(claim.calibrated_on, claim.judged_on, str(claim.rows), decibel(claim), share(claim)) for claim in cost.claims]
    header = ("calibrated on", "judged on", "rows", "SQNR (90 %)", "rows whose class changes (90 %)")
    return [cost.sentence, "", *table(header, rows)]
