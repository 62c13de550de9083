"""The `qwarm` command: dispatches, and turns every QwarmError into one message and an exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, QwarmError, reader_gone, system_error

HOST_COMMANDS = {
    "verify": "Check every byte of a bundle against its manifest.",
    "warm": "Measure a bundle's first request in fresh processes, with and without its plan.",
    "serve": "Verify, load and warm a bundle, then answer the Open Inference Protocol.",
    "ready": "Exit 0 only while a served bundle is warm.",
    "control": "Keep the right models of a fleet warm, in front of their servers or in shadow.",
    "status": "In a project: what is due, judged and packed, and what comes next. With BUNDLE or --state, or elsewhere: what is served here.",
}


def run_host(arguments: list[str]) -> int:
    """What a serving host's `qwarm.pyz` does with the same arguments."""
    from fleet.main import main as host_main

    return host_main(arguments)


def about_project(arguments: list[str]) -> bool:
    """Whether this is `qwarm status` of the project in the current folder: no bundle and no state folder is named, and its two files are here."""
    return arguments[:1] == ["status"] and set(arguments[1:]) <= {"--json"} and Path("params.yaml").is_file() and Path("dvc.yaml").is_file()


def run(arguments: list[str]) -> int:
    """A subcommand's exit code. Raises ConfigError for options that it does not have, so that they too are one error, with --json an object."""
    if about_project(arguments):
        from cli.status import status

        return status("--json" in arguments)
    from typer.exceptions import TyperException
    from typer.main import get_command

    from cli.app import app

    command: Any = get_command(app)
    try:
        return command.main(arguments, prog_name="qwarm", standalone_mode=False) or 0
    except TyperException as error:
        named = " ".join(["qwarm", *(name for name in arguments[:1] if name in command.commands)])
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        raise ConfigError("The command line is wrong", where=named, got=message.rstrip("."), next=f"{named} --help") from None


def main() -> None:
    """Entry point. Exit codes: 0 done or PASS, 1 fault, 2 usage, 3 refused or FAIL, 4 UNDECIDED."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] in HOST_COMMANDS and not about_project(arguments):
        # Straight to the host's own command: `ready` must answer before typer would be imported.
        raise SystemExit(run_host(arguments))
    try:
        raise SystemExit(run(arguments))
    except QwarmError as error:
        raise SystemExit(_told(error, arguments)) from None
    except KeyboardInterrupt:
        print("qwarm: interrupted; run the same command again to continue", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:
        raise SystemExit(reader_gone()) from None
    except OSError as error:
        raise SystemExit(_told(system_error(error), arguments)) from None


def _told(error: QwarmError, arguments: list[str]) -> int:
    """Say an error once; its exit code."""
    if "--json" in arguments:
        print(json.dumps(error.as_json()))
    print(f"qwarm: {error}", file=sys.stderr)
    return error.exit_code


if __name__ == "__main__":
    main()
