"""What padding costs: a request between two warmed sizes, run at the larger one as a host does, against the same request at its own size."""

from __future__ import annotations

import itertools
import statistics

from engines.contract import Session
from pipeline.padding import fit, named_sizes
from pipeline.records import PaddingCost, WarmupPlan
from pipeline.tensors import Batch
from warmup.child import milliseconds
from warmup.plan import batch_axis, pad_to_plan

SETTLING, STEADY = 5, 20
"""Requests of each kind that are run first, and those whose median counts."""


def padding_costs(session: Session, plan: WarmupPlan, rows: Batch) -> tuple[PaddingCost, ...]:
    """For each two neighbouring warmed sizes of an axis with a size between them: the smallest such, where padding costs most.

    The other axes are at their typical size, the batch at its smallest. `rows` are the warm-up arrays. Times are of this process, both kinds in
    turns; an axis that may not be padded gives none.
    """
    specs, shapes, ladder = session.engine.inputs, session.engine.shapes, plan.ladder
    typical = {axis: next((rung for rung in rungs if rung >= shapes[axis].opt), rungs[-1]) for axis, rungs in ladder.items()}
    typical[batch_axis(specs)] = ladder[batch_axis(specs)][0]
    costs = []
    for axis, rungs in ladder.items():
        for below, above in itertools.pairwise(rungs):
            own = fit(rows, specs, {**typical, axis: below + 1})
            padded, _ = pad_to_plan(own, specs, ladder)
            if below + 1 == above or named_sizes(padded, specs)[axis] != above:
                continue
            first = milliseconds(session.run, own)
            for _ in range(SETTLING):
                session.run(padded)
                session.run(own)
            times = [(milliseconds(session.run, padded), milliseconds(session.run, own)) for _ in range(STEADY)]
            padded_ms, own_ms = (statistics.median(kind) for kind in zip(*times, strict=True))
            costs.append(PaddingCost(axis, below + 1, above, padded_ms, own_ms, first))
    return tuple(costs)
