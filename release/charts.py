"""The report's drawings as SVG text, without a script: drift with intervals, latency, cold start, INT8 coverage, sensitivity."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.records import Census, Check, DriftReport, Interval, LatencyBand
from release import paired
from release.metric import SIDE
from release.slice_check import bounds
from release.texts import metric_unit

WIDTH = 420
COLOURS = {"cold": "#b3541e", "warm": "#1f6f54", "float": "#5b6b8c", "INT8": "#1f6f54", "other": "#b3541e"}
SHOWN = 40
"""Bars of one drawing; more are counted."""


def drift(report: DriftReport, checks: Sequence[Check]) -> str:
    """The drop over all rows and in each slice, each with its interval of two one-sided 95 % bounds, and the limits.

    In percentage points where the metric is right or wrong for each row, else in the metric's own unit.
    """
    scale, unit, whole = 1.0, metric_unit(report.metric), report.interval
    if report.lost is not None and report.gained is not None:
        scale, unit = 100.0, "percentage points"
        whole = paired.compare(report.lost, report.gained, report.validation_rows, SIDE)
    limits = {check.name: check.limit for check in checks if check.limit is not None}
    rows = [_drop("all rows", report.drop, whole, scale)] if whole is not None else []
    parts = sorted(report.slices, key=lambda part: -(part.drop or 0))[:SHOWN]
    rows += [_drop(f"{part.name} ({part.rows})", part.drop, found, scale) for part in parts if part.drop is not None and (found := bounds(part))]
    if not rows:
        return ""
    import altair as alt

    order = [row["of"] for row in rows]
    base = alt.Chart(alt.Data(values=rows)).encode(y=alt.Y("of:N", sort=order, title=None))
    layers = [
        base.mark_rule(strokeWidth=2, color="#5b6b8c").encode(x=alt.X("low:Q", title=f"drop of INT8 against FP32, {unit}"), x2="high:Q"),
        base.mark_point(filled=True, size=45, color="#1d2430").encode(x="drop:Q"),
        alt.Chart(alt.Data(values=[{"zero": 0}])).mark_rule(color="#9aa3b2").encode(x="zero:Q"),
    ]
    drawn = [(limits.get("accuracy_drop", limits.get("metric_drop")), "#a3201d"), (limits.get("worst_slice"), "#d98e04")]
    layers += [
        alt.Chart(alt.Data(values=[{"limit": scale * limit}])).mark_rule(strokeDash=[5, 3], color=colour).encode(x="limit:Q")
        for limit, colour in drawn
        if limit is not None
    ]
    return svg(alt.layer(*layers).properties(width=WIDTH, height=alt.Step(17)))


def _drop(of: str, drop: float, interval: Interval, scale: float) -> dict[str, Any]:
    return {"of": of, "drop": scale * drop, "low": scale * interval.low, "high": scale * interval.high}


def latency(bands: Sequence[LatencyBand]) -> str:
    """Each request's time by its number: median over fresh processes, with the 10th and the 90th percentile."""
    rows: list[dict[str, Any]] = [
        {"variant": band.variant, "request": place + 1, "low": low, "ms": median, "high": high}
        for band in bands
        for place, (low, median, high) in enumerate(zip(band.low_ms, band.median_ms, band.high_ms, strict=True))
    ]
    if not rows:
        return ""
    import altair as alt

    base = alt.Chart(alt.Data(values=rows)).encode(x=alt.X("request:Q", title="request of a fresh process"), color=_colour(["cold", "warm", "float"]))
    scale = alt.Scale(type="log", nice=False)
    band = base.mark_area(opacity=0.22).encode(y=alt.Y("low:Q", title="ms", scale=scale), y2="high:Q")
    return svg(alt.layer(band, base.mark_line(strokeWidth=1.8).encode(y="ms:Q")).properties(width=WIDTH, height=210))


def cold_start(bands: Sequence[LatencyBand]) -> str:
    """How a process spends its time from its start to its first answer: medians of each phase, one bar a variant."""
    rows: list[dict[str, Any]] = []
    for band in bands:
        begun = 0.0
        for place, (phase, end) in enumerate(sorted(band.phases_ms.items(), key=lambda item: item[1])):
            rows.append({"variant": band.variant, "phase": phase, "place": place, "from": begun, "to": end})
            begun = end
        rows.append({"variant": band.variant, "phase": "first request", "place": 9, "from": begun, "to": begun + band.median_ms[0]})
    shown = max((row["to"] for row in rows), default=0.0) / WIDTH  # less than a pixel is no bar, only a line in the legend
    rows = [row for row in rows if row["to"] - row["from"] > shown]
    if not rows:
        return ""
    import altair as alt

    phases = list(dict.fromkeys(row["phase"] for row in sorted(rows, key=lambda row: row["place"])))
    colour = alt.Color("phase:N", sort=phases, title=None, scale=alt.Scale(domain=phases, scheme="tableau10"))
    encoded = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("variant:N", sort=["cold", "warm", "float"], title=None),
        x=alt.X("from:Q", title="ms since the process was started", axis=alt.Axis(tickCount=7)),
        x2="to:Q",
        color=colour,
    )
    return svg(encoded.mark_bar().properties(width=WIDTH, height=alt.Step(30)))


def coverage(census: Census) -> str:
    """The multiply-accumulates of each executed layer, by the precision that really runs."""
    if not census.layers:
        return ""
    import altair as alt

    layers = sorted(census.layers, key=lambda layer: -layer.macs)[:SHOWN]
    rows: list[dict[str, Any]] = [
        {"layer": layer.name[-40:], "millions": layer.macs / 1e6, "precision": "INT8" if layer.precision == "INT8" else "other"} for layer in layers
    ]
    encoded = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("layer:N", sort=[row["layer"] for row in rows], title=None), x=alt.X("millions:Q", title="million multiply-accumulates a row"),
        color=_colour(["INT8", "other"]),
    )  # fmt: skip
    return svg(encoded.mark_bar().properties(width=WIDTH, height=alt.Step(15)))


def sensitivity(gains_db: Mapping[str, float]) -> str:
    """By how much the drift falls when one layer alone goes back to float, in dB; the largest first."""
    if not gains_db:
        return ""
    import altair as alt

    rows: list[dict[str, Any]] = [{"layer": layer[-40:], "dB": gain} for layer, gain in sorted(gains_db.items(), key=lambda item: -item[1])[:SHOWN]]
    encoded = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("layer:N", sort=[row["layer"] for row in rows], title=None), x=alt.X("dB:Q", title="SQNR gained with this layer in float, dB")
    )
    return svg(encoded.mark_bar(color="#5b6b8c").properties(width=WIDTH, height=alt.Step(15)))


def _colour(domain: list[str]) -> Any:
    import altair as alt

    return alt.Color(
        "precision:N" if "INT8" in domain else "variant:N", title=None, scale=alt.Scale(domain=domain, range=[COLOURS[each] for each in domain])
    )


def svg(chart: Any) -> str:
    """The chart as one `<svg>` element that scales with its column; it refers to nothing outside itself."""
    import vl_convert

    chart = chart.configure(padding={"left": 18, "right": 28, "top": 5, "bottom": 5})  # a browser's fonts are wider than those it is laid out with
    text = str(vl_convert.vegalite_to_svg(chart.configure_view(strokeOpacity=0).configure_axis(gridColor="#eceff4", labelLimit=260).to_json()))
    return re.sub(r'(<svg [^>]*?) width="([\d.]+)" height="[\d.]+"', r'\1 style="max-width:\2px;width:100%;height:auto"', text, count=1)
