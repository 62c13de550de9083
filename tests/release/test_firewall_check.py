"""The gate on the firewall: overlaps that were left with the rows that judge."""

from __future__ import annotations

import pytest

from pipeline.records import Finding, Roles, RowSource, Verdict
from release.firewall_check import firewall_check


def roles(*findings: Finding) -> Roles:
    return Roles({"main": RowSource("rows", "e" * 64, 9)}, "f" * 64, 0, (), findings, {}, (), {})


def near(left: str, right: str, pair: tuple[str, str], action: str = "allowed") -> Finding:
    return Finding(left, right, "near", 0.1, pair, action)


@pytest.mark.parametrize(
    "findings",
    [(), (near("1", "2", ("train", "validation"), "moved"),), (near("1", "2", ("train", "calibration")),), (near("1", "2", ("", "")),)],
)
def test_what_was_moved_or_does_not_judge_is_clean(findings: tuple[Finding, ...]) -> None:
    assert firewall_check(roles(*findings)).verdict is Verdict.PASS


def test_each_validation_row_counts_once() -> None:
    found = firewall_check(
        roles(near("1", "7", ("train", "validation")), near("7", "3", ("validation", "calibration")), near("8", "9", ("validation", "train")))
    )
    assert (found.verdict, found.figure, found.limit) == (Verdict.FAIL, 2.0, 0.0)
    assert "calibration" in found.evidence
    assert "train" in found.evidence
