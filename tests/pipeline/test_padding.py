"""Named axes: what may grow, how rows of different lengths meet in one batch, and how an answer is cut back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import DataError, InputError
from pipeline.padding import cut, fit, grow, named_sizes, paddable_axes, stack
from pipeline.tensors import AxisRange, TensorSpec

IDS = TensorSpec("ids", "int64", ("batch", "time"), 7.0)
MASK = TensorSpec("mask", "int64", ("batch", "time"), 0.0)
FIXED = TensorSpec("extra", "float32", ("batch", "time", 2))
SHAPES = {"batch": AxisRange(1, 2, 4), "time": AxisRange(3, 4, 8)}


def row(length: int) -> dict[str, np.ndarray]:
    return {"ids": np.arange(length), "mask": np.ones(length, np.int64)}


def test_an_axis_grows_only_when_every_input_that_carries_it_says_so() -> None:
    assert paddable_axes((IDS, MASK)) == {"time"}
    assert paddable_axes((IDS, FIXED)) == frozenset()
    assert paddable_axes((TensorSpec("x", "float32", ("batch", 3)),)) == frozenset()


@given(st.lists(st.integers(1, 8), min_size=1, max_size=5))
def test_rows_of_different_lengths_meet_at_the_longest_and_keep_their_values(lengths: list[int]) -> None:
    batch = stack([row(length) for length in lengths], (IDS, MASK), SHAPES, [f"row {i}" for i in range(len(lengths))])
    assert batch["ids"].shape == (len(lengths), max(3, *lengths))
    for index, length in enumerate(lengths):
        assert batch["ids"][index, :length].tolist() == list(range(length))
        assert set(batch["ids"][index, length:].tolist()) <= {7}
        assert batch["mask"][index].sum() == length
    assert batch["ids"].dtype == np.int64


def test_without_a_pad_value_the_row_that_differs_is_named() -> None:
    rows = [{"extra": np.zeros((3, 2), np.float32)}, {"extra": np.zeros((4, 2), np.float32)}]
    with pytest.raises(DataError, match=r"(?s)row b, input extra, axis time.*as row a has.*pad"):
        stack(rows, (FIXED,), SHAPES, ["row a", "row b"], DataError)
    with pytest.raises(InputError, match="wrong rank"):
        stack([{"extra": np.zeros(3, np.float32)}], (FIXED,), SHAPES, ["row a"])


def test_growing_and_cutting_back_are_inverse() -> None:
    inputs = {"ids": np.arange(6).reshape(2, 3), "mask": np.ones((2, 3), np.int64)}
    grown = grow(inputs, (IDS, MASK), {"time": 5})
    assert named_sizes(grown, (IDS, MASK)) == {"batch": 2, "time": 5}
    back = cut(grown, (IDS, MASK), named_sizes(inputs, (IDS, MASK)))
    assert all(np.array_equal(back[name], inputs[name]) for name in inputs)
    assert grow(inputs, (IDS, MASK), {"time": 3})["ids"] is inputs["ids"]


def test_fit_crops_and_repeats_every_named_axis() -> None:
    fitted = fit({"ids": np.arange(6).reshape(2, 3)}, (IDS,), {"batch": 3, "time": 2})
    assert fitted["ids"].tolist() == [[0, 1], [3, 4], [0, 1]]
