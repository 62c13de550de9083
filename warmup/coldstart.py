"""Cold-start measurement: each trial is a NEW process, variants take turns.

Where the first request is timed: `warmup.trial`, and `warmup.visit` for the finder.
"""

from __future__ import annotations

import dataclasses
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
from warmup.curves import Curve

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


def measure(
    commands: Mapping[str, list[str]], trials: int, progress: Progress | None = None, timeout_seconds: float = 300.0, *, curves: bool = False,
    cold_files: Sequence[Path] = (),
) -> tuple[Trial, ...]:  # fmt: skip
    """Run `trials` new processes of each variant, one at a time, in an order that rotates by one each round.

    `commands` is variant to command line; `--started NANOSECONDS` (CLOCK_MONOTONIC just before the process is started) is
    appended to each, and the last line it prints must be a Trial as JSON. Returns the trials in the order they ran. `curves`: watch each process's
    memory and processor time, see `warmup.curves`. `cold_files` are dropped from the page cache before each. Raises TrialError
    with the last lines of standard error when a process dies, takes longer than `timeout_seconds`, or prints something else.
    """
    names, environment = list(commands), child_environment()
    measured: list[Trial] = []
    for number in range(trials):
        turn = number % len(names) if names else 0
        for name in names[turn:] + names[:turn]:
            drop_pages(cold_files)
            started = time.monotonic_ns()
            watch: list[Curve] = []
            begun = (lambda pid: watch.append(Curve(pid, started))) if curves else None  # noqa: B023  (called before the next turn)
            trial = fresh(name, [*commands[name], "--started", str(started)], Trial, environment, timeout_seconds, begun)
            measured.append(dataclasses.replace(trial, curve=watch[0].close()) if watch else trial)
            if progress is not None:
                progress(len(measured), trials * len(names), name)
    return tuple(measured)


def drop_pages(files: Sequence[Path]) -> None:
    """Ask the kernel to forget its pages of `files`, so that they are read from the disk again (posix_fadvise(2), POSIX_FADV_DONTNEED)."""
    for path in files:
        with open(path, "rb") as stream:
            os.fsync(stream.fileno())  # pages that are not written yet would stay
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fresh(
    variant: str, command: list[str], record: type[Printed], environment: dict[str, str], timeout_seconds: float = 300.0,
    begun: Callable[[int], None] | None = None,
) -> Printed:  # fmt: skip
    """What one new process printed last, as a `record`; `begun` is told its pid. Raises TrialError as `measure` does."""
    try:
        child = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, errors="replace"
        )
    except OSError as error:
        raise _died(variant, command, "the process could not be started", str(error)) from error
    with child:
        if begun is not None:
            begun(child.pid)
        try:
            stdout, stderr = child.communicate(timeout=timeout_seconds)
        except BaseException as error:
            child.kill()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise _died(variant, command, f"no answer in {timeout_seconds:g} s", child.communicate()[1]) from error
    if code := child.returncode:
        raise _died(variant, command, f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}", stderr)
    try:
        return record.from_json(json.loads(stdout.strip().rpartition("\n")[2]), f"{record.__name__.lower()} {variant}")
    except (ValueError, RecordError) as error:
        raise _died(variant, command, f"not a {record.__name__.lower()}: {stdout[-200:]!r} ({error})", stderr) from error


def _died(variant: str, command: list[str], got: str, stderr: str) -> TrialError:
    last = [line for line in stderr.splitlines() if line.strip()][-STDERR_LINES:]
    return TrialError(
        f"A measuring process of the variant {variant} failed",
        where=" ".join(command),
        expected="one record as JSON on standard output",
        got="\n".join([got, *(f"    {line}" for line in last)]),
        next="mend what its last lines say, then run the same `qwarm` or `dvc` command again",
    )
