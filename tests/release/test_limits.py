"""The gates on slices and on what a host must give: each verdict at its limit, with multiplicity."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import GatesConfig
from pipeline.loading import load_object
from pipeline.records import DriftReport, SliceDrift, Trial, Validation, Verdict
from release import budgets, paired
from release.bands import REQUESTS, bands
from release.slice_check import slice_check

ROOT = Path(__file__).resolve().parents[2]
drift: Callable[..., DriftReport] = load_object("tests/release/measured.py:drift", ROOT)
validation: Callable[..., Validation] = load_object("tests/release/measured.py:validation", ROOT)
LIMITS: GatesConfig = load_object("tests/release/measured.py:LIMITS", ROOT)


def with_slices(*parts: tuple[int, int, int]) -> DriftReport:
    """(rows, lost, gained) of each class."""
    import dataclasses

    found = [SliceDrift("class", str(place), rows, 0.9, 0.9, lost, gained, 1.0) for place, (rows, lost, gained) in enumerate(parts)]
    return dataclasses.replace(drift(), slices=tuple(found))


@pytest.mark.parametrize(
    ("parts", "verdict", "shown"),
    [
        ([(1000, 0, 0)] * 10, Verdict.PASS, "class 0"),
        ([(1000, 0, 0)] * 9 + [(1000, 30, 2)], Verdict.PASS, "class 9"),
        ([(1000, 0, 0)] * 9 + [(1000, 90, 0)], Verdict.FAIL, "class 9"),
        ([(1000, 0, 0)] * 9 + [(10, 0, 0)], Verdict.UNDECIDED, "class 9"),  # too few rows to show it, however good
    ],
)
def test_every_slice_must_hold(parts: list[tuple[int, int, int]], verdict: Verdict, shown: str) -> None:
    found = slice_check(with_slices(*parts), 0.05)
    assert (found.verdict, found.evidence.split(":")[0]) == (verdict, shown)
    assert bool(found.decide) == (verdict is Verdict.UNDECIDED)


def test_one_of_many_slices_fails_only_after_correction_for_their_number() -> None:
    lost = next(n for n in range(200) if -paired.upper_bound(0, n, 300, 0.95) > 0.05)  # beyond the limit, were it the only slice
    assert slice_check(with_slices((300, lost, 0)), 0.05).verdict is Verdict.FAIL
    assert slice_check(with_slices((300, lost, 0), *[(300, 0, 0)] * 99), 0.05).verdict is Verdict.UNDECIDED


def test_no_slice_is_not_measured() -> None:
    assert slice_check(drift(), 0.05).verdict is Verdict.NOT_MEASURED


@pytest.mark.parametrize(
    ("limit", "name", "verdict"),
    [
        ({"max_ready_ms": 300.0}, "ready", Verdict.PASS),
        ({"max_ready_ms": 299.0}, "ready", Verdict.FAIL),
        ({"max_peak_rss_mb": 80.0}, "peak_rss", Verdict.PASS),
        ({"max_peak_rss_mb": 79.0}, "peak_rss", Verdict.FAIL),
        ({"max_engine_mb": 2.5}, "engine_size", Verdict.PASS),
        ({"max_engine_mb": 2.4}, "engine_size", Verdict.FAIL),
    ],
)
def test_budgets_are_judged_where_they_are_given(limit: dict[str, Any], name: str, verdict: Verdict) -> None:
    assert budgets.checks(validation(), LIMITS) == ()
    [found] = budgets.checks(validation(), LIMITS.model_copy(update=limit))
    assert (found.name, found.verdict) == (name, verdict)


def test_too_few_processes_leave_a_budget_undecided() -> None:
    [found] = budgets.checks(validation(trials=3), LIMITS.model_copy(update={"max_ready_ms": 1.0}))
    assert (found.verdict, found.decide) == (Verdict.UNDECIDED, "7 more fresh processes a variant")


def test_bands_hold_quantiles_of_each_request_over_processes() -> None:
    trials = [Trial("warm", {"ready": 100.0 + k}, tuple([float(k + 1)] * (60 + k)), (), 1.0) for k in range(11)]
    [band] = bands(trials)
    assert (band.processes, len(band.median_ms), band.phases_ms) == (11, REQUESTS, {"ready": 105.0})
    assert (band.low_ms[0], band.median_ms[0], band.high_ms[0]) == (2.0, 6.0, 10.0)
    assert bands(()) == ()
