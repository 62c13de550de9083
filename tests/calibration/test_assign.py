"""Roles are assigned from content and seed alone: stable, stratified, whole groups, refused when they cannot be filled."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.assign import Drawn, apportion, assign
from pipeline.digests import sha256_bytes
from pipeline.errors import DataError

SIZES = {"train": 30, "calibration": 12, "search": 6, "warmup": 3, "validation": "rest"}


def fake_rows(count: int, classes: int, groups: int | None = None) -> list[Drawn]:
    def patient(i: int) -> str | None:
        return None if groups is None else f"patient {i * 61 % groups // (1 + i % 2)}"

    return [Drawn(f"{i:07d}", sha256_bytes(str(i).encode()), i % classes, patient(i)) for i in range(count)]


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


@settings(max_examples=25, deadline=None)
@given(st.integers(100, 300), st.integers(1, 4), st.integers(0, 9))
def test_without_groups_every_label_has_exactly_its_share(count: int, classes: int, seed: int) -> None:
    assigned = assign(fake_rows(count, classes), SIZES, seed)
    pool = Counter(row.label for row in fake_rows(count, classes))
    for role in ("train", "warmup", "search", "calibration"):
        shares = apportion(int(SIZES[role]), pool)
        assert Counter(row.label for row in assigned[role]) == Counter({label: share for label, share in shares.items() if share})
        pool.subtract(shares)


@settings(max_examples=40, deadline=None)
@given(st.integers(120, 300), st.integers(1, 3), st.integers(20, 60), st.integers(0, 9), st.randoms(use_true_random=False))
def test_groups_stay_whole_and_roles_reach_their_counts(count: int, classes: int, groups: int, seed: int, shuffler: object) -> None:
    rows = fake_rows(count, classes, groups)
    largest = max(Counter(row.group for row in rows).values())
    shuffled = list(rows)
    shuffler.shuffle(shuffled)  # type: ignore[attr-defined]
    assigned = assign(rows, SIZES, seed)
    assert {role: {row.id for row in members} for role, members in assigned.items()} == {
        role: {row.id for row in members} for role, members in assign(shuffled, SIZES, seed).items()
    }
    owners = {(row.group, role) for role, members in assigned.items() for row in members}
    assert len(owners) == len({group for group, _ in owners})
    assert sum(len(members) for members in assigned.values()) == count
    for role in ("train", "calibration", "search", "warmup"):
        assert int(SIZES[role]) <= len(assigned[role]) < int(SIZES[role]) + largest


def test_groups_too_large_for_the_roles_are_refused() -> None:
    with pytest.raises(DataError, match="groups are too large") as caught:
        assign(fake_rows(90, 1, 3), SIZES, 0)
    assert "3 groups" in caught.value.got


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
def test_roles_that_cannot_be_filled(sizes: dict[str, int | float | str], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        assign(fake_rows(60, 3), sizes, 0)
    assert caught.value.got


def test_shares_of_the_distinct_rows() -> None:
    sizes = {"train": 0.5, "calibration": 0.2, "search": 0.1, "warmup": 0.1, "validation": 0.1}
    assigned = assign(fake_rows(60, 3), sizes, 0)
    assert [len(assigned[name]) for name in sizes] == [30, 12, 6, 6, 6]


@pytest.mark.parametrize("total", [10, 13, 31, 62])
def test_shares_that_make_one_whole_are_never_too_many_rows(total: int) -> None:
    sizes = {"calibration": 0.25, "search": 0.25, "warmup": 0.25, "validation": 0.25}
    assigned = assign(fake_rows(total, 2), sizes, 0)
    assert sum(map(len, assigned.values())) == total
    assert max(map(len, assigned.values())) - min(map(len, assigned.values())) <= 1
