"""One tiny bundle for all tests of the host; whoever tampers copies it first."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
from serving import Running

from release import signing


@pytest.fixture(scope="session")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return tiny.make_parts(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def signing_key(tmp_path_factory: pytest.TempPathFactory) -> signing.SigningKey:
    return signing.open_key(tmp_path_factory.mktemp("keys") / "development.pem", development=True)


@pytest.fixture(scope="session")
def public_key(signing_key: signing.SigningKey, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return signing_key.write_public(tmp_path_factory.mktemp("public") / "development.pub")


@pytest.fixture(scope="session")
def bundle(parts: dict[str, Any], signing_key: signing.SigningKey, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Signed; read only."""
    return tiny.pack(parts, tmp_path_factory.mktemp("build") / "release", key=signing_key)


@pytest.fixture
def copy(bundle: Path, tmp_path: Path) -> Callable[[], Path]:
    """Makes a fresh copy of the bundle at each call."""
    count = iter(range(1000))

    def make() -> Path:
        return Path(shutil.copytree(bundle, tmp_path / f"copy{next(count)}" / bundle.name))

    return make


@pytest.fixture(scope="module")
def running(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    server = Running(bundle, tmp_path_factory.mktemp("state"))
    server.wait_ready()
    yield server
    assert server.stop() == 0
