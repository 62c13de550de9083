"""The host's command line: verify, warm, serve, ready, status. `python qwarm.pyz ...`, and mounted by the `qwarm` command.

Standard library only, here and on the way to `ready` and `status`: a readiness probe has 300 ms.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fleet import __version__
from pipeline.errors import FAULT, QwarmError

EPILOG = "Exit codes: 0 done or ready, 1 fault or not ready, 2 usage, 3 refused."


def build_parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    parser = argparse.ArgumentParser(prog="qwarm", description="Verify, warm and serve a qwarm release bundle.", epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"qwarm {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Any, summary: str, bundle: str | None = "the bundle's folder") -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=summary, description=summary + ".", epilog=EPILOG)
        if bundle is not None:
            sub.add_argument("bundle", metavar="BUNDLE", type=Path, help=bundle, nargs="?" if "optional" in bundle else None)
        sub.add_argument("--json", action="store_true", help="one JSON object on standard output, logs on standard error")
        sub.set_defaults(run=run)
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

    key_options(command("verify", run_verify, "Check who signed a bundle, and every byte against its manifest"))

    warm = command("warm", run_warm, "Measure first request and steady state of a bundle on this machine, in fresh processes")
    engine_options(warm)
    warm.add_argument("--runs", type=positive, default=5, help="fresh processes, each with and without the plan (default: %(default)s)")
    warm.add_argument("--requests", type=positive, default=50, help="requests a process, the first included, 5 at least (default: %(default)s)")

    serve = command("serve", run_serve, "Answer the Open Inference Protocol v2 over HTTP once the engine is warm")
    engine_options(serve)
    state_option(serve)
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s, this machine only)")
    serve.add_argument("--port", type=int, default=8000, help="port to listen on; 0 takes a free one (default: %(default)s)")
    serve.add_argument("--concurrency", type=positive, help="requests inside the engine at once (default, and most: what the plan warms)")
    serve.add_argument("--queue", type=int, default=64, help="requests that may wait; more get 503 (default: %(default)s)")
    serve.add_argument("--connections", type=positive, default=256, help="open connections that are served at once (default: %(default)s)")
    serve.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info", help="debug logs each request (default: info)")
    serve.add_argument("--drain-seconds", type=float, default=30.0, help="most time for running requests after SIGTERM (default: %(default)s)")

    control = command(
        "control", run_control, "Keep the right models of a fleet warm: watch and advise, or act in front of their servers", bundle=None
    )
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

    ready = command("ready", run_ready, "Exit 0 while a warm process lives", "a bundle that it must have open (optional)")
    state_option(ready)
    status = command("status", run_status, "Show the warm processes", "a bundle that they must have open (optional)")
    state_option(status)
    return parser


def positive(text: str) -> int:
    """An argument that counts something."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not 1 or more")
    return value


def show(arguments: argparse.Namespace, data: dict[str, Any], text: str) -> None:
    """Print the result: one JSON object, or text for a person."""
    print(json.dumps(data, sort_keys=True) if arguments.json else text, flush=True)


def state_folder(arguments: argparse.Namespace) -> Path:
    """`--state`, or the per-user default."""
    from fleet.state import default_folder

    return arguments.state or default_folder()


def run_verify(arguments: argparse.Namespace) -> int:
    """Every byte, before any deserializer."""
    from fleet.verify import verify

    verified = verify(arguments.bundle, arguments.key, allow_unsigned=arguments.allow_unsigned)
    manifest = verified.manifest
    targets = {released.target: released.verdict.name for released in manifest.targets}
    data = {
        "verified": True,
        "origin": verified.origin,
        "name": manifest.name,
        "version": manifest.version,
        "manifest_sha256": verified.digest,
        "signature": manifest.signature,
        "files": len(manifest.files),
        "bytes": verified.total_bytes,
        "targets": targets,
        "left_out": manifest.left_out,
    }
    summary = f"{manifest.name} {manifest.version}: {len(manifest.files)} files, {verified.total_bytes} bytes, all as in the manifest"
    listed = ", ".join(f"{target} {verdict}" for target, verdict in targets.items())
    text = f"{summary}\ntargets: {listed}\n{verified.origin}"
    show(arguments, data, text)
    return 0


