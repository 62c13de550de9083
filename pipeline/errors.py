"""One tree of errors: each message says what, where, expected, got and the next command."""

from __future__ import annotations

import errno
import os
import sys

FAULT, USAGE, REFUSED, UNDECIDED = 1, 2, 3, 4
"""Exit codes of every command: 0 is done or PASS; see docs/adr/0002."""
BROKEN_PIPE = 141
"""128 + SIGPIPE, as shells count it: who read the output has gone."""

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class QwarmError(Exception):
    """A fault that a person can mend.

    `what` went wrong, `where` (file, row, key or tensor), what was `expected`, what was `got`, and the `next`
    command or edit that mends it. `exit_code` is what the command returns.
    """

    exit_code = FAULT

    def __init__(self, what: str, *, where: str = "", expected: str = "", got: str = "", next: str = "") -> None:
        self.what, self.where, self.expected, self.got, self.next = what, where, expected, got, next
        super().__init__(str(self))

    def __str__(self) -> str:
        lines = [self.what]
        for label in ("where", "expected", "got", "next"):
            value = getattr(self, label)
            if value:
                lines.append(f"  {label + ':':<10}{value}")
        return "\n".join(lines)

    def as_json(self) -> dict[str, str | int]:
        """The same facts as one JSON object, for `--json`."""
        return {
            "error": self.what,
            "where": self.where,
            "expected": self.expected,
            "got": self.got,
            "next": self.next,
            "exit_code": self.exit_code,
        }


class ConfigError(QwarmError):
    """`params.yaml` or a command line asks for something that does not exist."""

    exit_code = USAGE


class RecordError(QwarmError):
    """A record on disk is missing, torn, or of another schema."""


class DataError(QwarmError):
    """A source, a column, a row or a role is not what was declared."""


class ModelError(QwarmError):
    """A model factory, a checkpoint or an exported graph does not fit."""


class RangeError(QwarmError):
    """A calibrated range cannot become a scale (non-finite, never seen, of another model or data)."""


class QuantizeError(QwarmError):
    """A Q/DQ model could not be made, or is not what was asked for."""


class TargetError(QwarmError):
    """A target is unknown, or cannot be built or run on this machine."""


class InputError(QwarmError):
    """A request does not match the engine's declared inputs."""


class DiskFullError(QwarmError):
    """The file system cannot take the file; nothing half-written was left."""


class TrialError(QwarmError):
    """A fresh measuring process died or printed nonsense."""


class Refused(QwarmError):
    """A release, a bundle or a gate says no."""

    exit_code = REFUSED


def disk_error(error: OSError, path: object) -> QwarmError:
    """Turn an OSError met while writing `path` into the error a person can act on."""
    if error.errno in DISK_FULL:
        return DiskFullError(
            "The disk is full, or a quota or file-size limit was reached",
            where=str(path),
            expected="room for the whole file",
            got=str(error),
            next="free space (`dvc gc --workspace` drops old outputs), then run the same command again: finished stages are kept",
        )
    return QwarmError(
        "A file could not be written",
        where=str(path),
        expected="a writable folder",
        got=str(error),
        next="check the folder's owner and mode, then run the same command again",
    )


def system_error(error: OSError) -> QwarmError:
    """An OSError that nobody on the way could say more about."""
    if error.errno in DISK_FULL:
        return disk_error(error, error.filename or "a file")
    return QwarmError("The operating system refuses", where=str(error.filename or ""), got=str(error))


def reader_gone() -> int:
    """The exit code once standard output is a broken pipe; at exit nothing is said into it either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE
