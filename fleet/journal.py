"""Requests since the last save, so that a controller that is killed has learnt from all of them. Standard library only.

A line a request, written at once: it survives the process, not the machine. Saves begin a new file and delete the one before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

NAMES = ("requests.before", "requests.log")


class Journal:
    """In `folder`, which must be there. Not thread-safe. Raises OSError where it cannot be written."""

    def __init__(self, folder: Path) -> None:
        self.before, self.file = (folder / name for name in NAMES)
        self._descriptor = self._open()

    def _open(self) -> int:
        return os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, name: str, at: float) -> None:
        """A request for `name` at `at`, seconds since the epoch."""
        os.write(self._descriptor, f"{at!r} {name}\n".encode())

    def turn(self) -> None:
        """A save begins: what comes from now on is not in it. Where the save before failed, the file grows on."""
        if not self.before.exists():
            os.replace(self.file, self.before)
            os.close(self._descriptor)
            self._descriptor = self._open()

    def forget(self) -> None:
        """The save is done."""
        self.before.unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing more comes."""
        os.close(self._descriptor)


def read_journal(folder: Path, since: float) -> Iterator[tuple[float, str]]:
    """(at, model) of requests after `since`, in order; a line that was torn is left out."""
    for name in NAMES:
        try:
            lines = (folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            text, _, model = line.partition(" ")
            try:
                at = float(text)
            except ValueError:
                continue
            if since < at < float("inf"):
                yield at, model
