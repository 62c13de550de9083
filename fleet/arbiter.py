"""Which idle model gives way under a memory cap. Nothing in use, loading or pinned ever does; memory is never promised twice.

Greedy-dual-size-frequency (Cherkasova, HP Labs 1998) ranks by frequency times cost over size, with an age that rises at each eviction. Where a
model's next request can be told, rank is instead what its absence would cost a second and megabyte: cost of a cold start over size and wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from fleet.models import ModelSpec, Phase


class Held(Protocol):
    """What the arbiter looks at in a model; `Resident` is one."""

    spec: ModelSpec
    phase: Phase
    users: int
    frequency: float
    dual: float

    @property
    def memory_mb(self) -> float:
        """What it holds now."""

    def wait_s(self, now: float) -> float | None:
        """Seconds until its next request, as far as can be told."""


H = TypeVar("H", bound=Held)


class Arbiter:
    """Keeps the sum of what is held within `cap_mb` (None: no cap). `foresight`: rank by next requests as told from traffic, else by greedy-dual."""

    __slots__ = ("age", "cap_mb", "foresight", "used_mb")

    def __init__(self, cap_mb: float | None = None, foresight: bool = True) -> None:
        self.cap_mb, self.foresight = cap_mb, foresight
        self.used_mb = self.age = 0.0

    def account(self, helds: Iterable[Held]) -> None:
        """Count memory anew; called after every change of a phase."""
        self.used_mb = sum(held.memory_mb for held in helds)

    def fits(self, need_mb: float) -> bool:
        """Whether so much more fits now."""
        return self.cap_mb is None or self.used_mb + need_mb <= self.cap_mb + 1e-9

    def touch(self, held: Held) -> None:
        """A request: greedy-dual's rank of this model rises to the age plus its worth."""
        held.frequency += 1.0
        held.dual = self.age + held.frequency * self.cost(held) / held.spec.size_mb

    @staticmethod
    def cost(held: Held) -> float:
        """Seconds that a cold start takes, times priority."""
        return (held.spec.load_s + 1e-3) * held.spec.priority

    def rank(self, held: Held, now: float) -> float:
        """Higher stays longer."""
        wait = held.wait_s(now) if self.foresight else None
        return held.dual if wait is None else self.cost(held) / held.spec.size_mb / (wait + 1.0)

    def victims(self, need_mb: float, helds: Iterable[H], now: float, below: float | None = None) -> list[tuple[H, Phase]] | None:
        """Idle models to shrink, and to what (WEIGHTS first where that helps, else OUT), so that `need_mb` more fits; None where it cannot.

        `below`: only models of a lower rank give way, which is how a load that nobody waits for asks.
        """
        if self.cap_mb is None:
            return []
        missing = self.used_mb + need_mb - self.cap_mb
        chosen: list[tuple[H, Phase]] = []
        idle = [held for held in helds if held.phase in (Phase.WARM, Phase.WEIGHTS) and held.users == 0 and not held.spec.pinned]
        for rank, _, held in sorted((self.rank(held, now), held.spec.name, held) for held in idle) if missing > 1e-9 else []:
            if missing <= 1e-9 or (below is not None and rank >= below):
                break
            steps = held.phase is Phase.WARM and held.spec.contexts_mb >= missing and held.spec.weights_mb > 0.0
            chosen.append((held, Phase.WEIGHTS if steps else Phase.OUT))
            missing -= held.spec.contexts_mb if steps else held.memory_mb
            if not steps:
                self.age = max(self.age, held.dual)
        return chosen if missing <= 1e-9 else None
