"""The proof, from the manifest alone, that no row plays two roles."""

from __future__ import annotations

from pipeline.digests import merkle_root
from pipeline.errors import DataError
from pipeline.records import Roles


def prove_disjoint(roles: Roles) -> None:
    """Check the manifest itself: every id, every content and every group plays at most one role, roots and counts are right.

    `roles` and `release` call this on the manifest of all roles; `rows.rows_of` on the one role that a stage may see, where it
    holds rows, digests and root together. Raises DataError naming the roles and the row.
    """
    owner: dict[str, str] = {}
    for name, role in roles.roles.items():
        if len(role.rows) != len(role.digests) or sum(role.labels.values()) != len(role.rows) or not role.rows:
            _refuse(f"role {name}", "one digest and one label a row, and at least one row", f"{len(role.rows)} rows, {len(role.digests)} digests")
        if role.merkle_root != merkle_root(role.digests):
            _refuse(f"role {name}", f"Merkle root {role.merkle_root}", merkle_root(role.digests))
        if role.source not in roles.sources:
            _refuse(f"role {name}", f"one of the sources {', '.join(roles.sources)}", role.source)
        rows = [(f"row {row_id}", keys) for row_id, digest in zip(role.rows, role.digests, strict=True)
                for keys in (f"id {role.source}:{row_id}", f"content {digest}")]  # fmt: skip
        for where, key in [*rows, *((f"group {group}", f"group {group}") for group in role.groups)]:
            if key in owner:
                _refuse(f"{where}, {key}", "at most one role, once", f"in {owner[key]} and in {name}")
            owner[key] = name


def _refuse(where: str, expected: str, got: str) -> None:
    raise DataError(
        "The roles are not disjoint, or their manifest was changed", where=where, expected=expected, got=got, next="run `dvc repro -f roles`"
    )
