"""Load a user's function or value by `file.py:name` or `package.module:name`."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError


@contextlib.contextmanager
def no_bytecode() -> Iterator[None]:
    """Import without writing `__pycache__` beside the user's files."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def source_file(reference: str, root: str | Path = ".") -> Path | None:
    """The file that `reference` names, or None when it is an import path."""
    module = reference.partition(":")[0]
    return (Path(root) / module).resolve() if module.endswith(".py") else None


def load_object(reference: str, root: str | Path = ".") -> Any:
    """Return what `reference` names; a `.py` path is taken relative to `root`.

    Raises ConfigError when the reference has no colon, the file or module cannot be imported, or has no such name.
    """
    module_name, colon, attribute = reference.partition(":")
    if not colon or not attribute or not module_name:
        raise ConfigError(
            "A reference does not name an object", where=reference, expected="path/to/file.py:name or package.module:name", got=reference
        )
    path = source_file(reference, root)
    try:
        if path is None:
            module = importlib.import_module(module_name)
        else:
            spec = importlib.util.spec_from_file_location(f"_qwarm_user_{path.stem}", path)
            if not path.is_file() or spec is None or spec.loader is None:
                raise FileNotFoundError(f"no such file: {path}")
            module = importlib.util.module_from_spec(spec)
            with no_bytecode():
                spec.loader.exec_module(module)
    except Exception as error:  # a user's module may raise anything while it is imported
        raise ConfigError(
            "A module of yours cannot be imported",
            where=reference,
            expected="a Python file that imports without error",
            got=f"{type(error).__name__}: {error}",
            next=f"correct the path in params.yaml, or try `python {module_name}`",
        ) from error
    if not hasattr(module, attribute):
        public = [name for name in vars(module) if not name.startswith("_")]
        raise ConfigError("A module of yours lacks a name", where=reference, expected=attribute, got=", ".join(public)[:300])
    return getattr(module, attribute)
