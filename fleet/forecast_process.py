"""The forecaster in a process of its own, so that neither its libraries, nor its time, nor its death are the controller's. Standard library only.

Run as `python -m fleet.forecast_process`: a Question a line on standard input, an Answer a line on standard output, both JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fleet.forecaster import Answer, Forecasts, Models, Question

LAG_S = 30.0
"""An answer that takes longer: the forecaster lags, and is ended."""
RESTART_S, MOST_RESTART_S = 1.0, 60.0
"""Pause before it is started again, doubled each time until it answers."""
AT_ONCE = 4
"""Questions that it may have at a time, so that its pipe never fills."""


class ForecastProcess(Forecasts):
    """`options`: of this module's command line. Must be closed. Not thread-safe, like the controller."""

    def __init__(self, options: Sequence[str] = (), log: Callable[..., None] = lambda *_, **__: None) -> None:
        super().__init__()
        self.options, self.log = list(options), log
        self._open: dict[str, float] = {}
        """Questions that it has, and since when."""
        self._later: dict[str, Question] = {}
        self._pause_s, self._again_at = RESTART_S, 0.0
        self._start()

    def _start(self) -> None:
        place = Path(__file__).parents[1]
        search = os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH", "")]))
        command = [sys.executable, "-m", "fleet.forecast_process", *self.options]
        environment = {**os.environ, "PYTHONPATH": search}
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=_read, args=(self._child, self._lines), name="forecasts", daemon=True).start()
        self.pid = self._child.pid
        self._open[""] = time.monotonic()  # its first line says that it is there
        self.dead = "the forecaster starts"

    def fault(self, now: float) -> str:  # noqa: ARG002  (its time is this machine's)
        """Hear it, end it when it lags, start it again when it is gone."""
        while True:
            try:
                line = self._lines.get_nowait()
            except queue.Empty:
                break
            self._hear(line)
        clock = time.monotonic()
        if self._open and clock - min(self._open.values()) > LAG_S:
            self.kill(f"it lags: no answer for {LAG_S:g} s")
        if self._child.poll() is not None and clock >= self._again_at and self._again_at:
            self._again_at = 0.0
            self._start()
        return self.dead

    def _hear(self, line: str | None) -> None:
        try:
            told = json.loads(line) if line is not None else None
            if told == "ready":
                self._open.pop("", None)
                self.dead = ""
                return
            answer = Answer(*told) if told is not None else None
        except (ValueError, TypeError):
            self.kill(f"wrong: its line is no answer: {line!r:.100}")
            return
        if answer is None:
            self._child.kill()
            self.kill(f"its process ended (exit code {self._child.wait()})")
        elif not self.dead:
            self._open.pop(answer.name, None)
            self._pause_s = RESTART_S
            self.take(answer)
            self._send()

    def kill(self, reason: str) -> None:
        """End it; it is started again after a pause, and learns what it knew from what the controller keeps."""
        if self._child.poll() is None:
            self._child.kill()
        if not self._again_at:
            self.log("forecaster_ended", reason=reason, again_after_s=self._pause_s)
            self._again_at = time.monotonic() + self._pause_s
            self._pause_s = min(MOST_RESTART_S, 2.0 * self._pause_s)
            self.dead = reason
        self._open.clear()
        self._later.clear()
        self._known.clear()

    def put(self, question: Question) -> None:
        """Send it, or keep it until one that was sent is answered."""
        before = self._later.pop(question.name, None)
        if before is not None:
            question = question._replace(sessions=before.sessions + question.sessions, expected=before.expected + question.expected)
        self._later[question.name] = question
        self._send()

    def _send(self) -> None:
        assert self._child.stdin is not None
        for name in [name for name in self._later if name not in self._open][: AT_ONCE - len(self._open)]:
            self._open[name] = time.monotonic()
            with contextlib.suppress(OSError):  # it is gone, which its last line says
                self._child.stdin.write(json.dumps(self._later.pop(name)) + "\n")
                self._child.stdin.flush()

    def close(self) -> None:
        """End it."""
        self._child.kill()
        self._child.wait()


def _read(child: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        lines.put(line)
    lines.put(None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer until the controller is gone."""
    parser = argparse.ArgumentParser(prog="python -m fleet.forecast_process", description="Forecasts for `control`, which starts this by itself.")
    parser.add_argument("--lstm", type=Path, help="ONNX file of `qwarm lstm`")
    parser.add_argument("--statsforecast", action="store_true", help="a long-term part by exponential smoothing (ETS)")
    options = parser.parse_args(arguments)
    from fleet.extras import extra_parts

    models = Models(extra_parts(options.lstm, options.statsforecast))
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(models.answer(Question(*json.loads(line)))), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
