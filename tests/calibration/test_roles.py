"""Roles are drawn from content: stratified, disjoint, stable, and refused when they cannot be filled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_sources import CLASSES, SPECS, pictures, prepare

from calibration.roles import Drawn, apportion, assign, draw, prove_disjoint
from calibration.sources import Source, open_parquet
from pipeline.digests import merkle_root, sha256_bytes
from pipeline.errors import DataError
from pipeline.records import Roles

SIZES = {"train": 30, "calibration": 12, "search": 6, "warmup": 3, "validation": "rest"}


def open_rows(path: Path) -> Source:
    return open_parquet(path, {"image": "image", "label": "label"}, CLASSES)


def draw_from(path: Path, sizes: Mapping[str, int | float | str] = SIZES) -> Roles:
    return draw(open_rows(path), prepare, SPECS, sizes=sizes, seed=0, preprocess_sha256="0" * 64)


def content_by_role(roles: Roles) -> dict[str, str]:
    return {digest: name for name, role in roles.roles.items() for digest in role.digests}


def test_counts_labels_and_proof(write_pictures: Callable[..., Path]) -> None:
    roles = draw_from(write_pictures(pictures(90), [i % 3 for i in range(90)]))
    assert {name: len(role.rows) for name, role in roles.roles.items()} == {
        "train": 30,
        "calibration": 12,
        "search": 6,
        "warmup": 3,
        "validation": 39,
    }
    assert all(max(role.labels.values()) - min(role.labels.values()) <= 1 for role in roles.roles.values())
    prove_disjoint(roles)
    assert Roles.from_json(roles.to_json()) == roles


def test_row_order_does_not_matter(write_pictures: Callable[..., Path]) -> None:
    pixels, labels, order = pictures(60), np.arange(60) % 3, np.random.default_rng(5).permutation(60)
    first = draw_from(write_pictures(pixels, labels.tolist(), "a.parquet"))
    second = draw_from(write_pictures(pixels[order], labels[order].tolist(), "b.parquet"))
    assert content_by_role(first) == content_by_role(second)
    assert {name: role.merkle_root for name, role in first.roles.items()} == {name: role.merkle_root for name, role in second.roles.items()}


def fake_rows(count: int, classes: int, start: int = 0) -> list[Drawn]:
    return [Drawn(f"{i:07d}", sha256_bytes(str(i).encode()), i % classes) for i in range(start, start + count)]


@settings(max_examples=25, deadline=None)
@given(st.integers(200, 400), st.integers(1, 3), st.integers(1, 5), st.randoms(use_true_random=False))
def test_added_rows_move_few_others(count: int, classes: int, added: int, shuffler: object) -> None:
    before = assign(fake_rows(count, classes), SIZES, seed=1)
    more = fake_rows(count + added, classes)
    shuffler.shuffle(more)  # type: ignore[attr-defined]
    after = assign(more, SIZES, seed=1)
    old = {row.id: role for role, rows in before.items() for row in rows}
    moved = sum(old[row.id] != role for role, rows in after.items() for row in rows if row.id in old)
    # One added row can push at most one row over each of the four borders of its label; a changed proportion one more a label and border.
    assert moved <= 4 * added + 4 * classes
    assert sorted(row.id for rows in after.values() for row in rows) == sorted(row.id for row in more)


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 50), min_size=1), st.data())
def test_apportion_gives_exactly_the_seats_within_each_label(pool: dict[int, int], data: st.DataObject) -> None:
    seats = data.draw(st.integers(0, sum(pool.values())))
    shares = apportion(seats, pool)
    assert sum(shares.values()) == seats
    assert all(0 <= shares[label] <= pool[label] for label in pool)


def test_duplicates_play_one_role(write_pictures: Callable[..., Path]) -> None:
    pixels = pictures(60)
    pixels[[50, 51]] = pixels[[3, 7]]
    labels = (np.arange(60) % 3).tolist()
    labels[50], labels[51] = labels[3], labels[7]
    roles = draw_from(write_pictures(pixels, labels))
    assert [(f.left, f.right, f.action) for f in roles.findings] == [("0000003", "0000050", "moved"), ("0000007", "0000051", "moved")]
    used = [row for role in roles.roles.values() for row in role.rows]
    assert len(used) == 58
    assert not {"0000050", "0000051"} & set(used)


def test_one_content_with_two_labels_is_refused(write_pictures: Callable[..., Path]) -> None:
    pixels = pictures(60)
    pixels[50] = pixels[3]
    with pytest.raises(DataError, match="0000003 and 0000050"):
        draw_from(write_pictures(pixels, [0] * 50 + [1] * 10))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({**SIZES, "train": 200}, "too few distinct rows"),
        ({**SIZES, "train": 39}, "would be empty"),
        ({**SIZES, "search": "rest"}, "at most one"),
        ({**SIZES, "warmup": 0.001}, "would be empty"),
        ({**SIZES, "tests": 4}, "Unknown data role"),
    ],
)
def test_roles_that_cannot_be_filled(write_pictures: Callable[..., Path], sizes: dict[str, int | float | str], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        draw_from(write_pictures(pictures(60), [i % 3 for i in range(60)]), sizes)
    assert caught.value.got


def test_shares_of_the_distinct_rows(write_pictures: Callable[..., Path]) -> None:
    sizes = {"train": 0.5, "calibration": 0.2, "search": 0.1, "warmup": 0.1, "validation": 0.1}
    roles = draw_from(write_pictures(pictures(60), [i % 3 for i in range(60)]), sizes)
    assert [len(roles.roles[name].rows) for name in sizes] == [30, 12, 6, 6, 6]


def test_a_row_that_is_not_finite_names_row_and_input(write_pictures: Callable[..., Path]) -> None:
    def broken(raw: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        prepared = prepare(raw)
        if raw["image"][0, 0] == 77:
            prepared["image"][0, 2, 2] = np.nan
        return prepared

    pixels = pictures(60)
    pixels[:, 0, 0] = 0
    pixels[7, 0, 0] = 77
    with pytest.raises(DataError, match="row 0000007, input image"):
        draw(open_rows(write_pictures(pixels, [0] * 60)), broken, SPECS, sizes=SIZES, seed=0, preprocess_sha256="0" * 64)


def changed(roles: Roles, name: str, **fields: object) -> Roles:
    return dataclasses.replace(roles, roles={**roles.roles, name: dataclasses.replace(roles.roles[name], **fields)})


def test_the_proof_fails_on_every_tampering(write_pictures: Callable[..., Path]) -> None:
    roles = draw_from(write_pictures(pictures(60), [i % 3 for i in range(60)]))
    warmup, validation = roles.roles["warmup"], roles.roles["validation"]
    stolen = (*warmup.digests[:-1], validation.digests[0])
    for broken in (
        changed(roles, "warmup", merkle_root="0" * 64),
        changed(roles, "warmup", rows=validation.rows[:3]),
        changed(roles, "warmup", digests=stolen, merkle_root=merkle_root(stolen)),
        changed(roles, "warmup", rows=(), digests=(), labels={}, merkle_root=merkle_root(())),
        changed(roles, "warmup", labels={"0": 9}),
    ):
        with pytest.raises(DataError, match="not disjoint"):
            prove_disjoint(broken)
