"""What padding costs is measured for the sizes between two warmed ones, on a real engine."""

from __future__ import annotations

from typing import Any

import engines
from warmup.padding_cost import padding_costs


def test_the_smallest_size_of_each_gap_is_run_padded_and_as_it_is(warmable: Any) -> None:
    with engines.open_engine(warmable.folder) as session:
        costs = padding_costs(session, warmable.plan(), warmable.rows)
    assert [(cost.axis, cost.size, cost.padded_to) for cost in costs] == [("batch", 2, 4), ("batch", 5, 8)]
    assert all(min(cost.padded_ms, cost.own_ms, cost.own_first_ms) > 0 for cost in costs)


def test_rungs_without_a_gap_cost_nothing(warmable: Any) -> None:
    with engines.open_engine(warmable.folder) as session:
        assert padding_costs(session, warmable.plan(batches=[1, 2]), warmable.rows) == ()
