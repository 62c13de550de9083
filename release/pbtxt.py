"""Protocol buffers' text format, as far as a Triton config.pbtxt needs it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class Name(str):
    """An enum's value: written without quotes."""

    __slots__ = ()


def text(message: Mapping[str, Any], indent: str = "") -> str:
    """A message: a mapping is a nested message, a list a repeated field (of numbers in one line), an entry of None is left out."""
    return "".join(_field(name, value, indent) for name, value in message.items() if value is not None)


def _field(name: str, value: Any, indent: str) -> str:
    if isinstance(value, list) and all(isinstance(item, int) for item in value):
        return f"{indent}{name}: {json.dumps(value)}\n"
    if isinstance(value, list):
        return "".join(_field(name, item, indent) for item in value)
    if isinstance(value, Mapping):
        return f"{indent}{name} {{\n{text(value, indent + '  ')}{indent}}}\n"
    return f"{indent}{name}: {value if isinstance(value, Name) else json.dumps(value, ensure_ascii=True)}\n"
