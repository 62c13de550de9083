"""`qwarm replay TRACES`: what each policy would have cost on recorded requests, with the controller's own code on a virtual clock."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.options import existing
from pipeline.errors import ConfigError

HOURS = 3600.0


def replay_files(
    traces: list[str],
    policies: list[str],
    *,
    price_s: float = 600.0,
    thin: int = 1,
    seed: int = 0,
    load_s: float = 4.0,
    size_mb: float = 100.0,
    cap_mb: float | None = None,
    fleet: str | None = None,
    plots: str | None = None,
    lstm: str | None = None,
    statsforecast: bool = False,
) -> dict[str, Any]:
    """Replay CSV files (see `fleet.traces`) under each policy; models are the files', or those of their column `model`.

    `fleet`: JSON of models with measured costs (`fleet.settings`); models that it does not name get `load_s` and `size_mb`.
    Raises ConfigError and DataError; nothing is written then.
    """
    from cli import replay_plots
    from fleet.controller import Controller
    from fleet.extras import extra_parts
    from fleet.forecaster import Forecasts, Models
    from fleet.frontier import frontier
    from fleet.models import ModelSpec
    from fleet.replay import ORACLE, POLICIES, SELECTOR, Replay, Workload, policy_of
    from fleet.settings import read_settings
    from fleet.traces import read_traces
    from pipeline.files import write_text

    known = [*POLICIES, SELECTOR, ORACLE]
    for policy in policies:
        if policy not in known:
            raise ConfigError("There is no such policy", where="--policy", expected=", ".join(known), got=policy, next="correct --policy")
    if not 0.0 < price_s < 1e12 or thin < 1:
        expected, got = "above 0, and 1 or more", f"{price_s:g}, {thin}"
        raise ConfigError("An option is out of range", where="--price-s and --thin", expected=expected, got=got, next="correct the option")
    settings = read_settings(fleet) if fleet else None
    given = {spec.name: spec for spec in settings.models} if settings else {}
    cap = cap_mb if cap_mb is not None else settings.cap_mb if settings else None
    times: dict[str, list[float]] = {}
    notes: dict[str, dict[str, int]] = {}
    start, end = float("inf"), 0.0
    for file in traces:
        for trace in read_traces(file):
            if trace.model in times:
                raise ConfigError("Two traces are of one model", where=file, expected="each model once", got=trace.model, next="name one of them")
            times[trace.model], notes[trace.model] = trace.arrivals(1.0 / thin, seed), trace.notes
            start, end = min(start, float(trace.starts[0])), max(end, trace.end)
    specs = tuple(given.get(name, ModelSpec(name, weights_mb=size_mb, load_s=load_s)) for name in times)
    workload = Workload(Path(traces[0]).stem if len(traces) == 1 else "replay", specs, times, start, end, synthetic=False)
    fixed = frontier(workload)
    extras = extra_parts(Path(lstm) if lstm else None, statsforecast)
    outcomes = {}
    for policy in policies or [*POLICIES, SELECTOR, ORACLE]:
        controller = Controller(specs, policy=policy_of(policy, workload), price_s=price_s, cap_mb=cap, forecasts=Forecasts(Models(extras)))
        outcomes[policy] = Replay(workload, controller, timeline=plots is not None).run()
    if plots is not None:
        write_text(Path(plots) / "frontier.svg", replay_plots.frontier_plot(workload, fixed, outcomes))
        model = max(times, key=lambda name: len(times[name]))
        write_text(Path(plots) / "timeline.svg", replay_plots.timeline_plot(workload, model, outcomes))
    return {
        "requests": fixed.requests,
        "thinned_to_one_in": thin,
        "price_s": price_s,
        "cap_mb": cap,
        "days": (end - start) / 86400.0,
        "models": {spec.name: {**dataclasses.asdict(spec), "requests": len(times[spec.name]), "notes": notes[spec.name]} for spec in specs},
        "policies": {
            name: {
                **outcome.figures(),
                "decision_us": outcome.decision_us,
                "warm_idle_over_frontier": _ratio(outcome.warm_idle_s, fixed.idle_at(outcome.cold_rate)),
            }
            for name, outcome in outcomes.items()
        },
    }


def _ratio(value: float, base: float) -> float | None:
    return value / base if base > 1.0 else None


def describe(result: dict[str, Any]) -> str:
    """A table for a person."""
    lines = [
        f"{result['requests']} requests of {len(result['models'])} models in {result['days']:.3g} days; "
        f"a cold start is worth {result['price_s']:g} s of warm memory",
        f"{'policy':<18}{'cold':>8}{'warm idle':>12}{'over frontier':>15}{'warm-ups':>10}{'wasted':>8}{'hit':>7}"
        f"{'p99 added':>12}{'cost':>12}{'decision':>10}",
    ]
    for name, figures in sorted(result["policies"].items(), key=lambda item: item[1]["cost"]):
        over = figures["warm_idle_over_frontier"]
        lines.append(
            f"{name:<18}{100 * figures['cold_rate']:>7.2f}%{figures['warm_idle_s'] / HOURS:>10.1f} h{'-' if over is None else f'{over:.3f}':>15}"
            f"{figures['prewarms']:>10}{figures['wasted']:>8}{100 * figures['hit_rate']:>6.0f}%{figures['p99_added_ms']:>9.0f} ms"
            f"{figures['cost'] / HOURS:>10.1f} h{figures['decision_us']:>7.0f} us"
        )
    odd = {name: model["notes"] for name, model in result["models"].items() if any(model["notes"].values())}
    return "\n".join([*lines, *(f"{name}: {', '.join(f'{count} {what}' for what, count in found.items() if count)}" for name, found in odd.items())])


def replay(
    traces: Annotated[list[str], typer.Argument(metavar="TRACES", help="CSV files: timestamp and count, or timestamp and model", callback=existing)],
    policy: Annotated[list[str] | None, typer.Option(help="a policy to replay, several times for several (default: all)")] = None,
    price_s: Annotated[float, typer.Option(help="seconds of warm memory that a cold start is worth")] = 600.0,
    thin: Annotated[int, typer.Option(help="keep one request in so many, at random")] = 1,
    seed: Annotated[int, typer.Option(help="of the thinning")] = 0,
    load_s: Annotated[float, typer.Option(help="seconds that a load takes, for models that --fleet does not name")] = 4.0,
    size_mb: Annotated[float, typer.Option(help="memory of a warm model, for models that --fleet does not name")] = 100.0,
    cap_mb: Annotated[float | None, typer.Option(help="memory for all models together")] = None,
    fleet: Annotated[str | None, typer.Option(help="JSON file of models with what their release measured", callback=existing)] = None,
    plots: Annotated[str | None, typer.Option(metavar="DIR", help="write frontier.svg and timeline.svg there")] = None,
    lstm: Annotated[str | None, typer.Option(metavar="FILE", help="a further part of forecasts: a file of `qwarm lstm`", callback=existing)] = None,
    statsforecast: Annotated[bool, typer.Option(help="a further part of forecasts: ETS (pip install statsforecast)")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="one JSON object on standard output")] = False,
) -> None:
    """What each warm-up policy would have cost on recorded requests; synthetic or thinned traffic is for you to name."""
    result = replay_files(
        traces, policy or [], price_s=price_s, thin=thin, seed=seed, load_s=load_s, size_mb=size_mb, cap_mb=cap_mb, fleet=fleet, plots=plots,
        lstm=lstm, statsforecast=statsforecast,
    )  # fmt: skip
    typer.echo(json.dumps(result) if json_output else describe(result))
