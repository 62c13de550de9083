"""The gates on a second runtime and on a second build, and the sentence on where the loss arises."""

from __future__ import annotations

import dataclasses

import pytest
from measured import ATTRIBUTION, LIMITS, agreement, check, hop, judged, rebuilt, validation

from pipeline.records import Attribution, Parting, Rebuild, Verdict
from release.agreement import loss_text
from release.rebuild_check import rebuild_check
from release.report import target_section
from release.texts import figure_text


def test_runtimes_that_do_not_agree_refuse_the_release_and_the_node_is_named() -> None:
    parted = Parting("deep3", "Conv", "deep3_y", 9.0, 31.0)
    evidence = judged(validation(agreed=agreement(9.1, parted)))
    found = check(evidence, "runtimes_agree")
    assert (evidence.verdict, evidence.ships, evidence.refuses, found.verdict) == (Verdict.FAIL, False, True, Verdict.FAIL)
    assert "deep3 (Conv)" in found.evidence
    assert "runtimes_agree is FAIL, 9.1 dB where at least 20 dB is allowed" in evidence.reason
    assert check(judged(validation(agreed=agreement(None))), "runtimes_agree").verdict is Verdict.PASS


def test_the_report_says_which_hop_and_which_node_lost_most() -> None:
    evidence = judged(validation())
    assert evidence.attribution == ATTRIBUTION
    text = "\n".join(target_section(evidence))
    sentence = "From simplified to openvino-cpu: 19.5 dB on 64 rows; 91% of the error power arises in simplified -> qdq, most at deep (Conv: 35.0 dB"
    assert sentence in text
    nothing = Attribution(64, (hop("simplified -> qdq", None),), (hop("simplified -> qdq", None),), None, None)
    assert loss_text(nothing) == "Nothing is lost from simplified to qdq on 64 rows."


@pytest.mark.parametrize(
    ("decibels", "files", "verdict", "says"),
    [
        (None, (), Verdict.PASS, "built twice: equal bytes; equal outputs on 64 rows"),
        (43.0, ("model.plan",), Verdict.PASS, "built twice: other bytes in model.plan; 43.0 dB at the worst output on 64 rows"),
        (19.9, ("model.plan",), Verdict.FAIL, "19.9 dB at the worst output"),
    ],
)
def test_a_second_build_must_answer_like_the_first(decibels: float | None, files: tuple[str, ...], verdict: Verdict, says: str) -> None:
    evidence = judged(validation(again=rebuilt(decibels, files)))
    found = check(evidence, "rebuild_variance")
    assert (found.verdict, found.figure, found.limit) == (verdict, decibels, LIMITS.rebuild_agree_db)
    assert says in found.evidence
    assert figure_text(found) == ("equal" if decibels is None else f"{decibels:.1f} dB")
    assert (bool(found.decide), evidence.refuses) == (verdict is Verdict.FAIL, verdict is Verdict.FAIL)


def test_a_build_that_does_not_run_here_is_not_measured() -> None:
    for nothing in (Rebuild(0, ("model.plan",), {}, None), None):
        assert (rebuild_check(nothing, 20.0).verdict, figure_text(rebuild_check(nothing, 20.0))) == (Verdict.NOT_MEASURED, "-")
    evidence = judged(dataclasses.replace(validation(), rebuild=None), LIMITS.model_copy(update={"rebuild_agree_db": None}))
    assert evidence.ships
    assert "rebuild_variance" not in [found.name for found in evidence.checks]
