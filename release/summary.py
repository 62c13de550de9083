"""The table a person sees at the end of a run, from the evidence."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from pipeline.records import Evidence, Verdict
from pipeline.release_config import TOP1
from release.texts import figure_text, interval_text, limit_text

PLAIN_WIDTH = 120
"""Columns where the output is no terminal: a log must not break the table."""
COLOURS = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.UNDECIDED: "yellow", Verdict.NOT_MEASURED: "bright_black"}


OWN_METRIC = (
    ("{metric} FP32 -> INT8", "{float_metric:.4g} -> {int8_metric:.4g} on {validation_rows:.0f} rows"),
    ("paired difference", "{drop:+.4g} lost"),
)
"""In place of the first two lines when the metric is not right or wrong for each row."""
LINES = (
    ("{metric} FP32 -> INT8", "{float_accuracy:.2%} -> {int8_accuracy:.2%} on {validation_rows:.0f} rows"),
    ("paired difference", "{drop:+.2%} of rows lost, net"),
    ("INT8 share of multiply-accumulates", "{int8_share:.2%}"),
    ("first request, cold", "{cold_first_over_p50:.2f}x steady p50 ({cold_first_request_ms:.2f} ms)"),
    ("first request, warm", "{warm_first_over_p50:.2f}x steady p50 ({warm_first_request_ms:.2f} ms)"),
    ("steady p50, p99", "{steady_p50_ms:.3f} ms, {steady_p99_ms:.3f} ms"),
    ("INT8 over FP32 (p50)", "{speedup:.2f}x as fast ({float_p50_ms:.3f} ms in FP32)"),
    ("process start to ready", "{ready_ms:.0f} ms, {peak_rss_mb:.0f} MB resident at most"),
)
"""What `make repro` promises to print for one target, in reading order; the difference's interval is in its check."""


def lines(evidence: Evidence) -> list[tuple[str, str]]:
    """Label and text of each line; "not measured" where a figure is absent."""
    metric = evidence.details.drift.metric.rpartition(":")[2] if evidence.details else TOP1
    found = []
    for label, text in (*OWN_METRIC, *LINES[2:]) if "float_metric" in evidence.figures else LINES:
        try:
            shown = text.format(**evidence.figures)
        except KeyError:
            shown = "not measured"
        found.append((label.format(metric="accuracy" if metric == TOP1 else metric), shown))
    drop = next((check for check in evidence.checks if check.name in ("accuracy_drop", "metric_drop") and check.interval), None)
    if drop is not None:
        found[1] = (found[1][0], f"{figure_text(drop)} lost, net; interval {interval_text(drop)}")
    return found


def show(evidences: Sequence[Evidence], console: Console | None = None) -> None:
    """Print one table a target: the figures, then each check with its verdict."""
    console = console or Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    for evidence in evidences:
        colour = COLOURS[evidence.verdict]
        if not evidence.figures:
            console.print(f"[bold]{evidence.target}[/]: [{colour}]{evidence.verdict.name}[/]: {evidence.reason}\n", highlight=False)
            continue
        table = Table(
            title=f"{evidence.target}: [{colour}]{evidence.verdict.name}[/]", title_justify="left", show_header=False, box=None, pad_edge=False
        )
        for label, text in lines(evidence):
            table.add_row(label, text)
        console.print(table)
        checks = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("check", "verdict", "figure", "interval", "limit"):
            checks.add_column(column, no_wrap=column in ("check", "limit"))
        for check in evidence.checks:
            verdict = f"[{COLOURS[check.verdict]}]{check.verdict.name}[/]" + (" (excused)" if check.excused else "")
            checks.add_row(check.name, verdict, figure_text(check), interval_text(check), limit_text(check))
        console.print(checks)
        console.print(f"verdict: [{colour}]{evidence.verdict.name}[/]: {evidence.reason}\n", highlight=False)
