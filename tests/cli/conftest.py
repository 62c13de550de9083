"""The small failing inputs that lie beside the repository, where they do."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

CASES = Path(__file__).resolve().parents[2].parent / "shared/cases/make_cases.py"


@pytest.fixture
def shared_case(tmp_path: Path) -> Callable[[str], Path]:
    """`shared_case("zero_scale")` writes that case and gives its folder."""
    if not CASES.exists():
        pytest.skip("shared/cases is not beside this repository")
    spec = importlib.util.spec_from_file_location("make_cases", CASES)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def write(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        getattr(module, name)(folder)
        return folder

    return write
