"""Noise on the machine makes no engine fail. noise.json: 15 fresh processes of the example's ONNX Runtime engine on a quiet machine, and 15 beside
two processes that kept both of its processors busy, recorded with one and the same plan."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pipeline.records import Trial
from pipeline.verdicts import Check, Verdict
from release.gates import latency_checks

RECORDED = json.loads(Path(__file__).with_name("noise.json").read_text())
LIMITS: Any = SimpleNamespace(side_confidence=0.999, int8_speedup=1.0, first_request_over_p50=1.5, p99_over_p50=2.5)


def checks(trials: list[Any]) -> dict[str, Check]:
    measured: Any = SimpleNamespace(coldstart=SimpleNamespace(trials=tuple(Trial.from_json(trial) for trial in trials)))
    return {check.name: check for check in latency_checks(measured, LIMITS) if check.name != "int8_speedup"}


def test_an_engine_that_passes_when_quiet_does_not_fail_beside_busy_processes() -> None:
    assert {check.verdict for check in checks(RECORDED["quiet"]).values()} == {Verdict.PASS}
    noisy = checks(RECORDED["busy"])
    assert noisy["first_request_over_p50"].verdict is not Verdict.FAIL
    tail = noisy["p99_over_p50"]
    assert tail.figure is not None
    assert tail.figure > 3 * LIMITS.p99_over_p50
    assert (tail.verdict, tail.excused, tail.decide) == (Verdict.UNDECIDED, True, "a quieter machine")


def test_the_noise_was_really_there() -> None:
    assert all(trial["busy_elsewhere"] > 0.3 for trial in RECORDED["busy"])
    assert all(trial["busy_elsewhere"] < 0.1 for trial in RECORDED["quiet"])


def test_an_engine_that_is_slow_fails_all_the_same() -> None:
    slow = [{**trial, "requests_ms": [4 * trial["requests_ms"][0], *trial["requests_ms"][1:]]} for trial in RECORDED["quiet"]]
    assert checks(slow)["first_request_over_p50"].verdict is Verdict.FAIL
