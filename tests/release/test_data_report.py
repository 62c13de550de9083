"""The report's section on data says what the manifest holds, in words that a release manager reads."""

from __future__ import annotations

import dataclasses

from pipeline.records import Anomaly, Claim, Finding, Interval, LeakCost, Role, Roles, RowSource, Shift
from release.data_report import data_section

ROLE = Role("main", ("1", "2"), ("a" * 64, "b" * 64), "c" * 64, {"cat": 1, "dog": 1}, "d" * 64, ())
ROLES = Roles({"main": RowSource("rows.parquet", "d" * 64, 7)}, "e" * 64, 0, ("cat", "dog"), (), {}, (), {"calibration": ROLE, "validation": ROLE})


def section(roles: Roles, cost: LeakCost | None = None) -> str:
    return "\n".join(data_section(roles, cost))


def test_clean_data_is_said_to_be_clean() -> None:
    text = section(ROLES)
    assert "0 repeated rows of 7 were moved out" in text
    assert "No row of one role is near a row of another." in text
    assert "Every row was healthy" in text
    assert "| calibration | 2 | main | cat: 1, dog: 1 | `cccccccccccccccc` |" in text
    assert "leak" not in text


def test_findings_health_and_shifts_are_listed() -> None:
    near = Finding("3", "4", "near", 0.0213, ("calibration", "validation"), "moved")
    repeat = Finding("5", "6", "exact", 0.0, ("", ""), "moved")
    anomalies = {"main": {"cmyk": Anomaly("accept", 2, {"1": "", "2": ""})}}
    text = section(dataclasses.replace(ROLES, findings=(repeat, near), health=anomalies, shifts=(Shift("labels", "total variation", 0.25, None),)))
    assert "1 repeated rows of 7 were moved out" in text
    assert "| near | 0.0213 | calibration 3 | validation 4 | moved |" in text
    assert "findings.html" in text
    assert "| main | cmyk | 2 | accept | 1, 2 |" in text
    assert "| labels | total variation | 0.250 |  |" in text


def test_the_cost_of_a_leak_is_one_sentence_and_four_claims() -> None:
    span = Interval(1.0, 3.0, 0.95)
    claims = tuple(Claim(side, judged, 9, 20.0, span, 0.01, span) for side in ("clean", "leaked") for judged in ("clean", "leaked"))
    cost = LeakCost("cpu", "max", 9, "p" * 64, "a" * 64, "b" * 64, claims, 2.0, span, None, "A leak would have flattered.")
    text = section(ROLES, cost)
    assert "A leak would have flattered." in text
    assert text.count("20.00 dB (1.00 to 3.00)") == 4
