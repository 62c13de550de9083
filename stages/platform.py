"""Stage `platform@TARGET`: the machine's fingerprint, on every run; a foreign machine's committed one is kept."""

from __future__ import annotations

import engines
from pipeline.config import load_config
from pipeline.records import Platform
from stages import paths


def run(target: str) -> str:
    load_config(paths.PARAMS)  # this stage runs on every `dvc repro`: a misspelt key is named before anything runs
    path, here = paths.platform(target), engines.platform_here(target)
    reason = here.unavailable or here.unrunnable
    if reason and path.exists() and (committed := Platform.load(path)).unavailable is committed.unrunnable is None:
        return f"{target}: not here ({reason}); the committed {path} of another machine is kept"
    if not path.exists() or path.read_text(encoding="utf-8") != here.to_text():
        here.save(path)
    return f"{target}: key {here.key[:12]}, machine {here.machine_id[:12]}" + (f", {reason}" if reason else "")
