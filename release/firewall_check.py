"""The gate on the firewall: rows that judge must not be near rows that shaped anything, also where a policy let them stay."""

from __future__ import annotations

from pipeline.records import Check, Roles, Verdict

ALLOWED = "allowed"


def firewall_check(roles: Roles) -> Check:
    """PASS where no row of validation overlaps with a row of another role; the figure is how many do. Overlaps that were moved out are none.

    A count over all rows, so that it has no interval.
    """
    left = [finding for finding in roles.findings if finding.action == ALLOWED and "validation" in finding.roles]
    rows = {row for finding in left for role, row in zip(finding.roles, (finding.left, finding.right), strict=True) if role == "validation"}
    others = ", ".join(sorted({role for finding in left for role in finding.roles} - {"validation"}))
    count = float(len(rows))
    verdict = Verdict.FAIL if rows else Verdict.PASS
    evidence = f"{len(rows)} validation rows are near rows of {others}" if rows else "no overlap was left"
    decide = "data.firewall: {near: move}, or a waiver" if rows else ""
    return Check("firewall_clean", verdict, count, None, 0.0, "max", "rows", evidence, decide)
