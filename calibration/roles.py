"""Which row plays which role: drawn from row content, stratified by label, provably disjoint."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

from calibration.prepared import Prepare, prepare_row
from calibration.sources import Source
from pipeline.digests import merkle_root, sha256_bytes
from pipeline.errors import DataError
from pipeline.records import ROLES, Finding, Role, Roles
from pipeline.tensors import AxisRange, TensorSpec

Size = int | float | str
"""A count of rows, a share of the distinct rows (0 < share < 1), or "rest"."""
REST = "rest"
ALL = ("all rows",)
"""The one stratum, in place of class names, of a source without classes."""
DRAW_ORDER = ("train", "warmup", "search", "calibration", "validation")
"""Calibration next to last: another number of its rows moves only validation, so nothing is trained or exported again."""


@dataclasses.dataclass(frozen=True)
class Drawn:
    """What is kept of a row while roles are drawn. `label` is the index of its class, 0 for every row without classes."""

    id: str
    digest: str
    label: int


def draw(
    source: Source,
    prepare: Prepare,
    specs: tuple[TensorSpec, ...],
    *,
    sizes: Mapping[str, Size],
    seed: int,
    preprocess_sha256: str,
    shapes: Mapping[str, AxisRange] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Roles:
    """Read every row of `source` once and give each distinct one at most one role.

    Rows are ranked inside each label by sha256(seed, content), so order and ids in the source do not matter and added
    rows move few others. A repeated content is kept once (lowest id); the others are listed as moved out. Raises DataError
    for a row that cannot be read or prepared, equal content with two classes, and a role that cannot be filled.
    """
    strata = source.class_names or ALL
    rows: dict[str, Drawn] = {}
    findings = []
    for done, row in enumerate(source.rows(), start=1):
        prepare_row(row.id, row.raw, prepare, specs, shapes)
        drawn = Drawn(row.id, row.digest, int(row.label) if source.class_names and row.label is not None else 0)
        kept = rows.setdefault(row.digest, drawn)
        if kept.id != row.id:
            findings.append(_duplicate(kept, drawn, strata))
        if progress is not None:
            progress(done, source.count, "")
    assigned = assign(list(rows.values()), sizes, seed)
    return Roles(
        source=source.path.name,
        source_sha256=source.sha256,
        preprocess_sha256=preprocess_sha256,
        seed=seed,
        source_rows=source.count,
        class_names=source.class_names,
        findings=tuple(findings),
        roles={name: _role(chosen, strata) for name, chosen in assigned.items()},
    )


def _duplicate(kept: Drawn, other: Drawn, class_names: Sequence[str]) -> Finding:
    if kept.label != other.label:
        raise DataError(
            "Equal content has two labels",
            where=f"rows {kept.id} and {other.id}",
            expected=f"one label ({class_names[kept.label]} in row {kept.id})",
            got=f"{class_names[other.label]} in row {other.id}",
            next="correct one of the two rows in the source",
        )
    return Finding(left=kept.id, right=other.id, kind="exact", action="moved")


def _role(rows: Sequence[Drawn], class_names: Sequence[str]) -> Role:
    ordered = sorted(rows, key=lambda row: row.id)
    labels = Counter(class_names[row.label] for row in ordered)
    digests = tuple(row.digest for row in ordered)
    return Role(rows=tuple(row.id for row in ordered), digests=digests, merkle_root=merkle_root(digests), labels=dict(sorted(labels.items())))


def assign(rows: Sequence[Drawn], sizes: Mapping[str, Size], seed: int) -> dict[str, list[Drawn]]:
    """Distinct rows to roles, in the order of `DRAW_ORDER` with the rest last; raises DataError when a role cannot be filled."""
    wanted = _counts(sizes, len(rows))
    ranked: dict[int, list[Drawn]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: sha256_bytes(f"{seed}:{row.digest}".encode())):
        ranked[row.label].append(row)
    assigned: dict[str, list[Drawn]] = {}
    for role in sorted(wanted, key=lambda role: (sizes[role] == REST, DRAW_ORDER.index(role))):
        shares = apportion(wanted[role], {label: len(left) for label, left in ranked.items()})
        assigned[role] = [row for label in sorted(ranked) for row in ranked[label][: shares[label]]]
        for label, share in shares.items():
            del ranked[label][:share]
    return assigned


def _counts(sizes: Mapping[str, Size], total: int) -> dict[str, int]:
    if unknown := sorted(set(sizes) - set(ROLES)):
        raise DataError("Unknown data role", where="data.roles", expected=", ".join(ROLES), got=", ".join(unknown))
    if [size for size in sizes.values() if isinstance(size, str)] not in ([], [REST]):
        raise DataError("Role sizes do not fit", where="data.roles", expected='at most one "rest"', got=str(dict(sizes)))
    counts = {
        role: math.floor(size * total + 0.5) if isinstance(size, float) else int(size) for role, size in sizes.items() if not isinstance(size, str)
    }
    taken = sum(counts.values())
    counts |= {role: total - taken for role, size in sizes.items() if size == REST}
    for role, count in counts.items():
        if count <= 0 or taken > total:
            asked = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise DataError(
                "A role would be empty" if taken <= total else "There are too few distinct rows for the roles",
                where=f"data.roles.{role} in params.yaml" if taken <= total else "data.roles in params.yaml",
                expected="at least one row in each role" if taken <= total else f"{taken} distinct rows ({asked})",
                got=f"{total} distinct rows for {asked}",
                next="lower data.roles in params.yaml, or add rows to the source",
            )
    return counts


def apportion(seats: int, pool: Mapping[int, int]) -> dict[int, int]:
    """Split `seats` over labels in proportion to `pool`, by largest remainder (Hamilton); never more than a label has."""
    total = sum(pool.values())
    shares = {label: seats * size // total for label, size in pool.items()} if total else dict.fromkeys(pool, 0)
    by_remainder = sorted(pool, key=lambda label: (-(seats * pool[label] % total) if total else 0, label))
    for label in by_remainder[: seats - sum(shares.values())]:
        shares[label] += 1
    return shares


def prove_disjoint(roles: Roles) -> None:
    """Check the manifest itself: every id and every content plays at most one role, roots and counts are right.

    `roles` and `release` call this on the manifest of all roles; `rows.rows_of` on the one role that a stage may see, where it
    holds rows, digests and root together. Raises DataError naming the roles and the row.
    """
    owner: dict[str, str] = {}
    for name, role in roles.roles.items():
        if len(role.rows) != len(role.digests) or sum(role.labels.values()) != len(role.rows) or not role.rows:
            _refuse(f"role {name}", "one digest and one label a row, and at least one row", f"{len(role.rows)} rows, {len(role.digests)} digests")
        if role.merkle_root != merkle_root(role.digests):
            _refuse(f"role {name}", f"Merkle root {role.merkle_root}", merkle_root(role.digests))
        for row_id, digest in zip(role.rows, role.digests, strict=True):
            for key in (f"id {row_id}", f"content {digest}"):
                if key in owner:
                    _refuse(f"row {row_id}, {key}", "at most one role, once", f"in {owner[key]} and in {name}")
                owner[key] = name


def _refuse(where: str, expected: str, got: str) -> None:
    raise DataError(
        "The roles are not disjoint, or their manifest was changed", where=where, expected=expected, got=got, next="run `dvc repro -f roles`"
    )
