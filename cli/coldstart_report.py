"""What `qwarm coldstart` measured, in lines for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHOWN_WIDTH, LAYERS = 32, 5


def describe(result: Mapping[str, Any]) -> str:
    """The result in lines for a person."""
    lines = [f"{result['verdict']}: {result['target']}, plan: {result['plan']}; rows: {result['rows']}"]
    for name in ("cold", "warm"):
        found = result[name]
        lines.append(
            f"{name} ({found['processes']} fresh processes): steady p50 {found['steady_p50_ms']:.2f} ms, after {found['settles_after']} requests"
        )
        for request in found["leading"]:
            interval = request["interval"]
            bounds = f"{interval['low']:.2f} to {interval['high']:.2f}" if interval else f"no interval: {found['decide']}"
            said = {"FAIL": "slow", "PASS": "not slow", "UNDECIDED": "undecided"}[request["verdict"]]
            lines.append(f"  request {request['number']}: {request['ratio']:.2f} of the next ones ({bounds}), {request['excess_ms']:+.1f} ms: {said}")
        lines += _waterfall(found["phase_ms"])
        peak, cpu = found["peak_rss_mb"], found["cpu_ms"]
        lines.append(f"  {peak:.0f} MB resident at most" + (f", {cpu:.0f} ms of processor time up to the last request" if cpu else ""))
    for one in result["misses"]:
        if one["ratio"] is None:
            lines.append(f"{one['kind']}: not measured: {one['why']}")
            continue
        worst = f"; slowest: {', '.join(f'{axis} {size}' for axis, size in one['worst_sizes'].items())}" if one["worst_sizes"] else ""
        lines.append(
            f"{one['kind']}: {one['verdict']}: first over steady {one['ratio']:.2f}, {one['limit']:g} allowed, {one['requests']} requests{worst}"
        )
    if excess := result.get("excess"):
        lines.append(f"inside the layers a cold first request takes {_more(excess['all_layers'])}, by the runtime's profiler:")
        lines += [f"  {layer['layer'][:60]}: {_more(layer)}" for layer in excess["layers"][:LAYERS]]
    return "\n".join(lines)


def _more(layer: Mapping[str, Any]) -> str:
    return f"{layer['first_ms']:.2f} ms, steady {layer['steady_ms']:.2f}"


def _waterfall(phases: Mapping[str, float]) -> list[str]:
    total, before, lines = sum(phases.values()), 0.0, []
    for name, spent in phases.items():
        start, width = (round(SHOWN_WIDTH * part / total) if total else 0 for part in (before, spent))
        lines.append(f"  {name:<12}{' ' * start}{'█' * max(1, width)} {spent:.0f} ms")
        before += spent
    return lines
