"""The named figures of a measured target, for the summary, the manifest and `dvc metrics`."""

from __future__ import annotations

from pipeline.records import Trial, Validation
from warmup import latency


def speedups(warm: tuple[Trial, ...], plain: tuple[Trial, ...]) -> tuple[float, ...]:
    """FP32 over INT8 p50, paired by round: above 1, INT8 is faster."""
    return latency.paired(latency.per_process(plain, latency.p50), latency.per_process(warm, latency.p50)) if warm and plain else ()


def figures_of(validation: Validation) -> dict[str, float]:
    """Named figures for the summary and the manifest: fractions, ratios, and medians over processes in ms. What was not measured is absent."""
    drift, trials = validation.drift, validation.coldstart.trials
    cold, warm, plain = (latency.variant(trials, name) for name in ("cold", "warm", "float"))

    def median(values: tuple[float, ...]) -> float | None:
        found = latency.estimate(values, 0.5)
        return found.figure if found else None

    names = ("float_accuracy", "int8_accuracy") if drift.interval is None else ("float_metric", "int8_metric")
    figures = {
        **dict(zip(names, (drift.reference_value, drift.engine_value), strict=True)),
        "drop": drift.drop,
        "agreement": drift.agreement,
        "sqnr_db": drift.sqnr_db,
        "validation_rows": float(drift.validation_rows),
        "int8_share": validation.census.int8_share if validation.census else None,
        "trials": float(len(warm)),
        "cold_first_over_p50": median(latency.per_process(cold, latency.first_over_p50)),
        "warm_first_over_p50": median(latency.per_process(warm, latency.first_over_p50)),
        "cold_first_request_ms": median(tuple(trial.requests_ms[0] for trial in cold)),
        "warm_first_request_ms": median(tuple(trial.requests_ms[0] for trial in warm)),
        "steady_p50_ms": median(latency.per_process(warm, latency.p50)),
        "steady_p99_ms": median(latency.per_process(warm, latency.p99)),
        "float_p50_ms": median(latency.per_process(plain, latency.p50)),
        "speedup": median(speedups(warm, plain)),
        "ready_ms": median(tuple(trial.phases_ms["ready"] for trial in warm if "ready" in trial.phases_ms)),
        "peak_rss_mb": max((trial.peak_rss_mb for trial in warm), default=None),
        "engine_mb": validation.engine_bytes / 1e6,
        "worst_slice_drop": max((part.drop for part in drift.slices if part.drop is not None), default=None),
        "kl_divergence": drift.kl_divergence,
    }
    return {name: value for name, value in figures.items() if value is not None}
