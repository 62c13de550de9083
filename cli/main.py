"""The `qwarm` command: dispatches, and turns every QwarmError into one message and an exit code."""

from __future__ import annotations

import json
import sys

from pipeline.errors import QwarmError

HOST_COMMANDS = {
    "verify": "Check every byte of a bundle against its manifest.",
    "warm": "Measure a bundle's first request in fresh processes, with and without its plan.",
    "serve": "Verify, load and warm a bundle, then answer the Open Inference Protocol.",
    "ready": "Exit 0 only while a served bundle is warm.",
    "status": "Say what is served, since when, and how it was warmed.",
}


def run_host(arguments: list[str]) -> int:
    """What a serving host's `qwarm.pyz` does with the same arguments."""
    from fleet.main import main as host_main

    return host_main(arguments)


def main() -> None:
    """Entry point. Exit codes: 0 done or PASS, 1 fault, 2 usage, 3 refused or FAIL, 4 UNDECIDED."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] in HOST_COMMANDS:
        # Straight to the host's own command: `ready` must answer before typer would be imported.
        raise SystemExit(run_host(arguments))
    try:
        from cli.app import app

        app(arguments)
    except QwarmError as error:
        if "--json" in arguments:
            print(json.dumps(error.as_json()))
        print(f"qwarm: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        print("qwarm: interrupted; run the same command again to continue", file=sys.stderr)
        raise SystemExit(130) from None
    except OSError as error:
        from pipeline.errors import DISK_FULL, disk_error

        if error.errno not in DISK_FULL:
            raise
        print(f"qwarm: {disk_error(error, error.filename or 'a file')}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
