"""Did a few words change between two sequences, or their subject? An alignment decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby

from rapidfuzz.distance import Levenshtein

Pair = tuple[Hashable, Hashable]


@dataclass(frozen=True)
class Allowed:
    """How much of a sequence may change. Shares are of the longer sequence's units.

    `replaced`: share of units with another in their place. `changed`: share of all changes; a variant (same word, spelt differently) counts half.
    `phrase`: this many neighbouring units replaced are another phrase, which is another subject.
    """

    replaced: float = 0.10
    changed: float = 0.15
    phrase: float = 3.0


def changed_share(
    left: Sequence[Hashable],
    right: Sequence[Hashable],
    allowed: Allowed,
    size: int | None = None,
    is_variant: Callable[[Pair], bool] = lambda _: False,
    weight: Callable[[Hashable], float] = lambda _: 1.0,
) -> float | None:
    """Share of changed units when `right` is `left` with a few changes, else None. Symmetric.

    Shares are of `size`, by default the longer sequence's length. Besides them, two signs tell another subject from an edit: one unit replaced by
    the same other unit twice or more, and a phrase replaced. `weight` is what a unit counts in a phrase.
    """
    if (len(left), tuple(left)) > (len(right), tuple(right)):
        left, right = right, left
    size = size or len(right)
    budget = allowed.changed * size
    if Levenshtein.distance(left, right, score_cutoff=int(2 * budget)) > int(2 * budget):
        return None
    replaced: list[Pair] = []
    variants = others = 0
    for step in Levenshtein.opcodes(left, right):
        if step.tag == "replace":
            pairs = list(zip(left[step.src_start : step.src_end], right[step.dest_start : step.dest_end], strict=True))
            for variant, run in groupby(pairs, is_variant):
                members = list(run)
                if variant:
                    variants += len(members)
                    continue
                if max(sum(weight(pair[side]) for pair in members) for side in (0, 1)) >= allowed.phrase:
                    return None
                replaced += members
        elif step.tag != "equal":
            others += step.src_end - step.src_start + step.dest_end - step.dest_start
    systematic = bool(replaced) and max(Counter(replaced).values()) > 1
    cost = len(replaced) + others + variants / 2
    if systematic or len(replaced) > allowed.replaced * size or cost > budget:
        return None
    return cost / max(size, 1)
