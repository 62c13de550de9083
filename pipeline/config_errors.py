"""What is wrong with params.yaml, in one error that a person can act on. Pipeline side only (pydantic)."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import ValidationError

from pipeline.errors import ConfigError
from pipeline.nearest import nearest
from pipeline.section import Section

Place = tuple[int | str, ...]


def explain(error: ValidationError, data: Any, path: str, whole: type[Section]) -> ConfigError:
    """The likeliest of the faults that pydantic found in `data`, read from `path` as a `whole`, with the nearest known name."""
    problems = [(_place(problem, data), problem) for problem in error.errors()]
    # An unknown key is the likeliest cause of a missing one: name it first. The deepest place next: a union tells of each of its kinds.
    problems.sort(key=lambda found: (found[1]["type"] != "extra_forbidden", -len(found[0]), found[1]["type"] != "value_error"))
    place, problem = problems[0]
    dotted = ".".join(str(part) for part in place) or "the whole file"
    again = f"correct {path} and run `dvc repro` again"
    if problem["type"] == "extra_forbidden":
        expected = nearest(str(place[-1]), _known_keys(whole, place[:-1]))
        return ConfigError(f"Unknown key {dotted!r}", where=path, expected=expected, got=str(place[-1]), next=again)
    if problem["type"] == "value_error":  # a sentence of ours, which says what it got
        return ConfigError(f"Parameters do not fit: {problem['ctx']['error']}", where=f"{path}: {dotted}", next=again)
    expected = " or ".join(dict.fromkeys(_wanted(other) for found, other in problems if found == place and other["type"] != "extra_forbidden"))
    got = "nothing" if problem["type"] == "missing" else repr(problem["input"])[:120]
    return ConfigError(f"A parameter does not fit: {dotted}", where=path, expected=expected, got=got, next=again)


def _place(problem: Any, data: Any) -> Place:
    """Keys and numbers of the file alone: pydantic also names the kinds of a union, and that a key is meant."""
    place: list[int | str] = []
    for part in problem["loc"]:
        if (isinstance(data, Mapping) and part in data) or (isinstance(data, list) and isinstance(part, int)):
            place.append(part)
            data = data[part]
    return (*place, problem["loc"][-1]) if problem["type"] == "missing" else tuple(place)


def _wanted(problem: Any) -> str:
    if problem["type"] in ("model_type", "missing"):
        return "keys with values" if problem["type"] == "model_type" else "a value"
    text = str(problem["msg"]).removeprefix("Input should be ")
    if problem["type"] == "literal_error" and isinstance(problem["input"], str):
        near = nearest(problem["input"], re.findall(r"'([^']*)'", problem["ctx"]["expected"]))
        return f"{text} ({near})" if near.startswith("did") else text
    return text


def _known_keys(whole: type[Section], place: Place) -> list[str]:
    kinds: list[Any] = [whole]
    for part in place:
        kinds = [kind for outer in kinds for kind in _inside(outer, part)]
    return [key for kind in kinds if isinstance(kind, type) and issubclass(kind, Section) for key in kind.model_fields]


def _inside(outer: Any, part: int | str) -> Iterator[Any]:
    """What the annotation `outer` may hold at `part`."""
    if isinstance(outer, type) and issubclass(outer, Section):
        if part in outer.model_fields:
            yield from _kinds(outer.model_fields[str(part)].annotation)
    elif typing.get_args(outer):
        yield from _kinds(typing.get_args(outer)[-1])


def _kinds(annotation: Any) -> Iterator[Any]:
    """The members of a union, or the annotation itself."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        yield from _kinds(arguments[0])
    elif origin in (typing.Union, types.UnionType):
        for argument in arguments:
            yield from _kinds(argument)
    else:
        yield annotation
