"""How a model runs on a target: one file a backend, found by its `TARGETS`; `open_engine` opens what a backend built."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from pathlib import Path
from typing import cast

from engines.contract import Backend, Session
from engines.stored import read_engine, verify
from pipeline.errors import TargetError
from pipeline.platforms import fingerprint
from pipeline.records import Platform

__all__ = ["Backend", "Session", "backend", "open_engine", "platform_here", "targets"]


@functools.cache
def _backends() -> dict[str, str]:
    """Target to the name of the module that serves it. A file of this package is a backend when it defines `TARGETS`."""
    found: dict[str, str] = {}
    for entry in sorted(pkgutil.iter_modules(__path__), key=lambda entry: entry.name):
        name = f"{__name__}.{entry.name}"
        for target in getattr(importlib.import_module(name), "TARGETS", ()):
            if target in found:
                raise TargetError("Two backends claim one target", where=target, expected="one file", got=f"{found[target]} and {name}")
            found[target] = name
    return found


def targets() -> tuple[str, ...]:
    """Every target that a backend here serves, available on this machine or not."""
    return tuple(sorted(_backends()))


def backend(target: str) -> Backend:
    """The backend module of `target`; raises TargetError naming the known targets."""
    known = _backends()
    if target not in known:
        raise TargetError(
            "Unknown target",
            where=target,
            expected=f"one of {', '.join(sorted(known))}",
            got=target,
            next="correct the name under targets: in params.yaml, or add a backend file to engines/",
        )
    return cast(Backend, importlib.import_module(known[target]))


def platform_here(target: str) -> Platform:
    """The record of this machine for `target`; raises TargetError for an unknown one."""
    serving = backend(target)
    return fingerprint(target, serving.platform_key(target), serving.unavailable(target), serving.unrunnable(target), serving.gpu(target))


def open_engine(folder: str | Path, *, concurrency: int = 1) -> Session:
    """Open the engine in `folder`, able to run `concurrency` requests at once.

    Size and sha256 of every file that `engine.json` lists are checked before the runtime sees a byte. Raises
    RecordError (no or torn engine.json), Refused (a missing or changed file), TargetError (built for another platform).
    """
    folder = Path(folder)
    engine = read_engine(folder)
    verify(folder, engine)
    return backend(engine.target).load(folder, engine, concurrency=concurrency)
