"""Find the shortest warm-up, step by step: which situations need one, how often, and what each step buys. All in fresh processes.

A cold process meets every situation in turn, and a situation needs as many requests as come before its first steady one. What was steady at once
has warmed nothing, so running only the steps that were needed, in that order, leaves the process as the visit did: one visit tells a whole plan.
Which steps these are depends on the order (what grows memory for sixteen rows has grown it for one), so several orders are tried.
What a change between sizes costs settles only when each was met more than once, not in a row, which no such step tells: rounds of them are tried.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.records import Situation, StepGain, WarmupPlan
from warmup.coldstart import Progress, child_environment, fresh, visit_command
from warmup.plan import Maker
from warmup.visit import Visit

FIRST, LATER = 1.15, 1.3
"""Hot is a process whose very first request takes at most `FIRST` times the p50 of those behind it, and the first request of every situation at
most `LATER` times the steady ones of the same place; in the median of the processes."""
PROCESSES, FEW = 5, 3
CONFIRMING = 9
"""More processes for a plan that may be hot: the first of several to be so was lucky in the few that found it (measured: 1.10 of p50, then 1.38)."""
SURELY = 0.75
"""In so large a share of the few processes a plan must be cold to be left without more of them: half of five is a coin toss."""
SAME = 1.05
"""First requests so near to each other are alike: where no plan is hot, runs that buy no more than this are left out."""
REPAIRING, PRUNING = 0.6, 0.85
"""Up to these shares of the time all plans are repaired, and what buys nothing is left out; the rest is for rounds."""
ROUNDS = 2
"""The first buys most (the digits example on OpenVINO, 30 processes: first over steady of unseen sizes 1.37 behind none, 1.31 and 1.30)."""
BUYS = 0.97
"""Rounds are kept where they bring all first requests together down to this share. Of `CONFIRMING` processes each, with a deviation of 4 %."""
OPENING = 61
"""Requests of the typical situation, at least: one right behind the plan, the others when all was met; the last half of them are steady."""
REPAIRS, MOST = 5, 64
SECONDS = 90.0

Steps = tuple[tuple[Situation, int], ...]
"""Situations in the order they are warmed, each with its number of iterations."""


@dataclasses.dataclass(frozen=True)
class Seen:
    """What some processes met behind one plan."""

    visits: tuple[Visit, ...]

    @property
    def first_over_p50(self) -> float:
        return statistics.median(visit.first_over_p50 for visit in self.visits)

    @property
    def seconds(self) -> float:
        return statistics.median(visit.warm_seconds for visit in self.visits)

    def first_ms(self, place: int) -> float:
        """Of the situation at this place; the first of all was asked alone before the others came."""
        if not place:
            return statistics.median(visit.first_ms for visit in self.visits)
        return statistics.median(visit.met[place].times_ms[0] for visit in self.visits)

    def slow(self, share: float = 0.5) -> bool:
        """The very first request is slower than it may be in more than `share` of the processes."""
        return sum(visit.first_over_p50 > FIRST for visit in self.visits) > share * len(self.visits)

    def cold(self, share: float = 0.5) -> list[Situation]:
        """Situations whose first request is slower than it may be in more than `share` of the processes."""
        together = zip(*(visit.met for visit in self.visits), strict=True)
        return [met[0].situation for met in together if sum(one.ratio > LATER for one in met) > share * len(met)]

    @property
    def hot(self) -> bool:
        return not (self.slow() or self.cold())

    @property
    def may_be_hot(self) -> bool:
        return not (self.slow(SURELY) or self.cold(SURELY))

    @property
    def first_over_steady(self) -> float:
        """All first requests of lone callers together, over steady ones in a row: changes between sizes are in it."""
        lone = [[one for one in visit.met if one.situation.callers == 1] for visit in self.visits]
        return statistics.median(sum(one.times_ms[0] for one in met) / sum(one.steady_ms for one in met) for met in lone)

    @property
    def order(self) -> tuple[bool, int, float]:
        """The best first."""
        return not self.hot, len(self.cold()), self.first_ms(0)

    def as_hot_as(self, other: Seen) -> bool:
        """Hot, where `other` is; else no situation is cold that is not so behind `other` too, and the very first request is about as quick."""
        if self.hot or other.hot:
            return self.hot
        return self._no_colder_than(other) and (not self.slow() or self._as_quick_as(other))

    def changes_better_than(self, other: Seen) -> bool:
        """All first requests together take less, no situation is cold that is not so behind `other` too, and the very first is about as quick."""
        return self.first_over_steady <= BUYS * other.first_over_steady and self._no_colder_than(other) and self._as_quick_as(other)

    def _no_colder_than(self, other: Seen) -> bool:
        known = other.cold()
        return all(one in known for one in self.cold())

    def _as_quick_as(self, other: Seen) -> bool:
        return self.first_ms(0) <= SAME * other.first_ms(0)

    def said(self) -> str:
        worst = max(statistics.median(one.ratio for one in met) for met in zip(*(visit.met for visit in self.visits), strict=True))
        return f"first request {self.first_over_p50:.2f} of p50, the slowest first of a situation {worst:.2f} of its like"


def find_plan(
    folder: Path, rows_file: Path, maker: Maker, *, processes: int = PROCESSES, seconds: float = SECONDS, progress: Progress | None = None
) -> WarmupPlan:
    """The shortest plan found behind which every situation of `maker` is hot, with what each of its steps buys.

    `seconds`: after `REPAIRING` of them only the best plan is repaired, and none where one is hot; after `PRUNING` no step is tried for being left
    out but once, for what each buys; rounds are tried only where they end in time. Where no plan is hot it is the shortest that is as good as the
    best of them, and `found_by` says so. Raises TrialError when a process fails, for one because a plan outlasts its deadline.
    """
    with tempfile.TemporaryDirectory(prefix="qwarm-find-") as scratch:
        search = _Search(folder, rows_file, maker, Path(scratch), processes, progress)
        begun = time.monotonic()
        steps, seen, tried = search.repaired(search.learned(), begun + REPAIRING * seconds)
        steps, seen, gains = search.pruned(steps, seen, begun + PRUNING * seconds)
        steps, seen, gains = search.rounded(steps, seen, gains, begun + seconds)
        said = f"search: {seen.said()}, in the median of {len(seen.visits)} processes; {search.done} processes in all"
        return maker.plan(steps, said if seen.hot else f"{said}; that is not hot, and none of {tried} plans is better", gains)


class _Search:
    def __init__(self, folder: Path, rows_file: Path, maker: Maker, scratch: Path, processes: int, progress: Progress | None) -> None:
        self.folder, self.rows_file, self.maker, self.scratch = folder, rows_file, maker, scratch
        self.processes, self.progress = processes, progress
        self.done, self.seconds_each = 0, 0.0
        self.largest_first = maker.situations()
        self.smallest_first = self.largest_first[::-1]
        self.typical = self.largest_first[-1]
        self.environment = child_environment()

    def visited(self, plans: Mapping[str, Steps | None], processes: int, order: Sequence[Situation]) -> dict[str, Seen]:
        """Fresh processes behind each plan (None: cold), taking turns."""
        commands = {}
        for name, steps in plans.items():
            file = None
            if steps is not None:
                file = self.scratch / f"{name}.json"
                self.maker.plan(steps, "a candidate").save(file)
            opening = 0 if steps is None else OPENING
            commands[name] = visit_command(self.folder, rows=self.rows_file, situations=order, plan=file, opening=opening)
        seen: dict[str, list[Visit]] = {name: [] for name in plans}
        begun, total = time.monotonic(), self.done + processes * len(plans)
        for _ in range(processes):
            for name, command in commands.items():
                seen[name].append(fresh(name, command, Visit, self.environment))
                self.done += 1
                if self.progress is not None:
                    self.progress(self.done, total, name)
        self.seconds_each = (time.monotonic() - begun) / max(1, processes * len(plans))
        return {name: Seen(tuple(visits)) for name, visits in seen.items()}

    def learned(self) -> dict[str, Steps]:
        """What cold processes needed, by the order in which they met the situations; each ends with the typical request."""
        orders = {"largest first": self.largest_first, "smallest first": self.smallest_first}
        found: dict[str, Steps] = {}
        for name, order in orders.items():
            visits = self.visited({name: None}, self.processes, order)[name].visits
            needed = [math.ceil(statistics.median(visit.met[place].needed(LATER) for visit in visits)) for place in range(len(order))]
            steps = tuple((situation, count) for situation, count in zip(order, needed, strict=True) if count)
            if not steps or steps[-1][0] != self.typical:
                steps = (*steps, (self.typical, 1))
            if steps not in found.values():
                found[name] = steps
        return found

    def repaired(self, plans: Mapping[str, Steps], deadline: float) -> tuple[Steps, Seen, int]:
        """The quickest plan that is hot, or as good as the best, and of how many: where one of `plans` is not hot, what is cold gets more
        iterations, a few times."""
        trying, last = dict(plans), dict[str, Seen]()
        found: list[tuple[Steps, Seen]] = []
        for _ in range(REPAIRS):
            for name, seen in self.visited(trying, self.processes, self.smallest_first).items():
                steps = trying.pop(name)
                seen = self.confirmed(steps, seen)
                found.append((steps, seen))
                if not seen.hot:
                    trying[name], last[name] = self._more(steps, seen), seen
            quickest = min((seen.seconds for _, seen in found if seen.hot), default=math.inf)
            trying = {name: steps for name, steps in trying.items() if last[name].seconds < quickest}  # more iterations only take longer
            if time.monotonic() > deadline:  # goes on only with the best, and only where none is hot
                trying = {} if quickest < math.inf else dict([min(trying.items(), key=lambda one: last[one[0]].order)])
            if not trying:
                break
        _, best = min(found, key=lambda one: one[1].order)
        steps, seen = min((one for one in found if one[1].as_hot_as(best)), key=lambda one: one[1].seconds)
        return steps, seen, len(found)

    def confirmed(self, steps: Steps, seen: Seen) -> Seen:
        """What more processes met too where these may be hot; else `seen`."""
        if not seen.may_be_hot:
            return seen
        return Seen(seen.visits + self.visited({"confirmed": steps}, CONFIRMING, self.smallest_first)["confirmed"].visits)

    def _more(self, steps: Steps, seen: Seen) -> Steps:
        """A step for each cold situation, or more iterations of the one it has; the typical one stays last."""
        cold = seen.cold()
        grown = [(situation, count + (situation in cold)) for situation, count in steps[:-1]]
        there = [situation for situation, _ in grown]
        grown += [(situation, 1) for situation in self.largest_first if situation in cold and situation not in there and situation != self.typical]
        slow = seen.slow() or self.typical in cold
        return (*grown, (self.typical, min(MOST, steps[-1][1] * (4 if slow else 1))))

    def pruned(self, steps: Steps, seen: Seen, deadline: float) -> tuple[Steps, Seen, tuple[StepGain, ...]]:
        """Leave out what buys nothing. Returns what is left, what was met behind it, and what each step of it buys."""
        gains: tuple[StepGain, ...] = ()
        asked = seen
        while True:
            if gains and time.monotonic() + self.seconds_each * FEW * (len(steps) + 1) > deadline:
                return steps, seen, gains
            without = {f"without {number}": steps[:number] + steps[number + 1 :] for number in range(len(steps))}
            found = self.visited({"whole": steps, **without}, FEW, self.smallest_first)
            idle = [number for number in range(len(steps)) if steps[number:] != steps[-1:] and found[f"without {number}"].as_hot_as(asked)]
            if not idle or time.monotonic() > deadline:
                return steps, seen, self._gains(steps, found, range(len(steps)))
            longest = max(idle, key=lambda number: found["whole"].seconds - found[f"without {number}"].seconds)
            for out in (idle, [longest]):  # all at once; where they stand in for each other, one
                kept = [number for number in range(len(steps)) if number not in out]
                fewer = tuple(steps[number] for number in kept)
                checked = self.confirmed(fewer, self.visited({"fewer": fewer}, self.processes, self.smallest_first)["fewer"])
                if checked.as_hot_as(asked):
                    break
            else:
                return steps, seen, self._gains(steps, found, range(len(steps)))
            gains = self._gains(steps, found, kept)
            steps, seen = fewer, checked

    def rounded(self, steps: Steps, seen: Seen, gains: tuple[StepGain, ...], deadline: float) -> tuple[Steps, Seen, tuple[StepGain, ...]]:
        """Before the last step, all sizes in turn, a few times, where first requests together are slower than one may be: kept where they are
        quicker for it. They are time too, which is what the last step's iterations are: a quarter of these is taken where the very first request
        is about as quick. Rounds may double the plan at most."""
        turn = tuple((situation, 1) for situation in self.largest_first[:-1] if situation.callers == 1)
        rounds = min(ROUNDS, sum(count for _, count in steps) // max(1, len(turn)))
        late = time.monotonic() + self.seconds_each * 3 * CONFIRMING > deadline
        if not turn or not rounds or late or seen.first_over_steady <= FIRST:
            return steps, seen, gains
        last = steps[-1][1]
        counts = {"fewer": last // 4, "rounds": last} if last >= 4 else {"rounds": last}
        plans = {name: (*steps[:-1], *turn * rounds, (self.typical, count)) for name, count in counts.items()}
        found = self.visited({"whole": steps, **plans}, CONFIRMING, self.smallest_first)
        whole = found["whole"]
        better = [name for name in plans if found[name].changes_better_than(whole)]
        if not better:
            return steps, seen, gains
        longer, behind = plans[better[0]], found[better[0]]
        spent = max(0.0, found["rounds"].seconds - whole.seconds) / (rounds * len(turn))
        firsts = [(situation, self.smallest_first.index(situation)) for situation, _ in turn]
        bought = [StepGain(each, 1, each, behind.first_ms(place), whole.first_ms(place), spent) for each, place in firsts] * rounds
        spared = found["rounds"].seconds - behind.seconds  # by fewer runs of the last step
        ends = [dataclasses.replace(gain, iterations=longer[-1][1], seconds=max(0.0, gain.seconds - spared)) for gain in gains[-1:]]
        return longer, behind, (*gains[:-1], *bought, *ends)

    def _gains(self, steps: Steps, found: Mapping[str, Seen], kept: Sequence[int]) -> tuple[StepGain, ...]:
        whole, order, gains = found["whole"], self.smallest_first, []
        for number in kept:
            without = found[f"without {number}"]
            most = max(range(len(order)), key=lambda place: without.first_ms(place) - whole.first_ms(place))
            spent = max(0.0, whole.seconds - without.seconds)
            gains.append(StepGain(*steps[number], order[most], whole.first_ms(most), without.first_ms(most), spent))
        return tuple(gains)
