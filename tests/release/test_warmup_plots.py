"""What each warm-up step buys, drawn."""

from __future__ import annotations

from pipeline.records import Situation, StepGain
from release.warmup_plots import gains, said

SMALL, LARGE = Situation({"batch": 1}, 1), Situation({"batch": 16}, 4)


def test_a_situation_in_words() -> None:
    assert said(SMALL) == "batch 1"
    assert said(LARGE) == "batch 16, 4 callers"


def test_each_step_is_a_line_named_by_what_it_runs_and_what_it_makes_quicker() -> None:
    drawn = gains([StepGain(LARGE, 1, SMALL, 0.5, 9.0, 0.1), StepGain(SMALL, 16, SMALL, 0.5, 0.7, 0.01)])
    assert drawn.startswith("<svg")
    for text in ("1. batch 16, 4 callers, 1x", "2. batch 1, 16x", "first request, ms"):
        assert text in drawn
    assert gains([]) == ""
