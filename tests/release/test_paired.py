"""The paired bounds: their error by exact enumeration, their speed of deciding, and the cases of shared/cases."""

from __future__ import annotations

import importlib.util
import itertools
import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy import stats

from pipeline.errors import DataError
from pipeline.verdicts import Verdict
from release.paired import MAX_ROWS_TO_DECIDE, compare, decide, mcnemar, rows_to_decide, score_upper, upper_bound

LIMIT = 0.005
CASES = Path(__file__).resolve().parents[2] / "../shared/cases/make_cases.py"
WANTED = {
    **{(50, drop): Verdict.UNDECIDED for drop in (0.0, 0.003, 0.03)},
    (564, 0.03): Verdict.FAIL,
    (5000, 0.03): Verdict.FAIL,
    (20000, 0.03): Verdict.FAIL,
    (5000, 0.0): Verdict.PASS,
    (20000, 0.0): Verdict.PASS,
    (564, 0.003): Verdict.UNDECIDED,
    (5000, 0.003): Verdict.UNDECIDED,
}


def chance(rows: int, drop: float, gain: float, verdict: Verdict, limit: float) -> float:
    """Exact chance of `verdict`: for each flip count that matters, the edge is walked to, and the trinomial's mass beyond it summed."""
    flip_rate = drop + 2 * gain
    first, last = (int(end) for end in stats.binom.ppf([1e-9, 1 - 1e-9], rows, flip_rate)) if flip_rate else (0, 0)
    total, lost = 0.0, first // 2
    for flips in range(first, last + 1):
        share = (drop + gain) / flip_rate if flip_rate else 0.0
        if verdict is Verdict.PASS:  # lost rows 0 to `lost` pass
            lost = min(lost, flips)
            while lost < flips and upper_bound(lost + 1, flips - lost - 1, rows) <= limit:
                lost += 1
            while lost >= 0 and upper_bound(lost, flips - lost, rows) > limit:
                lost -= 1
            beyond = stats.binom.cdf(lost, flips, share)
        else:  # lost rows from `lost` on fail
            while lost <= flips and -upper_bound(flips - lost, lost, rows) <= limit:
                lost += 1
            while lost > 0 and lost - 1 <= flips and -upper_bound(flips - lost + 1, lost - 1, rows) > limit:
                lost -= 1
            beyond = stats.binom.sf(lost - 1, flips, share)
        total += stats.binom.pmf(flips, rows, flip_rate) * beyond
    return total


SETTINGS = [
    *itertools.product((50, 200, 564, 781), (0.005, 0.01), (0.0, 0.001, 0.005, 0.015)),
    (5000, 0.005, 0.0),
    (5000, 0.005, 0.001),
    (20000, 0.005, 0.0),
]


@pytest.mark.parametrize(("rows", "limit", "gain"), SETTINGS)
def test_each_side_errs_with_at_most_five_percent_at_the_limit(rows: int, limit: float, gain: float) -> None:
    passed, failed = (chance(rows, limit, gain, verdict, limit) for verdict in (Verdict.PASS, Verdict.FAIL))
    assert passed <= 0.05
    assert failed <= 0.05
    if rows * limit > 20:  # and it is not bought by never deciding
        assert passed > 0.03
        assert failed > 0.03


def test_harmless_builds_pass_often_enough() -> None:
    assert chance(5000, 0.0, 0.005, Verdict.PASS, LIMIT) == pytest.approx(0.9626, abs=0.002)
    assert chance(5000, 0.0, 0.005, Verdict.FAIL, LIMIT) < 1e-6


def test_the_score_limit_alone_would_err_more_often_than_allowed() -> None:
    """Why the exact step is there: Tango's own lower limit fails 7.5 % of builds of 564 rows whose drop is the limit."""
    share, flip_rate = 0.006 / 0.007, 0.007
    failed = sum(
        stats.binom.pmf(flips, 564, flip_rate) * stats.binom.pmf(lost, flips, share)
        for flips in range(25)
        for lost in range(flips + 1)
        if -score_upper(flips - lost, lost, 564) > LIMIT
    )
    assert failed == pytest.approx(0.0750, abs=0.0005)


def test_coverage_over_the_whole_parameter_space_of_few_rows() -> None:
    """Every outcome of 12 rows, on a grid of all rates, with plain multinomial probabilities."""
    rows = 12
    outcomes = [(lost, gained) for lost in range(rows + 1) for gained in range(rows + 1 - lost)]
    counts = np.array([(lost, gained, rows - lost - gained) for lost, gained in outcomes])
    bounds = np.array([upper_bound(lost, gained, rows) for lost, gained in outcomes])
    worst = 0.0
    for lost_rate, gained_rate in itertools.product(np.linspace(0, 1, 26), repeat=2):
        if lost_rate + gained_rate > 1:
            continue
        mass = stats.multinomial.pmf(counts, rows, [lost_rate, gained_rate, max(0.0, 1 - lost_rate - gained_rate)])
        worst = max(worst, float(mass[bounds < lost_rate - gained_rate].sum()))
    assert 0.03 < worst <= 0.05


@pytest.mark.parametrize("rows", [50, 564, 20000])
def test_no_flips_is_a_bound_near_three_over_n(rows: int) -> None:
    interval = compare(0, 0, rows)
    assert interval.high == pytest.approx(1 - 0.049 ** (1 / rows), rel=1e-3)
    assert interval.low == -interval.high
    assert interval.side_confidence == 0.95


