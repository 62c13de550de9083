"""`qwarm stage NAME [ITEM]`: what dvc.yaml calls."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Collection

import stages
from pipeline.errors import ConfigError
from pipeline.nearest import nearest
from stages import paths

HELPERS = ("agreement", "evidence", "hardware", "paths", "rows", "schemes")
"""Modules of `stages/` that several stages share and that are no stage."""


def names() -> list[str]:
    """Every stage: the modules of `stages/` that have a `run`."""
    found = [module.name for module in pkgutil.iter_modules(stages.__path__)]
    return [name for name in found if name not in HELPERS]


def stage(name: str, item: str | None = None) -> None:
    """Run one stage in the current folder and print its one line of result."""
    if name not in names():
        raise ConfigError(f"Unknown stage {name!r}", where="qwarm stage", expected=nearest(name, names()), got=name)
    run: Callable[..., str] = importlib.import_module(f"stages.{name}").run
    kinds = list(inspect.signature(run).parameters)
    if bool(kinds) != (item is not None):
        raise ConfigError(
            f"The stage {name} {'needs an' if kinds else 'takes no'} item",
            where=f"qwarm stage {name}",
            expected=f"qwarm stage {name} ITEM (a target or scheme)" if kinds else f"qwarm stage {name}",
            got=item or "no item",
        )
    if item is None:
        print(f"{name}: {run()}", flush=True)
        return
    check_item(name, kinds[0], item)
    print(f"{name}: {run(item)}", flush=True)


def check_item(name: str, kind: str, item: str) -> None:
    """Raise ConfigError where params.yaml does not have this item, or has a target that no backend serves: before the stage runs for minutes.

    `kind` is what the stage's `run` calls its parameter: "target" or "scheme".
    """
    import engines
    from pipeline.config import load_config

    config = load_config(paths.PARAMS)
    for target in config.targets:
        if target not in engines.targets():
            raise ConfigError(
                f"Unknown target {target!r}",
                where=f"{paths.PARAMS}: targets",
                expected=nearest(target, engines.targets()),
                got=target,
                next=f"correct {paths.PARAMS}, or add a backend file to engines/",
            )
    keys: dict[str, tuple[str, Collection[str]]] = {"target": ("targets", config.targets), "scheme": ("quantize.schemes", config.quantize.schemes)}
    key, known = keys[kind]
    if item not in known:
        raise ConfigError(
            f"{paths.PARAMS} has no {kind} {item!r}",
            where=f"qwarm stage {name}",
            expected=nearest(item, known),
            got=item,
            next=f"name one of {key}, or add it there",
        )
