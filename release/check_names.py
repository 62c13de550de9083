"""What the checks of a target are called, known before anything is measured: for waivers, and for evidence that lacks one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.config import GatesConfig

CHECKS = {
    "accuracy_drop": "max_drop",
    "worst_slice": "max_slice_drop",
    "reference_accuracy": "min_reference",
    "int8_share": "int8_share",
    "runtimes_agree": "runtimes_agree_db",
    "rebuild_variance": "rebuild_agree_db",
    "int8_speedup": "int8_speedup",
    "first_request_over_p50": "first_request_over_p50",
    "warm_sufficiency": "p99_over_p50",
    "p99_over_p50": "p99_over_p50",
    "ready": "max_ready_ms",
    "peak_rss": "max_peak_rss_mb",
    "engine_size": "max_engine_mb",
    "firewall_clean": "",
}
"""Each check and the limit under `gates` without which there is none, in the order of the evidence (tests hold them to release/gates.py)."""
OWN_METRIC = {"accuracy_drop": "metric_drop", "reference_accuracy": "reference_metric"}
"""What these two are called where the metric is not right or wrong for each row; which of them it is, the metric's answers tell."""
EXCUSABLE = ("int8_speedup", "first_request_over_p50", "warm_sufficiency", "p99_over_p50")
"""Those that a noisy machine may excuse: ratios of times."""


def check_names(limits: GatesConfig) -> tuple[str, ...]:
    """The names of a measured target's checks under `limits`, those of a metric that is right or wrong for each row."""
    return tuple(name for name, limit in CHECKS.items() if not limit or getattr(limits, limit) is not None)


def limit_of(name: str, limits: GatesConfig) -> float | None:
    """The limit that `limits` gives the check of this name; null where it asks for no such check."""
    plain = next((plain for plain, own in OWN_METRIC.items() if own == name), name)
    key = CHECKS.get(plain)
    return 0.0 if key == "" else getattr(limits, key) if key else None
