"""Where what can be made again is kept between runs."""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.errors import ConfigError


def cache_folder(name: str) -> Path:
    """The absolute folder of the cache `name`: under $QWARM_CACHE, else $XDG_CACHE_HOME/qwarm, else ~/.cache/qwarm. Nothing is made.

    A relative $XDG_CACHE_HOME is not used, as its specification asks. Raises ConfigError when none is set and there is no home.
    """
    if own := os.environ.get("QWARM_CACHE"):
        return Path(own).expanduser().absolute() / name
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if Path(xdg).is_absolute():
        return Path(xdg) / "qwarm" / name
    try:
        return Path.home() / ".cache" / "qwarm" / name
    except RuntimeError as error:
        raise ConfigError("There is no place for the cache", expected="a home", got=str(error), next="set QWARM_CACHE to a folder") from error
