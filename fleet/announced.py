"""What a running controller says of itself in its state folder, for `qwarm status`. Standard library only."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, ClassVar

from fleet import state as states
from pipeline.errors import ConfigError, RecordError
from pipeline.strict import Record

FILE = "fleet.json"


@dataclasses.dataclass(frozen=True)
class Announced(Record):
    """One controller. `changes`: the last changes of mode or of a model's lane, with their reasons. `phases`: of each model."""

    SCHEMA: ClassVar[str] = "qwarm.fleet/1"
    pid: int
    started_ticks: int
    boot_id: str
    address: str
    shadow: bool
    mode: str
    memory_mb: float
    cap_mb: float | None
    changes: tuple[dict[str, Any], ...]
    phases: dict[str, str]

    def describe(self) -> str:
        """A few lines for a person."""
        warm = ", ".join(name for name, phase in self.phases.items() if phase == "WARM") or "none"
        cap = f" of {self.cap_mb:g}" if self.cap_mb is not None else ""
        shadow = ", shadow" if self.shadow else ""
        lines = [f"controller: pid {self.pid} at {self.address}, mode {self.mode}{shadow}; {self.memory_mb:g}{cap} MB; warm: {warm}"]
        return "\n".join([*lines, *(f"  {change['mode']} {change['model']}: {change['reason']}" for change in self.changes[-5:])])


def announce(folder: Path, address: str, shadow: bool, status: dict[str, Any]) -> None:
    """Write it; `status`: `Controller.status`."""
    pid = os.getpid()
    phases = {name: facts["phase"] for name, facts in status["models"].items()}
    changes = tuple(status["changes"][-20:])
    facts = (address, shadow, status["mode"], status["memory_mb"], status["cap_mb"], changes, phases)
    Announced(pid, states.start_ticks(pid) or 0, states.boot_id(), *facts).save(folder / FILE)


def read(folder: Path) -> Announced | None:
    """The controller that runs with this state folder; None when there is none, or its process is gone."""
    path = folder / FILE
    try:
        if path.lstat().st_uid not in (os.getuid(), 0) or path.is_symlink():
            return None
        found = Announced.load(path)
    except (RecordError, OSError):
        return None
    return found if found.boot_id == states.boot_id() and found.started_ticks == states.start_ticks(found.pid) else None


def ask(url: str) -> dict[str, Any]:
    """`Controller.status` of the controller at `url`, with its servers' addresses. Raises ConfigError when there is none."""
    import http.client
    import json
    from urllib.request import urlopen

    address = f"{url.rstrip('/')}/v2/fleet"
    try:
        with urlopen(address, timeout=5.0) as answer:
            told = json.loads(answer.read())
        if not isinstance(told, dict) or "mode" not in told:
            raise ValueError("the answer is no fleet's")
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ConfigError("No controller answers", where=address, expected="the address that `control` says it listens at", got=str(error)) from error
    return told


def describe(status: dict[str, Any]) -> str:
    """A few lines for a person: mode, memory, each model, the last changes with their reasons."""
    cap = f" of {status['cap_mb']:g}" if status["cap_mb"] is not None else ""
    lines = [f"mode {status['mode']}; {status['memory_mb']:g}{cap} MB"]
    lines += [
        f"{name}: {facts['phase']}, policy {facts['policy']}, {facts['requests']} requests, {facts['cold']} cold, {facts['wasted']} warm-ups wasted"
        for name, facts in status["models"].items()
    ]
    return "\n".join([*lines, *(f"  {change['mode']} {change['model']}: {change['reason']}" for change in status["changes"][-5:])])
