"""`qwarm stage NAME [ITEM]`: what dvc.yaml calls."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable

import stages
from pipeline.errors import ConfigError

HELPERS = ("agreement", "evidence", "hardware", "paths", "rows", "schemes")
"""Modules of `stages/` that several stages share and that are no stage."""


def names() -> list[str]:
    """Every stage: the modules of `stages/` that have a `run`."""
    found = [module.name for module in pkgutil.iter_modules(stages.__path__)]
    return [name for name in found if name not in HELPERS]


def stage(name: str, item: str | None = None) -> None:
    """Run one stage in the current folder and print its one line of result."""
    if name not in names():
        raise ConfigError(f"Unknown stage {name!r}", where="qwarm stage", expected=", ".join(names()), got=name)
    run: Callable[..., str] = importlib.import_module(f"stages.{name}").run
    wants = bool(inspect.signature(run).parameters)
    if wants != (item is not None):
        raise ConfigError(
            f"The stage {name} {'needs an' if wants else 'takes no'} item",
            where=f"qwarm stage {name}",
            expected=f"qwarm stage {name} ITEM (a target or scheme)" if wants else f"qwarm stage {name}",
            got=item or "no item",
        )
    print(f"{name}: {run(item) if wants else run()}", flush=True)
