"""The cache store under writers that are killed, and under builders that want one key at once: benchmarks/engines.py without an engine."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import folder_last  # noqa: F401

BUILDERS = 4


def write_for_ever(root: Path) -> None:
    from engines.caches import Key, Store

    store, key = Store(root, 1 << 30), Key("bench", {"of": "kills"})
    for number in range(1 << 30):
        with store.locked(key):
            store.keep(key, {"blob": bytes([number % 251]) * 200_000})


def kills(root: Path, count: int) -> dict[str, Any]:
    """Kill a writer at a random moment, read, and count what is no one write's content."""
    from engines.caches import Key, Store

    store, key, pause = Store(root, 1 << 30), Key("bench", {"of": "kills"}), random.Random(0)
    processes, wrong, read = multiprocessing.get_context("fork"), 0, 0
    for _ in range(count):
        writer = processes.Process(target=write_for_ever, args=(root,))
        writer.start()
        time.sleep(pause.uniform(0.001, 0.03))
        os.kill(writer.pid or 0, signal.SIGKILL)
        writer.join()
        _, content = store.read(key, "blob")
        if content is not None:
            read += 1
            wrong += len(content) != 200_000 or len(set(content)) != 1
    return {"kill_trials": count, "reads_after_kill": read, "wrong_reads": wrong}


def build_once(root: Path, out: Path, log: Path, gate: Any) -> None:
    from engines.caches import Key, Store

    def make(folder: Path) -> None:
        with log.open("a") as stream:
            stream.write(".")
        folder.mkdir()
        (folder / "blob").write_bytes(b"x" * 1_000_000)

    gate.wait()
    Store(root, 1 << 30).get_or_make(Key("bench", {"of": "builders"}), out, make)


def builders(root: Path) -> dict[str, Any]:
    processes = multiprocessing.get_context("fork")
    gate = processes.Barrier(BUILDERS)
    workers = [processes.Process(target=build_once, args=(root, root / f"out-{n}", root / "log", gate)) for n in range(BUILDERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    right = sum((root / f"out-{n}/blob").read_bytes() == b"x" * 1_000_000 for n in range(BUILDERS))
    return {"builders": {"processes": BUILDERS, "builds": len((root / "log").read_text()), "right": right}}
