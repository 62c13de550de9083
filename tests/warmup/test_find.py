"""The finder on a double of a runtime whose coldness is known, in this process; and once on a real engine in fresh ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import TrialError
from pipeline.records import Situation
from warmup import find
from warmup.find import find_plan
from warmup.visit import IN_A_ROW, ROUNDS, Met, Visit

STEADY = 1.0


class Simulated:
    """Answers in place of a fresh process: `coldness(sizes, callers, ran)` is the time of a request after those in `ran`."""

    def __init__(self, coldness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.coldness, self.processes = coldness, 0
        monkeypatch.setattr(find, "visit_command", lambda _, **given: given)
        monkeypatch.setattr(find, "fresh", self.fresh)

    def fresh(self, _name: str, given: Any, *_: Any) -> Visit:
        self.processes += 1
        ran: list[tuple[int, int]] = []

        def ask(batch: int, callers: int) -> float:
            taken = self.coldness(batch, callers, ran)
            ran.append((batch, callers))
            return float(taken)

        seconds = 0.0
        if given["plan"] is not None:
            plan = find.WarmupPlan.load(given["plan"])
            seconds = sum(ask(step.sizes["batch"], step.threads) for step in plan.steps for _ in range(step.iterations))
        places = [(situation.sizes["batch"], situation.callers) for situation in given["situations"]]
        first = ask(*places[0]) if given["opening"] else 0.0
        times: list[list[float]] = [[] for _ in places]
        for _ in range(ROUNDS):
            for mine, place in zip(times, places, strict=True):
                mine += [ask(*place) for _ in range(IN_A_ROW)]
        opening = tuple((taken,) for taken in [first, *(ask(*places[0]) for _ in range(given["opening"] - 1))]) if given["opening"] else ()
        met = zip(given["situations"], times, strict=True)
        return Visit(tuple(Met(each, each.sizes, (mine[0],) * each.callers, tuple(mine)) for each, mine in met), opening, seconds)


def steps_of(plan: Any) -> list[tuple[int, int, int]]:
    return [(step.sizes["batch"], step.threads, step.iterations) for step in plan.steps]


def test_a_runtime_that_compiles_for_each_size_gets_a_step_for_each_and_none_for_callers(warmable: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Simulated(lambda batch, _, ran: STEADY if batch in {size for size, _ in ran} else 40.0, monkeypatch)
    plan = find_plan(warmable.folder, warmable.rows_file, warmable.maker())
    assert sorted(batch for batch, _, _ in steps_of(plan)) == [1, 4, 8]
    assert all(iterations == 1 for _, _, iterations in steps_of(plan))
    assert steps_of(plan)[-1][0] == 1
    assert plan.ladder == {"batch": (1, 4, 8)}
    assert [gain.step.sizes["batch"] for gain in plan.gains] == [batch for batch, _, _ in steps_of(plan)]
    assert all((gain.with_ms, gain.without_ms) == (STEADY, 40.0) for gain in plan.gains)
    assert plan.found_by.startswith("search: first request 1.00 of p50")


def test_a_runtime_whose_memory_grows_gets_the_largest_alone(warmable: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def grows(batch: int, callers: int, ran: list[tuple[int, int]]) -> float:
        return STEADY if batch * callers <= max((size * many for size, many in ran), default=0) else 5.0

    Simulated(grows, monkeypatch)
    plan = find_plan(warmable.folder, warmable.rows_file, warmable.maker())
    assert steps_of(plan) == [(8, 2, 1), (1, 1, 1)]
    assert (plan.gains[0].step, plan.gains[0].without_ms) == (Situation({"batch": 8}, 2), 5.0)


def test_a_request_that_needs_three_runs_gets_three(warmable: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Simulated(lambda batch, callers, ran: STEADY if ran.count((batch, callers)) >= 3 else 2.0, monkeypatch)
    plan = find_plan(warmable.folder, warmable.rows_file, warmable.maker(batches=[1], concurrency=[1]))
    assert steps_of(plan) == [(1, 1, 3)]


def test_nothing_cold_needs_one_request(warmable: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Simulated(lambda *_: STEADY, monkeypatch)
    assert steps_of(find_plan(warmable.folder, warmable.rows_file, warmable.maker())) == [(1, 1, 1)]


def changes_settle(batch: int, _callers: int, ran: list[tuple[int, int]]) -> float:
    """A size costs 40 at first, and a change to it 1.25 until there were two."""
    sizes = [size for size, _ in ran]
    if batch not in sizes:
        return 40.0
    changed = sum(size == batch and before != batch for before, size in zip([0, *sizes], sizes, strict=False))
    return 1.25 if changed < 2 and sizes[-1] != batch else STEADY


def test_changes_that_settle_when_a_size_was_met_again_get_a_round_of_all_sizes(warmable: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Simulated(changes_settle, monkeypatch)
    plan = find_plan(warmable.folder, warmable.rows_file, warmable.maker())
    assert steps_of(plan) == [(8, 2, 1), (4, 2, 1), (8, 1, 1), (4, 1, 1), (1, 1, 1)]
    assert [(gain.step, gain.with_ms, gain.without_ms) for gain in plan.gains[2:4]] == [
        (Situation({"batch": size}, 1), STEADY, 1.25) for size in (8, 4)
    ]
    assert plan.found_by.startswith("search: first request 1.00 of p50")


@pytest.mark.parametrize(("needed", "left"), [(4, 1), (8, 2), (16, 16)])
def test_rounds_stand_in_for_runs_of_the_last_step(warmable: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, needed: int, left: int) -> None:
    """Where what makes the typical request quick is the number of requests before it, whatever they are."""
    search = find._Search(warmable.folder, warmable.rows_file, warmable.maker(batches=[1, 4, 8], concurrency=[1]), tmp_path, 3, None)
    Simulated(lambda batch, callers, ran: max(changes_settle(batch, callers, ran), STEADY if len(ran) >= needed else 1.2), monkeypatch)
    steps = (*((situation, 1) for situation in search.largest_first[:-1]), (search.typical, needed))
    whole = search.visited({"whole": steps}, 1, search.largest_first[::-1])["whole"]
    gain = find.StepGain(*steps[-1], search.typical, STEADY, 1.2, needed * STEADY)
    taken, met, gains = search.rounded(steps, whole, (gain,), float("inf"))
    assert (taken[-1], met.hot) == ((search.typical, left), True)
    assert [bought.iterations for bought in gains] == [1] * (len(taken) - 3) + [left]
    assert needed * STEADY - gains[-1].seconds == pytest.approx((needed - left) * STEADY)


@pytest.mark.parametrize(("sizes", "needed", "rounds"), [([1, 2, 4, 8], 3, 1), ([1, 8], 1, 2)])
def test_rounds_double_a_plan_at_most(
    warmable: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sizes: list[int], needed: int, rounds: int
) -> None:
    search = find._Search(warmable.folder, warmable.rows_file, warmable.maker(batches=sizes, concurrency=[1]), tmp_path, 3, None)
    asked: list[find.Steps] = []
    monkeypatch.setattr(search, "visited", lambda plans, *_: asked.extend(plans.values()) or dict.fromkeys(plans, seen(1.0)))
    steps, changing = ((search.largest_first[0], needed), (search.typical, 1)), seen(1.0, *[1.5] * (len(sizes) - 1))
    assert search.rounded(steps, changing, (), float("inf"))[0] == steps
    assert asked[0] == steps
    longer = asked[-1]
    assert longer[1:-1] == tuple((situation, 1) for situation in search.largest_first[:-1]) * rounds
    asked.clear()
    search.rounded(steps, changing, (), 0.0)  # no time
    search.rounded(steps, seen(1.2, *[1.1] * (len(sizes) - 1)), (), float("inf"))  # what is slow is no change of size
    assert asked == []


def test_what_never_settles_is_said_and_ends(warmable: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = Simulated(lambda _batch, _callers, ran: 0.9 ** len(ran), monkeypatch)
    plan = find_plan(warmable.folder, warmable.rows_file, warmable.maker(batches=[1], concurrency=[1]), processes=1)
    assert "that is not hot, and none of" in plan.found_by
    assert [gain.step for gain in plan.gains] == [Situation({"batch": 1}, 1)]
    assert simulated.processes < 30


def test_where_no_plan_is_hot_what_buys_nothing_is_left_out_all_the_same(warmable: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_size_never_settles(batch: int, callers: int, ran: list[tuple[int, int]]) -> float:
        if batch == 4:
            return 0.8 ** ran.count((4, callers))
        return STEADY if batch in {size for size, _ in ran} else 40.0

    monkeypatch.setattr(find, "ROUNDS", 0)
    Simulated(one_size_never_settles, monkeypatch)
    plan = find_plan(warmable.folder, warmable.rows_file, warmable.maker())
    assert "that is not hot, and none of" in plan.found_by
    assert {batch for batch, _, _ in steps_of(plan)} >= {1, 8}
    assert len({batch for batch, _, _ in steps_of(plan) if batch != 4}) == sum(batch != 4 for batch, _, _ in steps_of(plan))
    assert len(plan.gains) == len(plan.steps)


def test_half_of_the_few_processes_being_slow_asks_for_more_of_them(warmable: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[Simulated] = []
    noisy = range(11, 14)  # three of the five behind ten cold ones, in two orders
    met.append(Simulated(lambda _, __, ran: 1.2 if not ran or (len(ran) < 2 and met[0].processes in noisy) else STEADY, monkeypatch))
    plan = find_plan(warmable.folder, warmable.rows_file, warmable.maker(batches=[1], concurrency=[1]))
    assert steps_of(plan) == [(1, 1, 1)]
    assert plan.found_by.startswith("search: first request 1.00 of p50")


def test_without_time_nothing_is_left_out(warmable: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Simulated(lambda batch, _, ran: STEADY if batch in {size for size, _ in ran} else 40.0, monkeypatch)
    plan = find_plan(warmable.folder, warmable.rows_file, warmable.maker(), seconds=0.0)
    assert {batch for batch, _, _ in steps_of(plan)} == {1, 4, 8}
    assert len(plan.gains) == len(plan.steps)


def test_a_real_engine_gets_a_plan_it_can_run(warmable: Any) -> None:
    seen: list[tuple[int, int, str]] = []
    maker = warmable.maker(batches=[1], concurrency=[1])
    plan = find_plan(warmable.folder, warmable.rows_file, maker, processes=1, seconds=0.0, progress=lambda *step: seen.append(step))
    assert plan.steps[-1].sizes == {"batch": 1}
    assert plan.engine_sha256 == warmable.engine.digest()
    assert [done for done, _, _ in seen] == list(range(1, len(seen) + 1))


def test_a_process_that_fails_is_told(warmable: Any, tmp_path: Path) -> None:
    with pytest.raises(TrialError, match="A record is missing"):
        find_plan(tmp_path, warmable.rows_file, warmable.maker(), processes=1)


def test_a_plan_that_was_lucky_in_the_processes_that_chose_it_is_not_taken(warmable: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[Simulated] = []
    lucky = range(11, 16)  # behind ten cold ones, in two orders
    slow = lambda _, __, ran: STEADY if len(ran) >= 4 or met[0].processes in lucky else 1.2  # noqa: E731
    met.append(Simulated(slow, monkeypatch))
    plan = find_plan(warmable.folder, warmable.rows_file, warmable.maker(batches=[1], concurrency=[1]))
    assert steps_of(plan) == [(1, 1, 4)]


def test_runs_that_buy_nothing_are_not_taken_though_no_plan_is_hot(warmable: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def settles_at_its_own_time(_batch: int, _callers: int, ran: list[tuple[int, int]]) -> float:
        return 2.0 if not ran else 1.3 if len(ran) < 200 else STEADY

    monkeypatch.setattr(find, "OPENING", 301)
    Simulated(settles_at_its_own_time, monkeypatch)
    plan = find_plan(warmable.folder, warmable.rows_file, warmable.maker(batches=[1], concurrency=[1]))
    assert steps_of(plan) == [(1, 1, 1)]
    assert "that is not hot, and none of" in plan.found_by


def seen(first: float, *ratios: float, seconds: float = 1.0) -> find.Seen:
    """Three processes whose first request took `first` times their p50, and the first of each situation `ratios` times its like."""
    met = tuple(
        Met(Situation({"batch": 1 + place}, 1), {"batch": 1 + place}, (ratio,), (ratio, *[STEADY] * 9)) for place, ratio in enumerate([1.0, *ratios])
    )
    return find.Seen((Visit(met, ((first,), *[(STEADY,)] * 60), seconds),) * 3)


def test_a_hot_plan_gives_way_to_hot_ones_alone() -> None:
    assert not seen(1.16).as_hot_as(seen(1.13))
    assert not seen(1.0, 1.4).as_hot_as(seen(1.0, 1.2))
    assert seen(1.14, 1.2).as_hot_as(seen(1.0, 1.0))


def test_where_none_is_hot_as_good_is_no_colder_and_about_as_quick() -> None:
    assert seen(1.20).as_hot_as(seen(1.16))
    assert not seen(1.30).as_hot_as(seen(1.16))
    assert not seen(1.0, 1.4, 1.4).as_hot_as(seen(1.0, 1.4, 1.0))
    assert seen(1.0, 1.4, 1.0).as_hot_as(seen(1.3, 1.4, 1.4))
    assert seen(1.0).as_hot_as(seen(1.3))


def test_the_quickest_hot_plan_is_taken_though_a_quicker_one_is_nearly_hot(warmable: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    search = find._Search(warmable.folder, warmable.rows_file, warmable.maker(batches=[1], concurrency=[1]), tmp_path, 3, None)
    hot, nearly = ((search.typical, 8),), ((search.typical, 2),)
    figures = {repr(hot): seen(1.13, seconds=2.0), repr(nearly): seen(1.16, seconds=1.0)}
    monkeypatch.setattr(search, "visited", lambda plans, *_: {name: figures.get(repr(steps), seen(1.16)) for name, steps in plans.items()})
    taken, met, tried = search.repaired({"hot": hot, "nearly": nearly}, float("inf"))
    assert (taken, met.hot) == (hot, True)
    assert tried > 2
    assert search.pruned(taken, met, float("inf"))[1].hot
