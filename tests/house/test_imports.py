"""The house's arrows: who may import whom, and what a serving host needs."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from release.pyz import LEFT_OUT as PIPELINE_SIDE_ONLY

ROOT = Path(__file__).resolve().parents[2]
ARROWS = {
    "pipeline": set(),
    "calibration": {"pipeline"},
    "engines": {"pipeline"},
    "warmup": {"pipeline", "engines"},
    "release": {"pipeline", "engines", "warmup"},
    "fleet": {"pipeline", "engines", "warmup"},
    "stages": {"pipeline", "calibration", "engines", "warmup", "release"},
    "cli": {"pipeline", "calibration", "engines", "warmup", "release", "stages", "fleet"},
}
HOST = ("pipeline", "engines", "warmup", "fleet")


def imports(path: Path, module_level_only: bool = False) -> Iterator[str]:
    """Dotted names that a file imports; `from a import b` gives `a.b`. TYPE_CHECKING blocks count only in full mode."""

    def visit(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module:
                yield from (f"{child.module}.{alias.name}" for alias in child.names)
            elif module_level_only and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            elif module_level_only and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            else:
                yield from visit(child)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")))


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", ARROWS)
def test_a_package_imports_only_what_its_row_names(package: str) -> None:
    for path in files(package):
        ours = {name.split(".")[0] for name in imports(path)} & set(ARROWS)
        assert ours <= ARROWS[package] | {package}, f"{path.relative_to(ROOT)} imports {sorted(ours - ARROWS[package] - {package})}"


def test_examples_import_only_the_pipeline() -> None:
    for path in files("examples"):
        assert {name.split(".")[0] for name in imports(path)} & set(ARROWS) <= {"pipeline"}, path


@pytest.mark.parametrize("package", HOST)
def test_host_packages_need_only_the_standard_library_and_numpy(package: str) -> None:
    allowed = sys.stdlib_module_names | {"numpy"} | set(HOST)
    for path in files(package):
        if path.relative_to(ROOT).as_posix() in PIPELINE_SIDE_ONLY:
            continue
        outside = {name.split(".")[0] for name in imports(path, module_level_only=True)} - allowed
        assert not outside, f"{path.relative_to(ROOT)} imports {sorted(outside)} at module level"
        side = {name for name in imports(path) if name.startswith(tuple(path.removesuffix(".py").replace("/", ".") for path in PIPELINE_SIDE_ONLY))}
        assert not side, f"{path.relative_to(ROOT)} imports {sorted(side)}, which no host has"


def test_no_file_is_named_like_a_library_or_standard_module() -> None:
    taken = sys.stdlib_module_names | {"torch", "onnx", "tensorrt", "openvino", "onnxruntime", "numpy", "scipy", "datasets", "dvc"}
    for package in ARROWS:
        for path in files(package):
            assert path.stem == "__init__" or path.stem not in taken - {"platform"}, path


def module_file(name: str) -> Path | None:
    """The file of ours that a dotted name (perhaps ending in an attribute) comes from."""
    parts = name.split(".")
    if parts[0] not in ARROWS:
        return None
    for length in (len(parts), len(parts) - 1):
        base = ROOT.joinpath(*parts[:length])
        if length and base.with_suffix(".py").is_file():
            return base.with_suffix(".py")
        if length and (base / "__init__.py").is_file():
            return base / "__init__.py"
    return None


def closure(start: Path) -> set[Path]:
    """Every file of ours that running `start` may import."""
    seen: set[Path] = set()
    todo = [start]
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        todo += [found for found in map(module_file, imports(path)) if found is not None]
    return seen


def stage_entries() -> list[tuple[str, list[str]]]:
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    return [(name, entry.get("do", entry).get("deps", [])) for name, entry in stages.items()]


@pytest.mark.parametrize(("stage", "deps"), [entry for entry in stage_entries() if entry[0] != "platform"])
def test_dvc_yaml_lists_all_code_that_a_stage_runs(stage: str, deps: list[str]) -> None:
    listed = [dep.replace("${item}", "tensorrt") for dep in deps]
    for path in closure(ROOT / "stages" / f"{stage}.py"):
        relative = path.relative_to(ROOT).as_posix()
        if path.name == "__init__.py" and path.stat().st_size < 200:
            continue  # a docstring alone
        assert any(relative == dep or relative.startswith(f"{dep}/") for dep in listed), f"stage {stage} runs {relative}, which its deps do not list"


def test_every_listed_code_dependency_exists() -> None:
    for stage, deps in stage_entries():
        for dep in deps:
            if not dep.startswith(("build", "evidence")):
                assert (ROOT / dep.replace("${item}", "tensorrt")).exists(), f"stage {stage} lists {dep}"
