"""A check's numbers as text, each in its own unit."""

from __future__ import annotations

from pipeline.records import Check, Verdict

UNITS = {"fraction": " %", "ratio": "x", "dB": " dB", "ms": " ms", "MB": " MB", "rows": " rows"}
"""What is written behind a number; any other unit is a metric's name."""
DIGITS = {"fraction": ".2f", "ratio": ".2f", "dB": ".1f", "ms": ".2f", "MB": ".1f", "rows": ".0f"}


def metric_unit(metric: str) -> str:
    """What a metric of `gates.metric` counts in: its own name; "score" for a function that is called like another unit."""
    name = metric.rpartition(":")[2]
    return "score" if name in UNITS else name


def figure_text(check: Check) -> str:
    """The figure; "-" for none. Outputs that do not differ have no SQNR: "equal"."""
    if check.figure is None:
        return "equal" if check.unit == "dB" and check.verdict is Verdict.PASS else "-"
    return number_text(check.figure, check.unit, DIGITS.get(check.unit, ".4g"))


def limit_text(check: Check) -> str:
    """The limit with its direction; empty for none."""
    if check.limit is None:
        return ""
    return f"{'at most' if check.limit_is == 'max' else 'at least'} {number_text(check.limit, check.unit, 'g')}"


def interval_text(check: Check) -> str:
    """The interval with its two-sided confidence; empty for none. A share that has an upper limit is a loss, in signed percentage points."""
    if check.interval is None:
        return ""
    low, high = check.interval.low, check.interval.high
    if check.unit == "fraction":
        ends = f"{100 * low:+.2f} to {100 * high:+.2f} points" if check.limit_is == "max" else f"{100 * low:.2f} to {100 * high:.2f} %"
    else:
        ends = f"{low:.3g} to {high:.3g}" + (f" {check.unit}" if check.unit in ("ms", "MB") else "")
    return f"{ends} ({100 * (2 * check.interval.side_confidence - 1):.3g} %)"


def number_text(value: float, unit: str, digits: str) -> str:
    """One number, a fraction in per cent."""
    return f"{100 * value if unit == 'fraction' else value:{digits}}{UNITS.get(unit, f' {unit}')}"
