"""The plotted medians are those of the trials."""

from __future__ import annotations

from pipeline.records import Trial
from release.plots import latency_csv


def trial(variant: str, *requests: float) -> Trial:
    return Trial(variant, {}, requests, (), 1.0)


def test_medians_by_request_number_as_far_as_every_process_goes() -> None:
    trials = [trial("cold", 9.0, 1.0, 1.0), trial("cold", 11.0, 3.0), trial("warm", 1.0, 2.0), trial("float", 4.0, 5.0)]
    assert latency_csv(trials).splitlines() == ["request,cold_ms,warm_ms,float_ms", "1,10.000000,1.000000,4.000000", "2,2.000000,2.000000,5.000000"]


def test_nothing_measured_is_a_header_alone() -> None:
    assert latency_csv([]) == latency_csv([trial("warm", 1.0)]) == "request,cold_ms,warm_ms,float_ms\n"
