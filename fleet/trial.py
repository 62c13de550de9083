"""One measured process of a bundle: verify, load, warm or not, time the requests. Run as `python -m fleet.trial`, prints one Trial as JSON."""

from __future__ import annotations

import time

FIRST_LINE_NS = time.monotonic_ns()

import argparse  # noqa: E402  (the interpreter's own start ends above)
import sys  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from pathlib import Path  # noqa: E402

import engines  # noqa: E402
from fleet.host import choose  # noqa: E402
from fleet.parts import read_parts  # noqa: E402
from fleet.verify import verify  # noqa: E402
from pipeline.records import Trial  # noqa: E402
from pipeline.tensors import Batch  # noqa: E402
from warmup.child import answer  # noqa: E402
from warmup.plan import pad_to_plan  # noqa: E402
from warmup.runner import run_plan  # noqa: E402
from warmup.trial import Phases, first_request, measure  # noqa: E402

WARM, COLD = "warm", "cold"


def trial_command(bundle: Path, variant: str, *, target: str, key: Path | None, requests: int) -> list[str]:
    """Command line of one trial, for `warmup.coldstart.measure`; without a key it says that none is wanted."""
    command = [sys.executable, "-P", "-m", "fleet.trial", str(bundle), "--variant", variant, "--target", target, "--requests", str(requests)]
    return [*command, "--allow-unsigned"] if key is None else [*command, "--key", str(key)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one Trial; its phases are verify, imports, load, warm and ready, each counted from the start of the process."""
    parser = argparse.ArgumentParser(prog="python -m fleet.trial", description="Time one bundle in this process; started by `warm`.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--variant", choices=(WARM, COLD), required=True, help=f"{WARM}: run the plan before the first request; {COLD}: do not")
    parser.add_argument("--target", required=True)
    parser.add_argument("--key", type=Path)
    parser.add_argument("--allow-unsigned", action="store_true")
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--started", type=int, required=True, help="the parent's time.monotonic_ns() just before it started this process")
    options = parser.parse_args(arguments)
    return answer(lambda: run(options))


def run(options: argparse.Namespace) -> Trial:
    """What `fleet.open` does, with a mark after each phase, then requests of the first warm-up row."""
    phases = Phases(options.started)
    phases.mark("interpreter", FIRST_LINE_NS)
    verified = verify(options.bundle, options.key, allow_unsigned=options.allow_unsigned)
    parts = read_parts(verified, choose(verified.manifest, options.target))
    phases.mark("verify")
    engines.backend(options.target).preload(options.target)
    phases.mark("imports")
    request: Batch = first_request(parts.engine, parts.rows)
    request, _ = pad_to_plan(request, parts.engine.inputs, parts.plan.ladder)
    return measure(
        parts.open_session,
        request,
        variant=options.variant,
        requests=options.requests,
        phases=phases,
        warm=None if options.variant == COLD else lambda session: run_plan(session, parts.plan, parts.rows, parts.expected),
    )


if __name__ == "__main__":
    raise SystemExit(main())
