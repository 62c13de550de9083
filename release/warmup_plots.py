"""The report's drawing of a warm-up plan: what each of its steps buys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.records import Situation, StepGain
from release.charts import COLOURS, WIDTH, svg


def gains(found: Sequence[StepGain]) -> str:
    """The first request that a step makes quicker, with the step and without it: a line from one to the other, in the plan's order."""
    if not found:
        return ""
    import altair as alt

    rows: list[dict[str, Any]] = [
        {"step": f"{number}. {said(gain.step)}, {gain.iterations}x", "with": gain.with_ms, "without": gain.without_ms, "slowed": said(gain.slowed)}
        for number, gain in enumerate(found, start=1)
    ]
    base = alt.Chart(alt.Data(values=rows)).encode(y=alt.Y("step:N", sort=[row["step"] for row in rows], title=None))
    scale = alt.Scale(type="log", nice=False, padding=12)
    line = base.mark_rule(strokeWidth=3, color="#c9cfda").encode(x=alt.X("with:Q", title="first request, ms", scale=scale), x2="without:Q")
    ends = [
        base.mark_point(filled=True, size=60, color=COLOURS[name]).encode(x=f"{place}:Q") for name, place in (("warm", "with"), ("cold", "without"))
    ]
    text = base.mark_text(align="left", dx=6, dy=-9, fontSize=10, color="#5b6b8c").encode(x="with:Q", text="slowed:N")
    return svg(alt.layer(line, *ends, text).properties(width=WIDTH, height=alt.Step(30)))


def said(situation: Situation) -> str:
    """Such as `batch 4, 2 callers`."""
    sizes = ", ".join(f"{axis} {size}" for axis, size in situation.sizes.items())
    return sizes + (f", {situation.callers} callers" if situation.callers > 1 else "")
