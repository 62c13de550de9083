"""What `warm` and `validate` do where an engine is built and cannot be run: they say so in a record, and `gate` makes it a verdict."""

from __future__ import annotations

import datetime
from pathlib import Path

from pipeline.records import Engine, NotMeasured, Platform
from stages import paths


def now() -> str:
    """UTC, ISO 8601 to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def not_measured(target: str, path: Path) -> str | None:
    """Why `target` cannot be run here, also saved as a NotMeasured record at `path`; None, and no record, when it can."""
    reason = Platform.load(paths.platform(target), next=f"run `dvc repro platform@{target}`").unrunnable
    if reason is None:
        return None
    engine = Engine.load(paths.ENGINES / target / "int8" / "engine.json", next=f"run `dvc repro build@{target}`")
    NotMeasured(target=target, why=reason, engine_sha256=engine.digest(), noticed_at=now()).save(path)
    return reason
