"""Overlaps between catalogues: equal content, one group, or content that was derived from one original."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from calibration.firewall.catalogue import THREADS, Catalogue, kinds, stored_version
from calibration.firewall.kind import Kind
from calibration.firewall.store import VerdictStore
from pipeline.errors import DataError

EXACT, NEAR, GROUP = "exact", "near", "group"
Progress = Callable[[int, int, str], None]


@dataclasses.dataclass(frozen=True)
class Overlap:
    """A row of catalogue `right` that is also in catalogue `left` (indices into the list that was searched), with its nearest row there.

    `distance` is 0 for equal content and for rows of one group, and the kind's own distance, 0 to 1, for near ones.
    """

    left: int
    left_row: str
    right: int
    right_row: str
    kind: str
    distance: float


def find(
    catalogues: Sequence[Catalogue], *, tolerance: float, store: Path | None = None, progress: Progress = lambda *_: None
) -> tuple[Overlap, ...]:
    """Every overlap between two different catalogues, ordered by catalogues, row and kind.

    For each row of the later catalogue: its first equal row, else its nearest near row, in each earlier catalogue; one overlap for each
    group that both hold, named by its first row on either side. Time and memory grow linearly with the rows: candidates come from an
    index, and only they are read again and compared. Raises DataError where two catalogues hold different kinds of content.
    """
    content = kinds(tolerance)
    pairs = list(combinations(range(len(catalogues)), 2))
    found: list[Overlap] = []
    for done, (left, right) in enumerate(pairs):
        a, b = catalogues[left], catalogues[right]
        progress(done, len(pairs), f"{a.name} against {b.name}")
        if a.ids and b.ids and a.kind_of_field != b.kind_of_field:
            raise DataError(
                "The sources hold different kinds of content",
                where=f"{a.name} and {b.name}",
                expected=", ".join(a.kind_of_field),
                got=", ".join(b.kind_of_field),
                next="name the columns to compare",
            )
        equal = _exact(a, b)
        found += [Overlap(left, a.ids[i], right, b.ids[j], EXACT, 0.0) for i, j in equal]
        found += [Overlap(left, a.ids[i], right, b.ids[j], GROUP, 0.0) for i, j in _shared_groups(a, b)]
        taken = {j for _, j in equal}
        found += [Overlap(left, a.ids[i], right, b.ids[j], NEAR, distance) for i, j, distance in _near(a, b, taken, content, store)]
        progress(done + 1, len(pairs), f"{a.name} against {b.name}")
    return tuple(sorted(found, key=lambda overlap: (overlap.left, overlap.right, overlap.right_row, overlap.kind)))


def _exact(a: Catalogue, b: Catalogue) -> list[tuple[int, int]]:
    first: dict[str, int] = {}
    for place, digest in enumerate(a.digests):
        first.setdefault(digest, place)
    return [(first[digest], place) for place, digest in enumerate(b.digests) if digest in first]


def _shared_groups(a: Catalogue, b: Catalogue) -> list[tuple[int, int]]:
    firsts = []
    for catalogue in (a, b):
        first: dict[str, int] = {}
        for place, group in enumerate(catalogue.groups):
            if group is not None:
                first.setdefault(group, place)
        firsts.append(first)
    return [(firsts[0][group], firsts[1][group]) for group in sorted(firsts[0].keys() & firsts[1].keys())]


def _near(a: Catalogue, b: Catalogue, taken: set[int], content: dict[str, Kind], store: Path | None) -> list[tuple[int, int, float]]:
    """(row of a, row of b, distance): the nearest row of `a` for each row of `b` that has a near one and is not `taken`."""
    nearest: dict[int, tuple[float, int]] = {}
    for field, kind_name in a.kind_of_field.items():
        if not a.ids or not b.ids:
            continue
        kind = content[kind_name]
        swapped = len(a.ids) > len(b.ids)
        small, large = (b, a) if swapped else (a, b)
        proposed = kind.candidates(small.signatures[field], large.signatures[field]).tolist()
        pairs = [pair for i, j in proposed if (pair := (j, i) if swapped else (i, j))[1] not in taken]
        for (i, j), distance in _distances(a, b, field, pairs, kind, store).items():
            if distance is not None and (distance, i) < nearest.get(j, (np.inf, 0)):
                nearest[j] = (distance, i)
    return [(i, j, distance) for j, (distance, i) in sorted(nearest.items())]


def _distances(
    a: Catalogue, b: Catalogue, field: str, pairs: Sequence[tuple[int, int]], kind: Kind, store: Path | None
) -> dict[tuple[int, int], float | None]:
    verdicts = None if store is None else VerdictStore(store, kind.name, stored_version(kind, field, a.columns))
    decided: dict[tuple[int, int], float | None] = {}
    if verdicts is not None and pairs:
        known, distances = verdicts.get(*_digests(a, b, pairs))
        decided = {
            pair: None if np.isnan(distance) else float(distance) for pair, found, distance in zip(pairs, known, distances, strict=True) if found
        }
    undecided = [pair for pair in pairs if pair not in decided]
    if undecided:
        left = _evidence(a, {i for i, _ in undecided}, field, kind)
        right = _evidence(b, {j for _, j in undecided}, field, kind)
        with ThreadPoolExecutor(THREADS, thread_name_prefix="qwarm-near") as pool:
            results = list(pool.map(lambda pair: kind.distance(left[pair[0]], right[pair[1]]), undecided))
        decided |= dict(zip(undecided, results, strict=True))
        if verdicts is not None:
            verdicts.put(*_digests(a, b, undecided), results)
    return decided


def _digests(a: Catalogue, b: Catalogue, pairs: Sequence[tuple[int, int]]) -> tuple[list[str], list[str]]:
    return [a.digests[i] for i, _ in pairs], [b.digests[j] for _, j in pairs]


def _evidence(catalogue: Catalogue, places: set[int], field: str, kind: Kind) -> dict[int, Any]:
    """What `kind` compares of these rows, read again; raises DataError for a row that is gone or has changed."""
    expected = {catalogue.ids[place]: place for place in places}
    evidence = {}
    for row in catalogue.fetch(set(expected)):
        place = expected[row.id]
        if row.digest != catalogue.digests[place]:
            raise _changed(catalogue, row.id)
        evidence[place] = kind.evidence(catalogue.fields(row)[field])
    if missing := places - evidence.keys():
        raise _changed(catalogue, catalogue.ids[min(missing)])
    return evidence


def _changed(catalogue: Catalogue, row_id: str) -> DataError:
    return DataError(
        "The source changed while it was read",
        where=f"row {row_id} of {catalogue.name}",
        expected="the content of a moment ago",
        got="another, or none",
    )
