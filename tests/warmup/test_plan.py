from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pipeline.digests import sha256_arrays
from pipeline.errors import ConfigError
from pipeline.records import Situation, TensorSpec, WarmupPlan
from warmup.plan import batch_axis, pad_to_rung

SPECS = (TensorSpec("image", "float32", ("batch", 2)), TensorSpec("mask", "bool", ("batch",)))


def request(rows):
    return {"image": np.arange(rows * 2, dtype=np.float32).reshape(rows, 2), "mask": np.arange(rows) % 2 == 0}


def test_a_plan_has_every_batch_with_every_thread_count_and_ends_with_the_smallest(warmable):
    plan = warmable.plan()
    assert [(step.sizes["batch"], step.threads) for step in plan.steps] == [(8, 2), (4, 2), (1, 2), (8, 1), (4, 1), (1, 1)]
    assert all(len(step.rows) == step.sizes["batch"] and step.iterations == 2 for step in plan.steps)
    assert {row for step in plan.steps for row in step.rows} == set(range(6))
    assert (plan.concurrency, plan.engine_sha256, plan.rows_sha256) == (2, warmable.engine.digest(), sha256_arrays(warmable.rows))
    assert plan.ladder == {"batch": (1, 4, 8)}


def test_a_plan_survives_its_file(warmable, tmp_path):
    warmable.plan().save(tmp_path / "plan.json")
    assert WarmupPlan.load(tmp_path / "plan.json") == warmable.plan()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"batches": [1, 16]}, "batches"), ({"batches": [0]}, "batches"), ({"batches": []}, "batches"),
        ({"concurrency": []}, "concurrency"), ({"concurrency": [0, 1]}, "concurrency"), ({"iterations": 0}, "iterations"),
    ],
)  # fmt: skip
def test_what_cannot_be_warmed_is_refused(warmable, changes, named):
    with pytest.raises(ConfigError, match=f"warmup.{named}"):
        warmable.plan(**changes)


def test_a_plan_of_few_steps_has_the_whole_ladder(warmable):
    maker = warmable.maker()
    plan = maker.plan([(Situation({"batch": 8}, 2), 3), (maker.situations()[-1], 1)], "a test")
    assert [(step.sizes["batch"], step.threads, step.iterations) for step in plan.steps] == [(8, 2, 3), (1, 1, 1)]
    assert plan.ladder == {"batch": (1, 4, 8)}


def test_a_plan_needs_rows(warmable):
    empty = dataclasses.replace(warmable, rows={"image": warmable.rows["image"][:0]})
    with pytest.raises(ConfigError, match="rows"):
        empty.plan()


def test_a_model_without_a_batch_axis_is_refused():
    with pytest.raises(ConfigError, match="batch axis"):
        batch_axis((TensorSpec("image", "float32", (1, 2)),))


@pytest.mark.parametrize(("rows", "padded"), [(1, 1), (2, 4), (3, 4), (4, 4), (5, 8), (8, 8)])
def test_padding_repeats_the_last_row_up_to_the_next_rung(rows, padded):
    inputs, count = pad_to_rung(request(rows), SPECS, (1, 4, 8))
    assert count == rows
    for name, array in request(rows).items():
        assert inputs[name].shape[0] == padded
        assert inputs[name].dtype == array.dtype
        np.testing.assert_array_equal(inputs[name][:rows], array)
        assert (inputs[name][rows:] == array[-1]).all()


def test_padding_leaves_alone_what_fits_no_rung_or_does_not_fit_together():
    for odd in (request(9), request(0), {**request(2), "mask": np.zeros(3, bool)}, {"image": np.float32(3)}, {}):
        inputs, _ = pad_to_rung(odd, SPECS, (1, 4, 8))
        assert inputs is odd
    assert pad_to_rung(request(3), SPECS, ())[1] == 3
