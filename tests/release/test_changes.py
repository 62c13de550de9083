"""What changed since the last release, and what cannot be called better or worse."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import Refused
from pipeline.loading import load_object
from pipeline.records import Check, Interval, ReleaseManifest, Verdict
from release import bundle, changes, previous

ROOT = Path(__file__).resolve().parents[2]
make_parts: Callable[[Path], dict[str, Any]] = load_object("tests/fleet/tiny.py:make_parts", ROOT)


def check(figure: float, reach: float | None = 0.1, limit_is: str = "max") -> Check:
    interval = None if reach is None else Interval(figure - reach, figure + reach, 0.999)
    return Check("ratio", Verdict.PASS, figure, interval, 9.0, limit_is, "ratio", "", "")


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (check(1.0), check(1.5), "worse"),
        (check(1.5), check(1.0), "better"),
        (check(1.0), check(1.15), "no difference shown"),
        (check(1.0, limit_is="min"), check(1.5, limit_is="min"), "better"),
        (check(1.0, None), check(1.01, None), "worse"),
    ],
)
def test_a_figure_is_better_or_worse_only_where_intervals_are_apart(before: Check, after: Check, verdict: str) -> None:
    assert changes.compared(before, after) == verdict


def snapshot(figure: float = 1.0, machine: str = "m", **facts: Any) -> changes.Snapshot:
    side = changes.Side(Verdict.PASS, (check(figure),), machine)
    return changes.Snapshot("x", {"cpu": side}, **{"parameters": {"a.b": "1"}, "data": {}, "versions": {}, **facts})


def test_every_kind_of_change_is_listed_and_equal_ones_are_not() -> None:
    assert changes.changes(snapshot(), snapshot()) == []
    after = snapshot(2.0, parameters={"a.b": "2", "c": "3"}, data={"validation": "ff"}, versions={"torch": "3"}, size_bytes=20)
    found = changes.changes(snapshot(size_bytes=10), after)
    assert [(change.kind, change.name, change.verdict) for change in found] == [
        ("figure", "cpu ratio", "worse"), ("size", "bundle", "worse"), ("parameter", "a.b", "changed"), ("parameter", "c", "changed"),
        ("data", "validation", "changed"), ("version", "torch", "changed"),
    ]  # fmt: skip


def test_times_of_two_machines_are_not_compared() -> None:
    [change] = changes.changes(snapshot(), snapshot(2.0, machine="n"))
    assert change.verdict == "changed (another machine)"


def test_targets_that_come_and_go_and_verdicts_that_turn() -> None:
    gone = dataclasses.replace(snapshot(), targets={})
    assert [(c.name, c.before, c.after) for c in changes.changes(snapshot(), gone)] == [("cpu", "PASS", "not in it")]
    failed = dataclasses.replace(snapshot(), targets={"cpu": changes.Side(Verdict.FAIL, (check(1.0),), "m")})
    assert [c.verdict for c in changes.changes(snapshot(), failed)] == ["worse"]
    assert [c.verdict for c in changes.changes(failed, snapshot())] == ["better"]


def test_the_earlier_bundle_is_the_newest_below(tmp_path: Path) -> None:
    parts = make_parts(tmp_path / "parts")
    for version in ("0.9.0", "0.10.0", "1.0.0-rc1", "1.0.0"):
        bundle.pack(tmp_path / "release", **{**parts, "version": version})
    (tmp_path / "release/tiny-0.99.0").mkdir()
    (tmp_path / "release/tiny-0.99.0/manifest.json").write_text("{}")
    found = [previous.earlier(tmp_path / "release", "tiny", version) for version in ("0.9.0", "0.10.0", "1.0.0-rc1", "1.0.0", "1.1.0")]
    assert [manifest and manifest.version for manifest in found] == [None, "0.9.0", "0.10.0", "1.0.0-rc1", "1.0.0"]
    assert previous.earlier(tmp_path / "release", "other", "1.0.0") is None
    first, second = (ReleaseManifest.load(tmp_path / f"release/tiny-{version}/manifest.json") for version in ("0.9.0", "0.10.0"))
    names = {change.name for change in changes.changes(changes.of_manifest(first), changes.of_manifest(second))}
    assert names <= {"bundle"}  # the README's own version may change its length


def test_a_release_that_is_worse_than_the_last_is_refused_by_figure() -> None:
    previous.refuse_worse(None)
    previous.refuse_worse(("tiny 0.1.0", changes.changes(snapshot(), snapshot(0.5))))
    with pytest.raises(Refused, match=r"(?s)worse than the last.*tiny 0.1.0.*cpu ratio: 1.00x .* before, 2.00x"):
        previous.refuse_worse(("tiny 0.1.0", changes.changes(snapshot(), snapshot(2.0))))
