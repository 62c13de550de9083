"""Records are strict, canonical and equal after a round trip."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from pipeline.errors import RecordError
from pipeline.records import AxisRange, Check, Engine, Interval, Platform, TensorSpec, Verdict, WarmupPlan, WarmupStep

CHECK = Check("drop", Verdict.PASS, 0.001, Interval(0.0, 0.004, 0.95), 0.01, "max", "fraction", "781 rows", "", excused=False)
PLAN = WarmupPlan("t", "e" * 64, "r" * 64, "p" * 64, (WarmupStep({"batch": 2}, (0, 1), 2, 5),), {"batch": (2,)}, 2, 30.0, "auto")
PLATFORM = Platform("t", "k", {"isa": "avx2"}, "m", {"cores": "2"}, {"kernel": "6"}, None)


@pytest.mark.parametrize("record", [CHECK, PLAN, PLATFORM, TensorSpec("x", "float32", ("batch", 3))])
def test_round_trip(record: Check, tmp_path: Path) -> None:
    record.save(tmp_path / "r.json")
    again = type(record).load(tmp_path / "r.json")
    assert again == record
    assert again.digest() == record.digest()
    assert (tmp_path / "r.json").read_text() == record.to_text()


def test_schema_and_enum_names_are_written() -> None:
    assert PLAN.to_json()["schema"] == "qwarm.plan/2"
    assert CHECK.to_json()["verdict"] == "PASS"
    assert "schema" not in CHECK.to_json()


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"surprise": 1}, "surprise"),
        ({"schema": "qwarm.plan/99"}, "qwarm.plan/99"),
        ({"schema": None}, "schema"),
        ({"max_seconds": "30"}, "max_seconds"),
        ({"concurrency": True}, "concurrency"),
        ({"concurrency": 2.5}, "concurrency"),
        ({"steps": [{"sizes": {"batch": 1}, "rows": [0], "threads": 1}]}, "iterations"),
        ({"steps": [{"sizes": {"batch": "1"}, "rows": [0], "threads": 1, "iterations": 1}]}, "steps[0]: sizes.batch"),
    ],
)
def test_a_record_that_does_not_fit_is_refused_by_key(change: dict[str, object], names: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**PLAN.to_json(), **change}))
    with pytest.raises(RecordError) as caught:
        WarmupPlan.load(path)
    assert names in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    data = PLAN.to_json()
    del data["found_by"]
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(RecordError, match="found_by"):
        WarmupPlan.load(tmp_path / "plan.json")


@pytest.mark.parametrize("content", ["", "{", "[]", "\x00"])
def test_torn_files_are_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(RecordError, match="plan.json"):
        WarmupPlan.load(tmp_path / "plan.json")
    with pytest.raises(RecordError, match="missing"):
        WarmupPlan.load(tmp_path / "absent.json")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_never_written(value: float, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="finite"):
        dataclasses.replace(PLAN, max_seconds=value).save(tmp_path / "plan.json")
    assert list(tmp_path.iterdir()) == []


def test_an_integer_is_taken_where_a_float_is_declared() -> None:
    assert WarmupPlan.from_json({**PLAN.to_json(), "max_seconds": 30}).max_seconds == 30.0


def test_enum_by_unknown_name_is_refused() -> None:
    with pytest.raises(RecordError, match="UNDECIDED"):
        Check.from_json({**CHECK.to_json(), "verdict": "MAYBE"})


def test_nested_specs_and_ranges_keep_their_types() -> None:
    spec = TensorSpec.from_json({"name": "x", "dtype": "float32", "shape": ["batch", 3], "pad": None})
    assert spec.shape == ("batch", 3)
    assert spec.concrete({"batch": 4}) == (4, 3)
    assert Engine.__dataclass_fields__["shapes"].type == "dict[str, AxisRange]"
    assert AxisRange.from_json({"min": 1, "opt": 2, "max": 3}) == AxisRange(1, 2, 3)
