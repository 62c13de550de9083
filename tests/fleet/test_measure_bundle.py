"""`warm` on a host: what fresh processes measured of the first target whose processes live."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fleet import warm
from fleet.verify import verify
from pipeline.errors import TrialError


def test_a_target_whose_processes_fail_gives_way_to_the_next(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = verify(bundle, allow_unsigned=True).manifest.targets[0]
    monkeypatch.setattr(warm, "fitting", lambda _manifest, _target: [dataclasses.replace(good, target="first"), good])
    trials = warm._trials

    def failing_first(folder: Path, target: str, *rest: Any) -> Any:
        if target == "first":
            raise TrialError("it hangs")
        return trials(folder, target, *rest)

    monkeypatch.setattr(warm, "_trials", failing_first)
    said: list[str] = []
    found = warm.measure_bundle(bundle, allow_unsigned=True, runs=1, requests=8, log=said.append)
    assert (found["target"], found["fell_back"]) == (good.target, {"first": "it hangs"})
    assert "first cannot be measured" in said[0]
    assert found["ready_ms"] > 0
    monkeypatch.setattr(warm, "_trials", lambda *_: failing_first(bundle, "first"))
    with pytest.raises(TrialError, match="it hangs"):
        warm.measure_bundle(bundle, allow_unsigned=True, runs=1, requests=8, log=said.append)
