"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.errors import ConfigError


def pairs_of(texts: Sequence[str] | None, option: str, form: str) -> dict[str, str]:
    """`["a=1", "b=2"]` as a mapping; raises ConfigError for one without `=`, with an empty side, or given twice."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name or not value or name in found:
            raise ConfigError(f"An option does not fit: {option}", where=option, expected=f"{form}, each name once", got=text)
        found[name] = value
    return found


def sizes_of(texts: Sequence[str] | None) -> dict[str, int]:
    """`["time=128"]` as sizes; raises ConfigError for what is no positive number."""
    sizes = {}
    for name, value in pairs_of(texts, "--size", "AXIS=N").items():
        if not value.isdecimal() or int(value) < 1:
            raise ConfigError("A size is no positive number", where=f"--size {name}", expected="1 or more", got=value)
        sizes[name] = int(value)
    return sizes
