"""Which row plays which role: from content and a seed alone, stratified by label, whole groups at a time."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pipeline.digests import sha256_bytes
from pipeline.errors import DataError
from pipeline.records import ROLES

Size = int | float | str
"""A count of rows, a share of the distinct rows (0 < share < 1), or "rest"."""
REST = "rest"
DRAW_ORDER = ("train", "warmup", "search", "calibration", "validation")
"""Calibration next to last: another number of its rows moves only validation, so nothing is trained or exported again."""


@dataclasses.dataclass(frozen=True)
class Drawn:
    """What is kept of a row while roles are drawn. `label` is its class's index, 0 without classes; `answer` what the source has."""

    id: str
    digest: str
    label: int
    group: str | None = None
    answer: int | float | str | None = None


@dataclasses.dataclass(frozen=True)
class _Unit:
    """Rows that go to one role together: a group, or one row. `label` is their commonest, the smallest of equal ones."""

    key: str
    label: int
    rows: tuple[Drawn, ...]


def assign(rows: Sequence[Drawn], sizes: Mapping[str, Size], seed: int) -> dict[str, list[Drawn]]:
    """Distinct rows to roles, in the order of `DRAW_ORDER` with the rest last; raises DataError when a role cannot be filled.

    Units are ranked inside each label by sha256(seed, content of the row, or name of the group), so order and ids in the source do not
    matter and added rows move few others. Each next unit is of the label whose share (`apportion`) lacks most. Without groups a role holds
    exactly its count, and exactly its share of each label; with groups, which are never split, at least its count, by less than one group more.
    """
    wanted = counts(sizes, len(rows))
    ranked: dict[int, list[_Unit]] = defaultdict(list)
    for unit in sorted(_units(rows), key=lambda unit: sha256_bytes(f"{seed}:{unit.key}".encode()), reverse=True):
        ranked[unit.label].append(unit)
    assigned: dict[str, list[Drawn]] = {}
    for role in sorted(wanted, key=lambda role: (sizes[role] == REST, DRAW_ORDER.index(role))):
        left = {label: sum(len(unit.rows) for unit in units) for label, units in ranked.items()}
        taken = list(ranked.values()) if sizes[role] == REST else [_take(ranked, left, wanted[role])]
        assigned[role] = [row for units in taken for unit in units for row in unit.rows]
        if not assigned[role]:
            raise DataError(
                "A role would be empty: the groups are too large",
                where=f"data.roles.{role} in params.yaml",
                expected="at least one whole group in each role",
                got=f"{len({row.group for row in rows})} groups for {', '.join(f'{name} {size}' for name, size in sizes.items())}",
                next="lower data.roles in params.yaml, or add groups to the source",
            )
    return assigned


def _units(rows: Iterable[Drawn]) -> list[_Unit]:
    together: dict[str, list[Drawn]] = defaultdict(list)
    for row in rows:
        together[row.digest if row.group is None else f"group {row.group}"].append(row)
    units = []
    for key, members in together.items():
        labels = Counter(row.label for row in members)
        label = min(labels, key=lambda label: (-labels[label], label))
        units.append(_Unit(key, label, tuple(sorted(members, key=lambda row: row.digest))))
    return units


def _take(ranked: Mapping[int, list[_Unit]], left: Mapping[int, int], count: int) -> list[_Unit]:
    """Units from the ends of `ranked`, until they hold at least `count` rows or nothing is left."""
    lacking = apportion(min(count, sum(left.values())), left)
    taken: list[_Unit] = []
    rows = 0
    while rows < count:
        label = max((label for label in lacking if ranked[label]), key=lambda label: (lacking[label], -label), default=None)
        if label is None:
            break
        unit = ranked[label].pop()
        taken.append(unit)
        rows += len(unit.rows)
        for row in unit.rows:
            lacking[row.label] = lacking.get(row.label, 0) - 1
    return taken


def counts(sizes: Mapping[str, Size], total: int) -> dict[str, int]:
    """Sizes to counts of `total` distinct rows; raises DataError for an unknown role, two rests, and sizes that do not fit."""
    if unknown := sorted(set(sizes) - set(ROLES)):
        raise DataError("Unknown data role", where="data.roles", expected=", ".join(ROLES), got=", ".join(unknown))
    if [size for size in sizes.values() if isinstance(size, str)] not in ([], [REST]):
        raise DataError("Role sizes do not fit", where="data.roles", expected='at most one "rest"', got=str(dict(sizes)))
    wanted = {role: size for role, size in sizes.items() if isinstance(size, int)}
    wanted |= _shares({role: size for role, size in sizes.items() if isinstance(size, float)}, total)
    taken = sum(wanted.values())
    wanted |= {role: total - taken for role, size in sizes.items() if size == REST}
    for role, count in wanted.items():
        if count <= 0 or taken > total:
            asked = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise DataError(
                "A role would be empty" if taken <= total else "There are too few distinct rows for the roles",
                where=f"data.roles.{role} in params.yaml" if taken <= total else "data.roles in params.yaml",
                expected="at least one row in each role" if taken <= total else f"{taken} distinct rows ({asked})",
                got=f"{total} distinct rows for {asked}",
                next="lower data.roles in params.yaml, or add rows to the source",
            )
    return wanted


def _shares(shares: Mapping[str, float], total: int) -> dict[str, int]:
    """Shares to counts by largest remainder, so that shares which make one whole give away every row, and no more."""
    exact = {role: share * total for role, share in shares.items()}
    counted = {role: math.floor(count) for role, count in exact.items()}
    left = math.floor(math.fsum(exact.values()) + 0.5) - sum(counted.values())
    for role in sorted(exact, key=lambda role: (counted[role] - exact[role], DRAW_ORDER.index(role)))[:left]:
        counted[role] += 1
    return counted


def apportion(seats: int, pool: Mapping[int, int]) -> dict[int, int]:
    """Split `seats` over labels in proportion to `pool`, by largest remainder (Hamilton); never more than a label has."""
    total = sum(pool.values())
    shares = {label: seats * size // total for label, size in pool.items()} if total else dict.fromkeys(pool, 0)
    by_remainder = sorted(pool, key=lambda label: (-(seats * pool[label] % total) if total else 0, label))
    for label in by_remainder[: seats - sum(shares.values())]:
        shares[label] += 1
    return shares
