"""Cold-start measurement: each trial is a NEW process, variants take turns. Where the first request is timed: `warmup.trial`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import warmup
from pipeline.errors import RecordError, TrialError
from pipeline.records import Situation, Trial
from pipeline.strict import Record

STDERR_LINES = 15
Printed = TypeVar("Printed", bound=Record)
Progress = Callable[[int, int, str], None]
"""`progress(done, total, note)`"""


def engine_command(folder: Path, variant: str, *, rows: Path, plan: Path | None = None, requests: int = 100, concurrency: int = 1) -> list[str]:
    """Command line of one trial of the engine in `folder`: with `plan` warmed by it, without left cold. For `measure`."""
    command = [sys.executable, "-P", "-m", "warmup.trial", "--engine", str(folder), "--variant", variant, "--rows", str(rows)]
    if plan is not None:
        command += ["--plan", str(plan)]
    return [*command, "--requests", str(requests), "--concurrency", str(concurrency)]


def visit_command(
    folder: Path, *, rows: Path, situations: Sequence[Situation], plan: Path | None = None, opening: int = 0, pad: bool = True
) -> list[str]:
    """Command line of one `warmup.visit` of the engine in `folder`, for `fresh`."""
    command = [sys.executable, "-P", "-m", "warmup.visit", "--engine", str(folder), "--rows", str(rows)]
    command += ["--situations", json.dumps([situation.to_json() for situation in situations]), "--opening", str(opening)]
    return [*command, *(["--plan", str(plan)] if plan else []), *([] if pad else ["--no-pad"])]


def child_environment() -> dict[str, str]:
    """This process's environment with the place `warmup` came from (a folder or qwarm.pyz) on PYTHONPATH.

    The control workload's matrix library is held to one thread, see `warmup.control`; no runtime of an engine reads these variables.
    Bytecode is kept, as an installed package's is: a process that compiles our sources first takes 60 ms longer to start.
    """
    place = str(Path(str(warmup.__file__)).resolve().parents[1])
    search = os.pathsep.join(filter(None, [place, os.environ.get("PYTHONPATH", "")]))
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "PYTHONPATH": search, "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def measure(commands: Mapping[str, list[str]], trials: int, progress: Progress | None = None, timeout_seconds: float = 300.0) -> tuple[Trial, ...]:
    """Run `trials` new processes of each variant, one at a time, in an order that rotates by one each round.

    `commands` is variant to command line; `--started NANOSECONDS` (CLOCK_MONOTONIC just before the process is started) is
    appended to each, and the last line it prints must be a Trial as JSON. Returns the trials in the order they ran. Raises TrialError
    with the last lines of standard error when a process dies, takes longer than `timeout_seconds`, or prints something else.
    """
    names, environment = list(commands), child_environment()
    measured: list[Trial] = []
    for number in range(trials):
        turn = number % len(names) if names else 0
        for name in names[turn:] + names[:turn]:
            started = ["--started", str(time.monotonic_ns())]
            measured.append(fresh(name, [*commands[name], *started], Trial, environment, timeout_seconds))
            if progress is not None:
                progress(len(measured), trials * len(names), name)
    return tuple(measured)


def fresh(variant: str, command: list[str], record: type[Printed], environment: dict[str, str], timeout_seconds: float = 300.0) -> Printed:
    """What one new process printed last, as a `record`. Raises TrialError as `measure` does."""
    try:
        child = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=timeout_seconds, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        said = error.stderr.decode(errors="replace") if isinstance(error.stderr, bytes) else error.stderr or ""
        raise _died(variant, command, f"no answer in {timeout_seconds:g} s", said) from error
    except OSError as error:
        raise _died(variant, command, "the process could not be started", str(error)) from error
    if child.returncode:
        code = child.returncode
        raise _died(variant, command, f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}", child.stderr)
    try:
        return record.from_json(json.loads(child.stdout.strip().rpartition("\n")[2]), f"{record.__name__.lower()} {variant}")
    except (ValueError, RecordError) as error:
        raise _died(variant, command, f"not a {record.__name__.lower()}: {child.stdout[-200:]!r} ({error})", child.stderr) from error


def _died(variant: str, command: list[str], got: str, stderr: str) -> TrialError:
    last = [line for line in stderr.splitlines() if line.strip()][-STDERR_LINES:]
    return TrialError(
        f"A measuring process of the variant {variant} failed",
        where=" ".join(command),
        expected="one record as JSON on standard output",
        got="\n".join([got, *(f"    {line}" for line in last)]),
        next="run that command by hand to see it fail alone",
    )
