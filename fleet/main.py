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

from fleet.options import make_parser
from pipeline.errors import FAULT, QwarmError, reader_gone, system_error


def build_parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    runs = (run_verify, run_warm, run_serve, run_control, run_ready, run_status)
    return make_parser({run.__name__.removeprefix("run_"): run for run in runs})


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
        queue=arguments.queue,
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
    """Every warm process of the state folder, or what a controller says; exit code 0 also when there is none (`ready` is for probes)."""
    from fleet.announced import ask, describe, read
    from fleet.state import living, readiness

    if arguments.url:
        told = ask(arguments.url)
        show(arguments, told, describe(told))
        return 0
    folder = state_folder(arguments)
    states = living(folder)
    state, reason = readiness(folder, arguments.bundle)
    lines = [
        f"{item.name} {item.version} ({item.target}): pid {item.pid}, ready since {item.ready_at} ({item.ready_ms:.0f} ms after its start), "
        f"{item.address or 'no address'}, {item.bundle}"
        for item in states
    ]
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
    except BrokenPipeError:
        return reader_gone()
    except OSError as error:
        fault = system_error(error)
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
