"""What the checks of a target are called, known before anything is measured: for waivers, and for evidence that lacks one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.config import GatesConfig

OWN_METRIC = {"accuracy_drop": "metric_drop", "reference_accuracy": "reference_metric"}
"""What these two are called where the metric is not right or wrong for each row; which of them it is, the metric's answers tell."""


def check_names(limits: GatesConfig) -> tuple[str, ...]:
    """The names of a measured target's checks under `limits`, in the order of its evidence (tests hold them to release/gates.py)."""
    asked = {
        "accuracy_drop": True,
        "worst_slice": limits.max_slice_drop is not None,
        "reference_accuracy": limits.min_reference is not None,
        "int8_share": True,
        "runtimes_agree": True,
        "rebuild_variance": limits.rebuild_agree_db is not None,
        "int8_speedup": True,
        "first_request_over_p50": True,
        "warm_sufficiency": True,
        "p99_over_p50": True,
        "ready": limits.max_ready_ms is not None,
        "peak_rss": limits.max_peak_rss_mb is not None,
        "engine_size": limits.max_engine_mb is not None,
        "firewall_clean": True,
    }
    return tuple(name for name, wanted in asked.items() if wanted)
