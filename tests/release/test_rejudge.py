"""A release believes no verdict that the evidence's own checks do not bear out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Config, GatesConfig, load_config
from pipeline.errors import REFUSED, RecordError, Refused
from pipeline.loading import load_object
from pipeline.records import Check, DriftReport, Evidence, Interval, Validation, Verdict
from release import gates
from release.check_names import CHECKS, EXCUSABLE, OWN_METRIC, check_names, limit_of
from release.latency_checks import latency_checks
from release.rejudge import refuse_other_verdicts
from stages import evidence as stored
from stages import paths, release

ROOT = Path(__file__).resolve().parents[2]
TINY = "tests/release/measured.py"
drift: Callable[..., DriftReport] = load_object(f"{TINY}:drift", ROOT)
validation: Callable[..., Validation] = load_object(f"{TINY}:validation", ROOT)
LIMITS: GatesConfig = load_object(f"{TINY}:LIMITS", ROOT)
TARGET = "openvino-cpu"
CLEAN = Check("firewall_clean", Verdict.PASS, 0.0, None, 0.0, "max", "rows", "no overlap was left", "")


def config(required: bool = True, **limits: Any) -> Config:
    read = load_config(ROOT / "params.yaml")
    targets = {TARGET: read.targets[TARGET].model_copy(update={"required": required})}
    return read.model_copy(update={"targets": targets, "gates": LIMITS.model_copy(update=limits)})


def judged(required: bool = True, limits: GatesConfig = LIMITS, **measured: Any) -> Evidence:
    return gates.judge_target(
        validation(**measured), limits, required=required, undecided="leave-out", machine={}, measured_at="2026-12-01T00:00:00+00:00", also=(CLEAN,)
    )


def edited(evidence: Evidence, name: str, **changes: Any) -> Evidence:
    checks = tuple(dataclasses.replace(check, **changes) if check.name == name else check for check in evidence.checks)
    return dataclasses.replace(evidence, checks=checks)


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize(
    "measured", [{}, {"share": 0.5}, {"trials": 3}, {"first": (3.0,), "control": ([3.0, *[1.0] * 98],)}], ids=["good", "fail", "undecided", "excused"]
)
def test_what_the_gate_wrote_is_believed(measured: dict[str, Any], required: bool) -> None:
    refuse_other_verdicts([judged(required, **measured)], config(required))


def test_a_target_that_was_not_measured_is_believed() -> None:
    absent = gates.not_measured(TARGET, "no such processor", required=False, machine={}, measured_at="2026-12-01T00:00:00+00:00")
    refuse_other_verdicts([absent], config(required=False))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (lambda good: edited(dataclasses.replace(good, verdict=Verdict.FAIL), "int8_share", verdict=Verdict.FAIL), "FAIL, required, does not ship"),
        (lambda good: edited(good, "int8_share", verdict=Verdict.UNDECIDED), "UNDECIDED, required, does not ship, refuses"),
        (lambda good: edited(good, "int8_share", verdict=Verdict.NOT_MEASURED), "NOT_MEASURED, required"),
        (lambda good: edited(good, "int8_share", figure=0.5), "int8_share at least 90 %"),
        (lambda good: edited(good, "accuracy_drop", interval=Interval(0.0, 0.5, 0.95)), "accuracy_drop at most 1 %"),
        (lambda good: edited(good, "int8_share", figure=0.5, limit=0.1), "int8_share by the limit 0.9"),
        (lambda good: edited(good, "int8_share", figure=None), "int8_share at least 90 %"),
        (lambda good: edited(good, "accuracy_drop", verdict=Verdict.UNDECIDED, excused=True), "no excuse of accuracy_drop"),
        (lambda good: edited(good, "p99_over_p50", excused=True), "PASS, excused"),
        (lambda good: dataclasses.replace(good, required=False, ships=False, reason="left out"), "PASS, not required, does not ship"),
        (lambda good: dataclasses.replace(good, refuses=True), "PASS, required, ships, refuses"),
        (lambda good: dataclasses.replace(good, checks=good.checks[1:]), "the checks accuracy_drop"),
        (lambda good: dataclasses.replace(good, checks=()), "NOT_MEASURED, required"),
    ],
)
def test_an_edited_verdict_is_refused_by_name(changed: Callable[[Evidence], Evidence], says: str) -> None:
    with pytest.raises(Refused, match=r"(?s)otherwise than its own checks.*evidence/openvino-cpu.json.*gate@openvino-cpu") as caught:
        refuse_other_verdicts([changed(judged())], config())
    assert says in str(caught.value)


def test_a_target_that_is_required_since_is_refused() -> None:
    with pytest.raises(Refused, match=r"(?s)FAIL, required, does not ship, refuses.*got: +openvino-cpu: FAIL, not required, does not ship"):
        refuse_other_verdicts([judged(required=False, share=0.5)], config(required=True))


def test_the_stage_refuses_before_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "params.yaml").read_text(encoding="utf-8")
    kept, rest = text.split("  onnxruntime-cpu:")[0], text[text.index("warmup:\n") :]
    paths.PARAMS.write_text(f"{kept}\n{rest}", encoding="utf-8")
    failed = edited(dataclasses.replace(judged(), verdict=Verdict.FAIL), "int8_share", verdict=Verdict.FAIL)
    failed.save(paths.evidence(TARGET))
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    with pytest.raises(Refused, match="openvino-cpu: FAIL, required, ships") as caught:
        release.run()
    assert caught.value.exit_code == REFUSED
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before
    dataclasses.replace(failed, target="onnxruntime-cpu").save(paths.evidence(TARGET))
    with pytest.raises(RecordError, match=r"(?s)of another target.*got: +onnxruntime-cpu"):
        stored.evidences()


@pytest.mark.parametrize("limits", [{}, {"rebuild_agree_db": None}, {"max_slice_drop": 0.1, "min_reference": 0.9, "max_ready_ms": 500.0,
                                    "max_peak_rss_mb": 100.0, "max_engine_mb": 9.0}], ids=["least", "no rebuild", "all"])  # fmt: skip
def test_the_names_of_checks_are_known_beforehand(limits: dict[str, Any]) -> None:
    asked = LIMITS.model_copy(update=limits)
    assert check_names(asked) == tuple(check.name for check in judged(limits=asked).checks)
    own = dataclasses.replace(drift(), interval=Interval(0.0, 0.001, 0.95), reference_interval=Interval(0.9, 1.0, 0.95), lost=None, gained=None)
    renamed = tuple(OWN_METRIC.get(name, name) for name in check_names(asked))
    assert [limit_of(name, asked) for name in renamed] == [check.limit for check in judged(limits=asked, rows=own).checks]
    assert renamed == tuple(check.name for check in judged(limits=asked, rows=own).checks)


def test_what_may_be_excused_are_the_checks_on_time() -> None:
    assert tuple(check.name for check in latency_checks(validation(), LIMITS)) == EXCUSABLE
    assert set(EXCUSABLE) <= set(CHECKS)


def test_a_check_that_params_yaml_does_not_ask_for_any_more_is_refused() -> None:
    with pytest.raises(Refused, match="rebuild_variance by the limit None"):
        refuse_other_verdicts([judged()], config(rebuild_agree_db=None))
