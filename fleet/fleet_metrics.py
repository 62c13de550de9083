"""The controller's part of `/metrics`, in Prometheus' text format: what warm-ups brought, by model, policy and mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fleet.metrics import sample

PER_MODEL = {
    "requests": ("qwarm_fleet_requests_total", "counter", "Requests by model."),
    "cold": ("qwarm_cold_starts_total", "counter", "Requests that met a model that was not warm."),
    "prewarms": ("qwarm_prewarms_total", "counter", "Warm-ups begun ahead of demand."),
    "prewarm_hits": ("qwarm_prewarm_hits_total", "counter", "Warm-ups ahead of demand that a request met; over all of them: the warm-up hit rate."),
    "wasted": ("qwarm_prewarms_wasted_total", "counter", "Warm-ups ahead of demand that no request met."),
    "late_loads": ("qwarm_prewarms_late_total", "counter", "Warm-ups ahead of demand that were still going on when a request came."),
    "loads": ("qwarm_loads_total", "counter", "Loads begun."),
    "load_failures": ("qwarm_load_failures_total", "counter", "Loads that failed, hung included."),
    "evictions": ("qwarm_evictions_total", "counter", "Times that a model gave way to another."),
    "rollbacks": ("qwarm_rollbacks_total", "counter", "Returns to the last good bundle."),
    "warm_idle_s": ("qwarm_warm_idle_seconds_total", "counter", "Time in which memory was held and nobody used it."),
    "coverage": ("qwarm_forecast_coverage_ratio", "gauge", "Outcomes inside their 90 % interval, as a share."),
    "skill": ("qwarm_forecast_skill_ratio", "gauge", "1 - error of the forecast over that of a moving average, recent half-hours."),
}
WHOLE = {
    "memory_mb": ("qwarm_fleet_memory_megabytes", "gauge", "Memory promised to models, by what their releases measured."),
    "cap_mb": ("qwarm_fleet_memory_cap_megabytes", "gauge", "The cap."),
    "forecasts": ("qwarm_forecasts_total", "counter", "Forecasts made."),
    "forecast_seconds": ("qwarm_forecast_seconds_total", "counter", "Processor time of forecasts."),
}


def fleet_page(status: Mapping[str, Any]) -> str:
    """`status`: `Controller.status`."""
    lines: list[str] = []
    for key, (name, kind, meaning) in WHOLE.items():
        if status[key] is not None:
            lines += [*_head(name, kind, meaning), sample(name, (), status[key])]
    lines += _head("qwarm_fleet_mode", "gauge", "1 for the mode that the controller is in.")
    lines += [sample("qwarm_fleet_mode", (("mode", mode),), int(mode == status["mode"])) for mode in ("NORMAL", "CONSERVATIVE")]
    models = status["models"]
    lines += _head("qwarm_model_warm", "gauge", "1 while the model is warm.")
    lines += [sample("qwarm_model_warm", (("model", model),), int(facts["phase"] == "WARM")) for model, facts in models.items()]
    for key, (name, kind, meaning) in PER_MODEL.items():
        found = [sample(name, (("model", model),), facts[key]) for model, facts in models.items() if facts.get(key) is not None]
        lines += [*_head(name, kind, meaning), *found] if found else []
    lines += _head("qwarm_decisions_total", "counter", "Plans made, by model, policy and mode.")
    lines += [
        sample("qwarm_decisions_total", (("model", model), *zip(("policy", "mode"), made.split(" "), strict=True)), count)
        for model, facts in models.items()
        for made, count in sorted(facts["decisions"].items())
    ]
    lines += _head("qwarm_mode_changes_total", "counter", "Changes into each mode or lane.")
    lines += [sample("qwarm_mode_changes_total", (("mode", mode),), count) for mode, count in sorted(status["mode_changes"].items())]
    return "\n".join(lines) + "\n"


def _head(name: str, kind: str, meaning: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"
