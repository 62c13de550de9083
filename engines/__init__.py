"""How a model runs on a target: one file a backend, found by its `TARGETS`; `open_engine` opens what a backend built."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from engines.contract import Backend, Session
from engines.stored import read_engine
from pipeline.errors import TargetError
from pipeline.platforms import fingerprint
from pipeline.records import Platform

__all__ = ["Backend", "Session", "backend", "open_engine", "platform_here", "targets"]


def _files() -> tuple[str, ...]:
    return tuple(sorted(f"{__name__}.{entry.name}" for entry in pkgutil.iter_modules(__path__)))


@functools.cache
def targets() -> tuple[str, ...]:
    """Every target that a backend here serves, available on this machine or not. A file of this package is a backend when it defines `TARGETS`."""
    return tuple(sorted(target for name in _files() for target in getattr(importlib.import_module(name), "TARGETS", ())))


@functools.cache
def backend(target: str) -> Backend:
    """The backend module of `target`; raises TargetError naming the known targets.

    Files that name the target are imported first, the others only where none of those serves it: a host's time to ready counts.
    """
    named = [name for name in _files() if f'"{target}"' in _source(name)]
    found = _serving(named, target) or _serving(_files(), target)
    if len(found) > 1:
        raise TargetError("Two backends claim one target", where=target, expected="one file", got=" and ".join(found))
    if not found:
        raise TargetError(
            "Unknown target",
            where=target,
            expected=f"one of {', '.join(targets())}",
            got=target,
            next="correct the name under targets: in params.yaml, or add a backend file to engines/",
        )
    return cast(Backend, importlib.import_module(found[0]))


def _serving(names: Sequence[str], target: str) -> list[str]:
    return [name for name in names if target in getattr(importlib.import_module(name), "TARGETS", ())]


def _source(name: str) -> str:
    """The text of a module of this package, in a folder or in qwarm.pyz."""
    found = importlib.util.find_spec(name)
    loader: Any = found.loader if found is not None else None
    return str(loader.get_source(name)) if hasattr(loader, "get_source") else ""


def platform_here(target: str) -> Platform:
    """The record of this machine for `target`; raises TargetError for an unknown one."""
    serving = backend(target)
    return fingerprint(target, serving.platform_key(target), serving.unavailable(target), serving.unrunnable(target), serving.gpu(target))


def open_engine(folder: str | Path, *, concurrency: int = 1) -> Session:
    """Open the engine in `folder`, able to run `concurrency` requests at once.

    The backend hashes each file that it reads before the runtime sees a byte of it, once. Raises RecordError (no or torn engine.json), Refused
    (a missing or changed file), TargetError (built for another platform).
    """
    folder = Path(folder)
    engine = read_engine(folder)
    return backend(engine.target).load(folder, engine, concurrency=concurrency)
