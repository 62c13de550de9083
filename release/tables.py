"""Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    cells = [list(header), ["---"] * len(header), *[[cell.replace("|", "\\|") for cell in row] for row in rows]]
    return [f"| {' | '.join(row)} |" for row in cells]
