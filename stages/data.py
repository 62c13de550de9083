"""Stage `data`: let the example (or your `data.write`) make the source. A source of your own needs no such stage."""

from __future__ import annotations

from pathlib import Path

from pipeline.config import load_config
from pipeline.digests import sha256_file
from pipeline.errors import ConfigError
from pipeline.loading import load_object
from stages import paths


def run() -> str:
    config = load_config(paths.PARAMS)
    if config.data.write is None:
        raise ConfigError(
            "There is nothing to write",
            where=f"{paths.PARAMS}: data.write",
            expected="a function that writes data.source.path",
            got="no such key",
            next="add data.write, or take the stage `data` out of dvc.yaml and `dvc add` your source",
        )
    if config.data.source is None or config.data.source.path is None:
        raise ConfigError(
            "There is no file to write", where=f"{paths.PARAMS}: data.write", expected="data.source with a path", got="no source, or one of the Hub"
        )
    path = Path(config.data.source.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    load_object(config.data.write)(path)
    return f"{path}: {path.stat().st_size} bytes, sha256 {sha256_file(path)[:12]}"
