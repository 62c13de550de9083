"""Latency statistics against SciPy's binomial and hand-made processes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from pipeline.errors import TrialError
from pipeline.records import Trial
from warmup import latency


def trial(requests: list[float], variant: str = "warm", control: list[float] | None = None) -> Trial:
    return Trial(variant, {"ready": 100.0}, tuple(requests), tuple(control or ()), 50.0)


@pytest.mark.parametrize("side", [0.95, 0.99, 0.999])
@pytest.mark.parametrize("count", [1, 4, 5, 7, 9, 10, 11, 15, 30, 31, 101])
def test_the_interval_of_the_median_is_the_binomial_order_statistic(count: int, side: float) -> None:
    values = np.random.default_rng(count).permutation(np.arange(1.0, count + 1))
    interval = latency.median_interval(tuple(values), side)
    ranks = [rank for rank in range(1, count + 1) if stats.binom.cdf(rank - 1, count, 0.5) <= 1 - side]
    if not ranks:
        assert interval is None
        assert count < latency.trials_needed(side)
    else:
        assert interval is not None
        assert (interval.low, interval.high) == (max(ranks), count + 1 - max(ranks))
        assert interval.side_confidence == side
        assert count >= latency.trials_needed(side)


def test_known_ranks_of_fifteen_processes() -> None:
    """P(B(15, 1/2) <= 1) = 0.00049 and <= 2 is 0.0037: the second and the fourteenth at 0.1 % a side."""
    interval = latency.median_interval(tuple(float(value) for value in range(1, 16)), 0.999)
    assert interval is not None
    assert (interval.low, interval.high) == (2.0, 14.0)


def test_many_processes_are_no_overflow() -> None:
    interval = latency.median_interval(tuple(float(value) for value in range(3001)), 0.999)
    assert interval is not None
    assert interval.low == stats.binom.ppf(0.001, 3001, 0.5) - 1


@pytest.mark.parametrize(("side", "count"), [(0.999, 10), (0.95, 5), (0.9, 4), (0.75, 2), (0.5, 1)])
def test_trials_needed(side: float, count: int) -> None:
    assert latency.trials_needed(side) == count


def test_the_steady_part_leaves_the_first_fifth_out_and_nothing_else() -> None:
    samples = [90.0, *[5.0] * 19, *[1.0] * 79, 3.0]
    steady = latency.steady(samples)
    assert len(steady) == 80
    assert steady.max() == 3.0
    assert latency.p50(samples) == 1.0
    assert latency.first_over_p50(samples) == 90.0
    assert latency.p99(samples) == pytest.approx(1 + 2 * 0.21)  # rank 0.99 * 79 = 78.21
    assert latency.p99_over_p50(samples) == pytest.approx(1.42)
    assert latency.p50(samples) == 1.0


def test_half_over_half_tells_a_machine_that_slows_down_in_the_steady_part() -> None:
    assert latency.half_over_half([9.0] * 20 + [1.0] * 40 + [1.3] * 40) == pytest.approx(1.3)
    assert latency.half_over_half([2.0] * 50) == 1.0


def test_the_first_request_never_counts_as_steady() -> None:
    assert latency.steady([100.0, 1.0, 1.0, 1.0, 1.0]).tolist() == [1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("samples", "message"), [([1.0] * 4, "too few"), ([], "too few"), ([1.0] * 9 + [0.0], "request 9"), ([1.0, float("nan"), 1, 1, 1], "request 1")]
)
def test_samples_that_are_no_times_are_refused(samples: list[float], message: str) -> None:
    with pytest.raises(TrialError, match=message):
        latency.steady(samples)


def test_ratios_are_paired_by_round() -> None:
    """A machine that slows threefold half-way changes both variants' p50, and no ratio."""
    trials = []
    for slow in (1.0, 1.0, 3.0, 3.0):
        trials += [trial([4.0 * slow] * 10, "float"), trial([2.0 * slow] * 10, "warm")]
    plain, warm = latency.variant(trials, "float"), latency.variant(trials, "warm")
    assert latency.paired(latency.per_process(plain, latency.p50), latency.per_process(warm, latency.p50)) == (2.0, 2.0, 2.0, 2.0)
    with pytest.raises(TrialError, match="different numbers of processes"):
        latency.paired((1.0, 2.0), (1.0,))


def test_control_ratios_come_from_the_control_samples() -> None:
    trials = [trial([1.0] * 10, control=[6.0] + [2.0] * 9), trial([1.0] * 10, control=[1.0, 1.0])]
    assert latency.per_process(trials, latency.first_over_p50, control=True) == (3.0,)


def test_an_estimate_without_enough_processes_has_a_figure_and_no_interval() -> None:
    few = latency.estimate((1.0, 3.0, 2.0), 0.999)
    assert few is not None
    assert (few.figure, few.interval) == (2.0, None)
    assert latency.estimate((), 0.999) is None


def test_what_every_process_pays_at_its_start_is_found_and_one_pause_is_not() -> None:
    random = np.random.default_rng(0)

    def requests(slow: int) -> list[float]:
        return [*(3.0 - 0.2 * np.arange(slow)), *np.exp(0.02 * random.standard_normal(60))]

    trials = [trial(requests(7)) for _ in range(9)]
    assert latency.settled_after(trials) == 7
    steady = [trial(requests(0)) for _ in range(9)]
    steady[0] = trial([9.0, 9.0, *requests(0)])
    assert latency.settled_after(steady) == 0
    assert latency.settled_after([trial([2.0] * 10 + [1.0] * 50)] * 3) == 10