def run_warm(arguments: argparse.Namespace) -> int:
    """First request with and without the plan, steady state, time to ready."""
    from fleet.warm import measure_bundle

    figures = measure_bundle(
        arguments.bundle,
        target=arguments.target,
        key=arguments.key,
        allow_unsigned=arguments.allow_unsigned,
        runs=arguments.runs,
        requests=arguments.requests,
        log=log,
    )
    text = (
        "{target}: first request {first_request_ms:.2f} ms after the plan, {cold_first_request_ms:.2f} ms without; "
        "steady p50 {steady_p50_ms:.2f} ms; ready {ready_ms:.0f} ms after process start ({runs} fresh processes each)"
    )
    show(arguments, figures, text.format(**figures))
    return 0


def run_serve(arguments: argparse.Namespace) -> int:
    """Until SIGTERM."""
    from fleet.logs import Log
    from fleet.serve import serve

    def ready(served: Any, address: str) -> None:
        data = {
            "address": address,
            "name": served.manifest.name,
            "version": served.manifest.version,
            "target": served.target,
            "timings_ms": {name: round(value, 3) for name, value in served.timings_ms.items()},
        }
        text = f"{data['name']} {data['version']} ({served.target}) ready at {address} after {served.timings_ms['ready']:.0f} ms"
        show(arguments, data, text)

    serve(
        arguments.bundle,
        address=(arguments.host, arguments.port),
        state=state_folder(arguments),
        target=arguments.target,
        concurrency=arguments.concurrency,
        key=arguments.key,
        allow_unsigned=arguments.allow_unsigned,
        queue=max(0, arguments.queue),
        connections=arguments.connections,
        drain_seconds=arguments.drain_seconds,
        log=Log(arguments.log_level),
        ready=ready,
    )
    return 0


def run_control(arguments: argparse.Namespace) -> int:
    """Until SIGTERM."""
    from fleet.command import control
    from fleet.logs import Log

    return control(arguments, state_folder(arguments), Log(), lambda data, text: show(arguments, data, text))


def run_ready(arguments: argparse.Namespace) -> int:
    """For probes: nothing but the standard library on this path."""
    from fleet.state import readiness

    state, reason = readiness(state_folder(arguments), arguments.bundle)
    data = {"ready": state is not None, "reason": reason, "state": state.to_json() if state else None}
    show(arguments, data, f"{'' if state else 'not '}ready: {reason}")
    return 0 if state else FAULT


def run_status(arguments: argparse.Namespace) -> int:
    """Every warm process of the state folder; exit code 0 also when there is none (`ready` is for probes)."""
    from fleet.state import living, readiness

    folder = state_folder(arguments)
    states = living(folder)
    state, reason = readiness(folder, arguments.bundle)
    lines = [
        f"{item.name} {item.version} ({item.target}): pid {item.pid}, ready since {item.ready_at} ({item.ready_ms:.0f} ms after its start), "
        f"{item.address or 'no address'}, {item.bundle}"
        for item in states
    ]
    from fleet.announced import read

    fleet = read(folder)
    lines += [fleet.describe()] if fleet else []
    data = {"ready": state is not None, "reason": reason, "folder": str(folder), "processes": [item.to_json() for item in states]}
    data["fleet"] = fleet.to_json() if fleet else None
    show(arguments, data, "\n".join([f"{'' if state else 'not '}ready: {reason}", *lines]))
    return 0


def log(line: str) -> None:
    """One line on standard error."""
    print(line, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every error is printed once, with what to do next."""
    arguments = build_parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except QwarmError as error:
        fault = error
    except OSError as error:
        fault = QwarmError("The operating system refuses", where=str(error.filename or ""), got=str(error))
    except KeyboardInterrupt:
        return 130
    if arguments.json:
        print(json.dumps(fault.as_json(), sort_keys=True), flush=True)
    if arguments.command == "serve":
        from fleet.logs import Log

        Log().error("failed", **fault.as_json())
    elif not arguments.json:
        log(f"error: {fault}")
    return fault.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
