"""Logs of `serve`: one JSON object a line on standard error, for whatever collects a container's output.

Keys: `time` (UTC), `level`, `event` (a fixed word to filter by), then what the event is about. Text of a client is escaped by
JSON, so no request can write a line of its own.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import sys
import threading
from typing import Any, TextIO

LEVELS = ("debug", "info", "warning", "error")


class Log:
    """Writes events of `level` and above; thread-safe, and never the reason that a request fails."""

    def __init__(self, level: str = "info", stream: TextIO | None = None) -> None:
        self._least, self._stream, self._lock = LEVELS.index(level), stream, threading.Lock()

    def write(self, level: str, event: str, /, **fields: Any) -> None:
        """Write one line, unless `level` is below the least one asked for."""
        if LEVELS.index(level) < self._least:
            return
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "level": level, "event": event, **fields}, default=str) + "\n"
        stream = self._stream or sys.stderr
        with self._lock, contextlib.suppress(OSError, ValueError):  # a log that was closed
            stream.write(line)
            stream.flush()

    def debug(self, event: str, /, **fields: Any) -> None:
        """Each request."""
        self.write("debug", event, **fields)

    def info(self, event: str, /, **fields: Any) -> None:
        """Start, ready, end; and requests that are the client's fault."""
        self.write("info", event, **fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        """The server is overloaded, or a client broke off."""
        self.write("warning", event, **fields)

    def error(self, event: str, /, **fields: Any) -> None:
        """A fault of the server."""
        self.write("error", event, **fields)
