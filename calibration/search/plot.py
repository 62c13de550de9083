"""The frontier as a picture: drift against latency, a panel a target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.search_records import SearchPoint, SearchResult

if TYPE_CHECKING:
    import altair

WRITTEN = "not timed: no target runs here"


def drawn(result: SearchResult) -> str:
    """An SVG of every measured choice, the frontier as a line, the model that was written and both limits; opens offline.

    Without a target that runs here the horizontal axis counts layers in float.
    """
    import altair as alt
    import vl_convert

    targets = sorted(result.written.deployed)
    panels = [_panel(alt, result, target) for target in targets] or [_panel(alt, result, None)]
    chart = alt.hconcat(*panels).properties(title=f"{result.scheme}: drift against latency, {result.search_rows} search rows; {result.stopped}")
    return str(vl_convert.vegalite_to_svg(chart.to_dict()))


def _panel(alt: Any, result: SearchResult, target: str | None) -> altair.LayerChart:
    def entry(point: SearchPoint, kind: str) -> dict[str, Any]:
        place = point.deployed[target].latency_ratio if target else len(point.float_layers)
        drift = point.deployed[target].drift if target else point.drift
        return {"place": place, "drift": max(drift, 1e-12), "kind": kind, "order": place, "label": str(len(point.float_layers))}

    every = [entry(point, "tried") for point in result.points]
    line = [entry(result.points[place], "frontier") for place in result.frontier]
    written = [entry(result.written, "written")]
    x = alt.X("place:Q", title="latency over plain INT8" if target else "layers in float", scale=alt.Scale(zero=False))
    y = alt.Y("drift:Q", title="error power over output power", scale=alt.Scale(type="log"))
    layers = [
        alt.Chart(alt.Data(values=line)).mark_line(color="#888888").encode(x=x, y=y, order="order:Q"),
        alt.Chart(alt.Data(values=every)).mark_point(filled=True, color="#4c78a8").encode(x=x, y=y),
        alt.Chart(alt.Data(values=every)).mark_text(dy=-8, color="#4c78a8").encode(x=x, y=y, text="label:N"),
        alt.Chart(alt.Data(values=written)).mark_point(shape="diamond", filled=True, size=120, color="#e45756").encode(x=x, y=y),
    ]
    if result.max_drift is not None:
        layers.append(alt.Chart(alt.Data(values=[{"drift": result.max_drift}])).mark_rule(strokeDash=[4, 4]).encode(y="drift:Q"))
    if target and result.max_slowdown is not None:
        layers.append(alt.Chart(alt.Data(values=[{"place": result.max_slowdown}])).mark_rule(strokeDash=[4, 4]).encode(x="place:Q"))
    return alt.layer(*layers).properties(title=target or WRITTEN, width=380, height=280)
