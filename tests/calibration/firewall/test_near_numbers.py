"""Which arrays come from one original, and how they are found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from tiny_corpora import smooth, table

from calibration.firewall.numeric import Numbers
from pipeline.errors import ConfigError, DataError

NUMBERS = Numbers()


def sensor(rng: np.random.Generator, rows: int) -> np.ndarray:
    return smooth(rng, rows, 256, 6)


def channels(rng: np.random.Generator, rows: int) -> np.ndarray:
    """(rows, 3, 128): a pressure, a temperature and the time, as a logger gives them."""
    ramp = np.broadcast_to(np.arange(128.0), (rows, 128))
    return np.stack([101325 + 10 * smooth(rng, rows, 128, 5), 20 + 5 * smooth(rng, rows, 128, 5), ramp], axis=1)


def times_first(rng: np.random.Generator, rows: int) -> np.ndarray:
    return channels(rng, rows).transpose(0, 2, 1)


def maps(rng: np.random.Generator, rows: int) -> np.ndarray:
    """(rows, 24, 24), a quarter of it blank."""
    result = rng.normal(size=(rows, 24, 24))
    result[:, :3] = result[:, -3:] = 0
    return result


def vectors(rng: np.random.Generator, rows: int) -> np.ndarray:
    return rng.normal(size=(rows, 384)).astype(np.float32)


def sines(rng: np.random.Generator, rows: int) -> np.ndarray:
    frequency, phase, amplitude = rng.uniform(1, 5, (rows, 1)), rng.uniform(0, 2 * np.pi, (rows, 1)), rng.uniform(0.5, 2, (rows, 1))
    return amplitude * np.sin(2 * np.pi * frequency * np.linspace(0, 1, 200) + phase)


FAMILIES = {family.__name__: family for family in (sensor, channels, times_first, maps, vectors)}


def deviation(row: np.ndarray) -> np.ndarray:
    """Of each channel where there are three, else of the row."""
    axis = row.shape.index(128) if 128 in row.shape else None
    return row.std(axis=axis, keepdims=True)


CHANGES: dict[str, Callable[[np.random.Generator, np.ndarray], np.ndarray]] = {
    "float32": lambda _, row: row.astype(np.float32),
    "scale 1.02": lambda _, row: row * 1.02,
    "scale 0.95": lambda _, row: row * 0.95,
    "noise 0.5 %": lambda rng, row: row + 0.005 * deviation(row) * rng.normal(size=row.shape),
    "noise 1 %": lambda rng, row: row + 0.01 * deviation(row) * rng.normal(size=row.shape),
}


def found_pairs(left: np.ndarray | list[np.ndarray], right: np.ndarray | list[np.ndarray]) -> dict[tuple[int, int], float]:
    """What the firewall would report: candidates, then decisions."""
    pairs = NUMBERS.candidates(np.stack([NUMBERS.sign(row) for row in left]), np.stack([NUMBERS.sign(row) for row in right])).tolist()
    decided = {(i, j): NUMBERS.distance(NUMBERS.evidence(left[i]), NUMBERS.evidence(right[j])) for i, j in pairs}
    return {pair: distance for pair, distance in decided.items() if distance is not None}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("family", FAMILIES)
def test_changed_copies_are_found_among_their_family(family: str, change: str) -> None:
    """At least 38 of 40 copies, and no pair that is none."""
    rng = np.random.default_rng(7)
    rows, others = FAMILIES[family](rng, 40), FAMILIES[family](rng, 160)
    copies = [CHANGES[change](rng, row) for row in rows]
    found = found_pairs(rows, copies + [other.astype(copies[0].dtype) for other in others])
    assert all(i == j for i, j in found)
    assert len(found) >= 38
    assert max(found.values()) <= NUMBERS.tolerance


@pytest.mark.parametrize("family", ["sensor", "maps", "vectors"])
def test_float16_is_near(family: str) -> None:
    rows = FAMILIES[family](np.random.default_rng(8), 20)
    assert found_pairs(rows, rows.astype(np.float16)).keys() == {(i, i) for i in range(20)}


def test_strong_noise_and_another_row_of_a_smooth_family_are_not_near() -> None:
    rng = np.random.default_rng(9)
    rows = sensor(rng, 30)
    assert not found_pairs(rows, rows + 0.05 * rng.normal(size=rows.shape))
    assert not found_pairs(sines(rng, 400), sines(rng, 2000)), "chance brings some of 800,000 pairs of sines within 2 %"


def test_copies_of_a_plain_curve_are_found_where_chance_is_no_explanation() -> None:
    rows = sines(np.random.default_rng(10), 40)
    assert len(found_pairs(rows, rows.astype(np.float16))) >= 38


def test_a_tables_rows_are_near_only_when_every_column_agrees() -> None:
    rng = np.random.default_rng(11)
    rows = table(rng, 200)
    assert found_pairs(rows, rows.astype(np.float32)).keys() == {(i, i) for i in range(200)}
    assert len(found_pairs(rows, rows.astype(np.float16))) >= 195
    assert not found_pairs(rows, table(rng, 2000))
    for column in range(10):
        other = rows.copy()
        other[:, column] += 1
        if column != 4:  # an income one higher is the same to one in a thousand
            assert not found_pairs(rows, other), column


def test_counts_and_single_numbers_are_near_only_to_equal_ones() -> None:
    counts = np.array([[40, 1, 3, 0, 2], [41, 1, 3, 0, 2], [40, 1, 3, 1, 2]])
    assert found_pairs(counts, counts.astype(np.float64)) == {(0, 0): 0.0, (1, 1): 0.0, (2, 2): 0.0}
    singles = [np.array(value) for value in (0.5, 0.50001, 3.0, 3.0003)]
    assert found_pairs(singles, singles).keys() == {(i, i) for i in range(4)}
    assert found_pairs([np.full(500, 0.5)], [np.full(500, 0.5004)]) == {}
    large = np.array([2**60, 7])
    assert NUMBERS.distance(large, large + np.array([1, 0])) is None


def test_shapes_and_places_that_are_not_finite_must_be_equal() -> None:
    row = np.random.default_rng(12).normal(size=(8, 16))
    holed = row.copy()
    holed[2, 3], holed[0, 0] = np.nan, np.inf
    negative = holed.copy()
    negative[0, 0] = -np.inf
    assert NUMBERS.distance(row, row.ravel()) is None
    assert NUMBERS.distance(row, row.T) is None
    assert NUMBERS.distance(holed, row) is None
    assert NUMBERS.distance(holed, negative) is None
    assert 0 < NUMBERS.distance(holed, holed.astype(np.float32)) < 1e-6
    assert not found_pairs([row], [row.ravel(), row.T, holed])
    assert found_pairs([holed], [holed.astype(np.float32)]).keys() == {(0, 0)}


@settings(max_examples=80, deadline=None)
@given(
    st_numpy.arrays(
        st.sampled_from([np.float64, np.float32, np.float16, np.int64, np.uint8, np.bool_]),
        st_numpy.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=12),
    ),
    st.integers(0, 2**32 - 1),
)
def test_any_array_is_signed_and_compared_with_itself_and_another(array: np.ndarray, seed: int) -> None:
    """NaN, infinities, the largest floats, empty and constant arrays: no warning, no exception; symmetric; 0 to itself."""
    rng = np.random.default_rng(seed)
    other = rng.permutation(array.ravel()).reshape(array.shape)
    with np.errstate(all="raise", under="ignore"):
        signatures = np.stack([NUMBERS.sign(array), NUMBERS.sign(other)])
        assert NUMBERS.distance(array, array.copy()) == 0
        one, two = NUMBERS.distance(array, other), NUMBERS.distance(other, array)
    assert (one is None) == (two is None)
    assert one is None or (0 <= one <= 1 and one == pytest.approx(two))
    assert [0, 0] in NUMBERS.candidates(signatures, signatures).tolist()


def test_order_of_rows_changes_nothing() -> None:
    rng = np.random.default_rng(13)
    left, right = sensor(rng, 30), sensor(rng, 50)
    right[:20] = left[:20] * 1.01
    order = rng.permutation(50)
    found = found_pairs(left, right)
    assert len(found) == 20
    assert {(i, int(order[j])): distance for (i, j), distance in found_pairs(left, right[order]).items()} == found


def test_a_signature_does_not_depend_on_type_or_memory_order() -> None:
    row = np.random.default_rng(14).normal(size=(20, 30)).astype(np.float32)
    assert (NUMBERS.sign(row) == NUMBERS.sign(row.astype(np.float64))).all()
    assert (NUMBERS.sign(row) == NUMBERS.sign(np.asfortranarray(row))).all()
    assert (NUMBERS.sign(row) == NUMBERS.sign(row.astype(">f4"))).all()
    assert NUMBERS.sign(row).shape == (NUMBERS.signature_bytes,)


@pytest.mark.parametrize("content", [np.array("text"), np.array([1 + 2j]), np.array([None])])
def test_what_is_no_array_of_numbers_is_named(content: np.ndarray) -> None:
    with pytest.raises(DataError, match="no array of numbers"):
        NUMBERS.sign(content)


@pytest.mark.parametrize("tolerance", [0, -1, 0.5, float("nan")])
def test_a_tolerance_that_makes_no_sense_is_refused(tolerance: float) -> None:
    with pytest.raises(ConfigError, match="tolerance"):
        Numbers(tolerance)


def test_the_tolerance_is_in_the_version_and_decides() -> None:
    rng = np.random.default_rng(15)
    row = rng.normal(size=400)
    noisy = row + 0.03 * rng.normal(size=400)
    assert NUMBERS.distance(row, noisy) is None
    assert Numbers(0.05).distance(row, noisy) == pytest.approx(0.03, rel=0.2)
    assert Numbers(0.05).version != NUMBERS.version
