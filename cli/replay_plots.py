"""Two plots of a replay as SVG: the cost frontier (cold rate against warm idle time) and the timeline of one model."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from fleet.frontier import Frontier
from fleet.replay import Outcome, Workload

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 480, 80, 20, 40, 60
HOUR_S = 3600.0
MOST_ROWS_S = 7 * 86400.0
"""A timeline shows the last week at most."""


def _page(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    return "\n".join(
        [head, f'<rect width="{width}" height="{height}" fill="white"/>', _text(width / 2, 20, title, "middle", 14), *parts, "</svg>", ""]
    )


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{html.escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = "#999", width: float = 1.0) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'


def frontier_plot(workload: Workload, fixed: Frontier, outcomes: Mapping[str, Outcome]) -> str:
    """Cold rate to the right, warm idle hours upwards; fixed keep-alives as a line, each policy as a point with its name."""
    most = max([float(fixed.warm_idle_s.max()), *(outcome.warm_idle_s for outcome in outcomes.values()), HOUR_S]) / HOUR_S * 1.05

    def place(cold: float, hours: float) -> tuple[float, float]:
        return LEFT + cold * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - hours / most * (HEIGHT - TOP - BOTTOM)

    parts = [_line(LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM), _line(LEFT, TOP, LEFT, HEIGHT - BOTTOM)]
    for tick in range(6):
        x, _ = place(tick / 5.0, 0.0)
        _, y = place(0.0, most * tick / 5.0)
        parts += [_text(x, HEIGHT - BOTTOM + 18, f"{20 * tick} %", "middle"), _text(LEFT - 6, y + 4, f"{most * tick / 5.0:.4g}", "end")]
    points = " ".join("{:.1f},{:.1f}".format(*place(cold, idle / HOUR_S)) for cold, idle in zip(fixed.cold_rate, fixed.warm_idle_s, strict=True))
    parts.append(f'<polyline points="{points}" fill="none" stroke="#4477aa" stroke-width="2"/>')
    for name, outcome in outcomes.items():
        x, y = place(outcome.cold_rate, outcome.warm_idle_s / HOUR_S)
        colour = "#cc3311" if name == "selector" else "#222"
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>', _text(min(x + 7, WIDTH - 110), y - 5, name)]
    parts += [
        _text(WIDTH / 2, HEIGHT - 14, "requests that met a cold model; line: every fixed keep-alive", "middle"),
        _text(8, TOP - 8, "warm idle hours"),
    ]
    return _page(WIDTH, HEIGHT, f"{workload.name}{' (synthetic)' if workload.synthetic else ''}: cold rate against warm idle time", parts)


def timeline_plot(workload: Workload, model: str, outcomes: Mapping[str, Outcome]) -> str:
    """One row a policy: when the model's memory was held (bars), requests met warm (ticks) and cold (red ticks); the last week of the workload."""
    start, end = max(workload.start, workload.end - MOST_ROWS_S), workload.end
    height = TOP + 44 * len(outcomes) + 50

    def x(at: float) -> float:
        return 150 + (max(at, start) - start) / (end - start) * (WIDTH - 170)

    parts: list[str] = []
    for row, (name, outcome) in enumerate(outcomes.items()):
        y = TOP + 44 * row + 10
        parts += [_text(142, y + 18, name, "end"), _line(150, y + 24, WIDTH - 20, y + 24, "#ddd")]
        held: float | None = None
        for at, what, event in [*outcome.timeline, (end, model, "unload")]:
            if what != model:
                continue
            if event == "load":
                held = at
            elif event == "unload" and held is not None:
                if at > start:
                    parts.append(f'<rect x="{x(held):.1f}" y="{y + 8}" width="{max(0.5, x(at) - x(held)):.1f}" height="16" fill="#99bbdd"/>')
                held = None
            elif at >= start and event.endswith("request"):
                parts.append(
                    _line(x(at), y, x(at), y + 24, "#cc3311" if event.startswith("cold") else "#222", 1.5 if event.startswith("cold") else 0.6)
                )
    days = (end - start) / 86400.0
    parts.append(_text(WIDTH / 2, height - 12, f"the last {days:.3g} days; bars: memory held; ticks: requests, red: cold", "middle"))
    return _page(WIDTH, height, f"{workload.name}: {model}", parts)
