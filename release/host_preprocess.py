"""The preprocessing that a bundle ships: the very file that roles were drawn with, if a host can import it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from pipeline.digests import sha256_bytes
from pipeline.errors import ConfigError
from pipeline.records import Roles
from release.contents import belongs

HOST_MODULES = frozenset(sys.stdlib_module_names) | {"numpy"}


def host_preprocess(path: Path, function: str, roles: Roles) -> bytes:
    """Source of the preprocessing, once it is the one the roles were drawn with and a host can import it.

    Raises Refused when it changed since, ConfigError when it defines no `function` or imports what a host does not have.
    """
    source = path.read_bytes()
    belongs("The preprocessing", str(path), roles.preprocess_sha256, sha256_bytes(source))
    tree = ast.parse(source, str(path))
    imported: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported.update({alias.name.partition(".")[0]: node.lineno for alias in node.names})
        elif isinstance(node, ast.ImportFrom):
            imported["." * node.level + (node.module or "").partition(".")[0]] = node.lineno
    foreign = [f"{module} (line {line})" for module, line in imported.items() if module not in HOST_MODULES]
    if foreign:
        raise ConfigError(
            "The preprocessing imports what a serving host does not have",
            where=str(path),
            expected="the standard library and numpy only, in one file",
            got=", ".join(foreign),
            next="write those lines with numpy; the host runs this very file",
        )
    if function not in {name for node in tree.body for name in defined(node)}:
        raise ConfigError("The preprocessing lacks its function", where=str(path), expected=f"a top-level {function}", got="no such name")
    return source


def defined(node: ast.stmt) -> list[str]:
    """Names that a top-level statement binds to a function, class or value."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    return [target.id for target in node.targets if isinstance(target, ast.Name)] if isinstance(node, ast.Assign) else []
