"""The rows of one role, read again from the source and held to the manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from calibration.prepared import Prepare, prepare_row, stack_rows
from calibration.prove import prove_disjoint
from calibration.sources import Label, Row, Source
from pipeline.digests import labels_sha256
from pipeline.errors import DataError
from pipeline.records import Roles
from pipeline.tensors import AxisRange, Batch, TensorSpec


def rows_of(source: Source, roles: Roles, role: str) -> Iterator[Row]:
    """The decoded rows of `role` in source order, each compared with the digest that the manifest holds.

    Raises DataError when the role is absent, the manifest is not disjoint, or a row is gone or has changed since `roles`;
    after the last row, when a label has.
    """
    prove_disjoint(roles)
    if role not in roles.roles:
        raise DataError(
            "There is no such role", where="roles.json", expected=", ".join(roles.roles), got=role, next="add it to data.roles in params.yaml"
        )
    if source.class_names != roles.class_names:
        raise _changed("class names", ", ".join(roles.class_names), ", ".join(source.class_names))
    expected = list(zip(roles.roles[role].rows, roles.roles[role].digests, strict=True))
    labels: list[Label] = []
    for row in source.rows({row_id for row_id, _ in expected}):
        row_id, digest = expected[len(labels)]
        if (row.id, row.digest) != (row_id, digest):
            raise _changed(f"row {row_id} of {source.name}", f"content {digest}", f"row {row.id}, content {row.digest}")
        labels.append(row.label)
        yield row
    if len(labels) < len(expected):
        raise _changed(f"row {expected[len(labels)][0]} of {source.name}", "the row", f"a source without it, of {source.count} rows")
    if (found := labels_sha256(labels)) != roles.roles[role].labels_sha256:
        raise _changed(f"labels of the {role} rows of {source.name}", f"sha256 {roles.roles[role].labels_sha256} over all of them", f"sha256 {found}")


def _changed(where: str, expected: str, got: str) -> DataError:
    return DataError("The source has changed since roles were drawn", where=where, expected=expected, got=got, next="run `dvc repro roles`")


def batches(
    source: Source,
    roles: Roles,
    role: str,
    prepare: Prepare,
    specs: tuple[TensorSpec, ...],
    batch_rows: int,
    shapes: Mapping[str, AxisRange] | None = None,
    values: Mapping[str, tuple[int, int]] | None = None,
) -> Iterator[tuple[Batch, np.ndarray | None]]:
    """Prepared batches `{input: (n, ...)}` with labels, n <= `batch_rows`; the last may be short, none is dropped.

    Labels are class indices (n,) int64 where the source has classes, else the column's values (n,), or None without a label column.
    Memory holds one batch. Raises DataError as `rows_of`, `prepare_row` and `stack_rows` do.
    """
    prepared: list[dict[str, np.ndarray]] = []
    ids: list[str] = []
    labels: list[Label] = []
    for row in rows_of(source, roles, role):
        prepared.append(prepare_row(row.id, row.raw, prepare, specs, shapes, values))
        ids.append(row.id)
        labels.append(row.label)
        if len(prepared) == batch_rows:
            yield stack_rows(prepared, ids, specs, shapes), _label_array(source, labels)
            prepared, ids, labels = [], [], []
    if prepared:
        yield stack_rows(prepared, ids, specs, shapes), _label_array(source, labels)


def _label_array(source: Source, labels: list[Label]) -> np.ndarray | None:
    if source.label_of is None:
        return None
    return np.array(labels, dtype=np.int64) if source.class_names else np.array(labels)


def arrays(
    source: Source,
    roles: Roles,
    role: str,
    prepare: Prepare,
    specs: tuple[TensorSpec, ...],
    shapes: Mapping[str, AxisRange] | None = None,
    values: Mapping[str, tuple[int, int]] | None = None,
) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """All rows of a role in one batch `{input: (N, ...)}` and labels as `batches` gives them: for roles that fit in memory."""
    count = len(roles.roles[role].rows) if role in roles.roles else 1
    batch, labels = next(iter(batches(source, roles, role, prepare, specs, max(count, 1), shapes, values)))
    return dict(batch), labels
