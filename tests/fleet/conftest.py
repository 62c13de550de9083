"""One tiny bundle for all tests of the host; whoever tampers copies it first."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny


@pytest.fixture(scope="session")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return tiny.make_parts(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def bundle(parts: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only."""
    return tiny.pack(parts, tmp_path_factory.mktemp("build") / "release")


@pytest.fixture
def copy(bundle: Path, tmp_path: Path) -> Callable[[], Path]:
    """Makes a fresh copy of the bundle at each call."""
    count = iter(range(1000))

    def make() -> Path:
        return Path(shutil.copytree(bundle, tmp_path / f"copy{next(count)}" / bundle.name))

    return make
