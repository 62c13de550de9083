"""Where caches go."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.caches import cache_folder
from pipeline.errors import ConfigError


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("QWARM_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "")


def test_own_variable_then_xdg_then_home(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder("firewall") == Path("/home/someone/.cache/qwarm/firewall")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder("firewall") == Path("/home/someone/.cache/qwarm/firewall")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder("firewall") == Path("/xdg/qwarm/firewall")
    monkeypatch.setenv("QWARM_CACHE", "~/own")
    assert cache_folder("firewall") == Path("/home/someone/own/firewall")
    monkeypatch.setenv("QWARM_CACHE", "own")
    assert cache_folder("firewall") == Path.cwd() / "own/firewall"


def test_no_home_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(ConfigError, match="QWARM_CACHE"):
        cache_folder("firewall")
