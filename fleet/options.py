"""The host's command line: its commands and their options. Standard library only."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from fleet import __version__

EPILOG = "Exit codes: 0 done or ready, 1 fault or not ready, 2 usage, 3 refused."


FEWEST_REQUESTS = 5
"""As in `warmup.latency`, which needs more than the standard library."""
Run = Callable[[argparse.Namespace], int]


def make_parser(runs: Mapping[str, Run]) -> argparse.ArgumentParser:
    """All commands with their options; `runs`: what each runs, by name."""
    parser = argparse.ArgumentParser(prog="qwarm", description="Verify, warm and serve a qwarm release bundle.", epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"qwarm {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")

    def command(name: str, summary: str, bundle: str | None = "the bundle's folder") -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=summary, description=summary + ".", epilog=EPILOG)
        if bundle is not None:
            sub.add_argument("bundle", metavar="BUNDLE", type=Path, help=bundle, nargs="?" if "optional" in bundle else None)
        sub.add_argument("--json", action="store_true", help="one JSON object on standard output, logs on standard error")
        sub.set_defaults(run=runs[name])
        return sub

    def state_option(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--state", metavar="DIR", type=Path, help="folder of the state (default: $XDG_RUNTIME_DIR/qwarm, else /tmp/qwarm-UID)")

    def key_options(sub: argparse.ArgumentParser) -> None:
        origin = sub.add_mutually_exclusive_group()
        origin.add_argument("--key", metavar="PUB", type=Path, help="public key (PEM), or identity (JSON), that must have signed the bundle")
        origin.add_argument("--allow-unsigned", action="store_true", help="go on without a key: integrity only, origin unknown")

    def engine_options(sub: argparse.ArgumentParser) -> None:
        key_options(sub)
        sub.add_argument("--target", help="target to run (default: the first in the bundle that this machine can run)")

    key_options(command("verify", "Check who signed a bundle, and every byte against its manifest"))

    warm = command("warm", "Measure first request and steady state of a bundle on this machine, in fresh processes")
    engine_options(warm)
    warm.add_argument("--runs", type=at_least(1), default=5, help="fresh processes, each with and without the plan (default: %(default)s)")
    warm.add_argument(
        "--requests",
        type=at_least(FEWEST_REQUESTS),
        default=50,
        help=f"requests a process, the first included, {FEWEST_REQUESTS} at least (default: %(default)s)",
    )

    serve = command("serve", "Answer the Open Inference Protocol v2 over HTTP once the engine is warm")
    engine_options(serve)
    state_option(serve)
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s, this machine only)")
    serve.add_argument("--port", type=int, default=8000, help="port to listen on; 0 takes a free one (default: %(default)s)")
    serve.add_argument("--concurrency", type=at_least(1), help="requests inside the engine at once (default, and most: what the plan warms)")
    serve.add_argument("--queue", type=at_least(0), default=64, help="requests that may wait; more get 503 (default: %(default)s)")
    serve.add_argument("--connections", type=at_least(1), default=256, help="open connections that are served at once (default: %(default)s)")
    serve.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info", help="debug logs each request (default: info)")
    serve.add_argument("--drain-seconds", type=seconds, default=30.0, help="most time for running requests after SIGTERM (default: %(default)s)")

    control = command("control", "Keep the right models of a fleet warm: watch and advise, or act in front of their servers", bundle=None)
    control.add_argument("settings", metavar="FLEET.json", type=Path, help="models, memory cap and price of a cold start")
    state_option(control)
    key_options(control)
    control.add_argument(
        "--act", action="store_true", help="start and stop servers and pass requests on; without it only say what would be done (shadow)"
    )
    control.add_argument(
        "--triton", metavar="HOST:PORT", help="gRPC address of a Triton server in explicit model control mode, instead of `serve` processes"
    )
    control.add_argument(
        "--triton-http", metavar="URL", default="http://127.0.0.1:8000", help="where that server answers requests (default: %(default)s)"
    )
    control.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s, this machine only)")
    control.add_argument("--port", type=int, default=8080, help="port to listen on; 0 takes a free one (default: %(default)s)")
    control.add_argument("--unload", action="store_true", help="end the servers at the end; without it the next controller takes them over")

    ready = command("ready", "Exit 0 while a warm process lives", "a bundle that it must have open (optional)")
    state_option(ready)
    status = command(
        "status", "Show the warm processes, and the controller with its mode and last changes", "a bundle that they must have open (optional)"
    )
    state_option(status)
    status.add_argument("--url", help="ask the controller that listens there, instead of reading this machine's state folder")
    return parser


def at_least(low: int) -> Callable[[str], int]:
    """An argument that counts something of which `low` are needed."""

    def number(text: str) -> int:
        value = int(text)
        if value < low:
            raise argparse.ArgumentTypeError(f"{value} is not {low} or more")
        return value

    return number


def seconds(text: str) -> float:
    """A time that ends."""
    value = float(text)
    if not 0.0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds, 0 or more")
    return value
