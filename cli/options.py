"""Options that several commands share."""

from __future__ import annotations

import contextlib
import glob
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from pipeline.errors import ConfigError, QwarmError


def existing(parameter: typer.CallbackParam, value: Any) -> Any:
    """For `callback=` of a file, a folder or a glob that is read, or several: raises ConfigError naming the first that is not there."""
    several = isinstance(value, (list, tuple))
    name = parameter.opts[0] if parameter.param_type_name == "option" else "" if several else parameter.metavar
    for path in value if several else [value]:
        if path is not None and not Path(path).exists() and not glob.has_magic(str(path)):
            raise ConfigError(
                "There is no such file or folder", where=f"{name} {path}".strip(), expected="a path", got="nothing there", next="correct it"
            )
    return value


def known_target(target: str) -> str:
    """The target; raises ConfigError for a name that no backend has."""
    import engines

    if target not in (known := engines.targets()):
        raise ConfigError("Unknown target", where="--target", expected=f"one of {', '.join(known)}", got=target, next="correct --target")
    return target


@contextlib.contextmanager
def by_hand(option: str, next: str = "") -> Iterator[None]:
    """An error that sends to params.yaml sends to `option` of a command that reads none; `next` in place of "correct OPTION"."""
    try:
        yield
    except QwarmError as error:
        if "params.yaml" in error.where:
            error.where = option
        if "params.yaml" in error.next or re.search(r"\bdata\.[a-z]", error.next):
            error.next = next or f"correct {option}"
        raise


def pairs_of(texts: Sequence[str] | None, option: str, form: str) -> dict[str, str]:
    """`["a=1", "b=2"]` as a mapping; raises ConfigError for one without `=`, with an empty side, or given twice."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name or not value or name in found:
            expected, after = f"{form}, each name once", f"correct {option}"
            raise ConfigError(f"An option does not fit: {option}", where=option, expected=expected, got=text, next=after)
        found[name] = value
    return found


def sizes_of(texts: Sequence[str] | None) -> dict[str, int]:
    """`["time=128"]` as sizes; raises ConfigError for what is no positive number."""
    sizes = {}
    for name, value in pairs_of(texts, "--size", "AXIS=N").items():
        if not value.isdecimal() or int(value) < 1:
            raise ConfigError("A size is no positive number", where=f"--size {name}", expected="1 or more", got=value, next="correct --size")
        sizes[name] = int(value)
    return sizes
