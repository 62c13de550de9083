"""Progress of long work: a bar on a terminal, one line at the end elsewhere. Never used on a serving host."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

T = TypeVar("T")
Report = Callable[[int, int, str], None]
"""`report(done, total, note)`: what long-running functions call after each step."""

console = Console(stderr=True)


@contextlib.contextmanager
def bar(description: str) -> Iterator[Report]:
    """Yield a `Report`; shows steps done, time spent and time left."""
    started = time.monotonic()
    last = [0, 0]
    if sys.stderr.isatty():
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, TextColumn("{task.fields[note]}"), console=console) as progress:
            task = progress.add_task(description, total=None, note="")

            def show(done: int, total: int, note: str = "") -> None:
                progress.update(task, completed=done, total=total, note=note)

            yield show
        return

    def remember(done: int, total: int, note: str = "") -> None:  # noqa: ARG001
        last[:] = [done, total]

    yield remember
    seconds = time.monotonic() - started
    console.print(f"{description}: {last[0]} of {last[1]} in {seconds:.1f} s", highlight=False, markup=False, soft_wrap=True)


def track(iterable: Iterable[T], description: str, total: int) -> Iterator[T]:
    """Iterate with a progress bar over `total` items."""
    with bar(description) as report:
        for done, item in enumerate(iterable, start=1):
            yield item
            report(done, total, "")