def test_the_interval_holds_the_observed_drop_mirrors_and_orders() -> None:
    for lost, gained, rows in ((3, 1, 50), (20, 3, 564), (60, 40, 5000), (0, 9, 200), (10, 0, 10), (1, 0, 1)):
        interval, mirrored = compare(lost, gained, rows), compare(gained, lost, rows)
        assert interval.low <= (lost - gained) / rows <= interval.high
        assert (mirrored.low, mirrored.high) == (-interval.high, -interval.low)
    uppers = [upper_bound(lost, 12 - lost, 564) for lost in range(13)]
    assert uppers == sorted(uppers)
    assert upper_bound(5, 5, 564, 0.99) > upper_bound(5, 5, 564, 0.95)


def test_the_exact_bound_stays_near_the_score_limit_when_flips_are_many() -> None:
    for lost, gained, rows in ((100, 100, 20000), (700, 100, 20000), (300, 250, 5000)):
        assert upper_bound(lost, gained, rows) * rows == pytest.approx(score_upper(lost, gained, rows) * rows, abs=0.5)


def flip_counts(rows: int, drop: float) -> tuple[int, int]:
    """Lost and gained of one sample: 90 % right before, then half a point gained and half a point more than the drop lost."""
    random = np.random.default_rng(0)
    before, flip = random.random(rows) < 0.9, random.random(rows)
    lost = before & (flip < (0.005 + drop) / 0.9)
    gained = ~before & (flip < 0.005 / 0.1)
    return int(lost.sum()), int(gained.sum())


@pytest.mark.parametrize(("rows", "drop"), sorted(WANTED))
def test_verdicts_on_generated_pairs(rows: int, drop: float) -> None:
    lost, gained = flip_counts(rows, drop)
    verdict = decide(lost, gained, rows, LIMIT)
    assert verdict is WANTED[rows, drop]
    wanted = rows_to_decide(lost, gained, rows, LIMIT)
    assert wanted is None if verdict is not Verdict.UNDECIDED else wanted > rows


def shared_cases() -> ModuleType:
    if not CASES.exists():
        pytest.skip("shared/cases is not beside this repository")
    spec = importlib.util.spec_from_file_location("make_cases", CASES)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_verdicts_on_the_shared_cases(tmp_path: Path) -> None:
    from cli.gate import gate_file

    shared_cases().paired_predictions(tmp_path)
    got = {(rows, drop): gate_file(tmp_path / f"n{rows}_drop{drop:g}.csv", LIMIT)["verdict"] for rows, drop in WANTED}
    assert got == {case: verdict.name for case, verdict in WANTED.items()}


def test_rows_to_decide_is_about_where_the_projection_decides() -> None:
    wanted = rows_to_decide(0, 0, 50, LIMIT)
    assert wanted == 610  # log(0.049) / log(0.995) = 601.7
    assert decide(0, 0, wanted, LIMIT) is Verdict.PASS
    assert decide(0, 0, 590, LIMIT) is Verdict.UNDECIDED
    wanted = rows_to_decide(40, 25, 5000, LIMIT)
    assert wanted is not None
    # 0.3 points observed, 1.3 % flips: 1.645 sqrt(0.013 n) = 0.002 n at n = 8800, and the exact bound is a little wider
    assert 8800 < wanted < 10000
    assert decide(round(40 * wanted / 5000), round(25 * wanted / 5000), wanted, LIMIT) is Verdict.PASS
    assert rows_to_decide(20, 3, 564, LIMIT) is None
    assert rows_to_decide(25, 25, 5000, LIMIT) is None


def test_rows_to_decide_is_capped_when_the_observed_drop_is_the_limit() -> None:
    assert rows_to_decide(25, 0, 5000, LIMIT) == MAX_ROWS_TO_DECIDE
    nearly = rows_to_decide(1001, 0, 200_000, LIMIT)
    assert nearly == MAX_ROWS_TO_DECIDE


def test_a_wide_limit_with_few_rows_needs_few() -> None:
    wanted = rows_to_decide(3, 0, 50, LIMIT)
    assert wanted is not None
    assert 50 < wanted < 100
    assert decide(round(3 * wanted / 50), 0, wanted, LIMIT) is Verdict.FAIL


@pytest.mark.parametrize(("lost", "gained", "rows"), [(0, 0, 0), (-1, 0, 10), (0, -1, 10), (6, 5, 10)])
def test_counts_that_are_no_counts_are_refused(lost: int, gained: int, rows: int) -> None:
    with pytest.raises(DataError, match="counts of a paired comparison"):
        compare(lost, gained, rows)


def test_every_bound_is_finite_and_within_one() -> None:
    for rows in (1, 2, 5, 9):
        for lost, gained in itertools.product(range(rows + 1), repeat=2):
            if lost + gained <= rows:
                interval = compare(lost, gained, rows, 0.999)
                assert -1 <= interval.low <= interval.high <= 1
                assert math.isfinite(interval.low + interval.high)


@pytest.mark.parametrize(("lost", "gained"), [(0, 0), (1, 0), (5, 5), (9, 1), (0, 8), (40, 25)])
def test_mcnemar_is_the_exact_binomial_test(lost: int, gained: int) -> None:
    wanted = stats.binomtest(lost, lost + gained).pvalue if lost + gained else 1.0
    assert mcnemar(lost, gained) == pytest.approx(wanted)
