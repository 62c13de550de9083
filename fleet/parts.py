"""What a bundle holds for one target, each part parsed from the very bytes that were verified."""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import engines
from engines.contract import Session
from fleet.contents import KEEP
from fleet.verify import Verified
from pipeline.arrays import read_arrays
from pipeline.errors import ConfigError, RecordError, Refused
from pipeline.records import Engine, ReleasedTarget, WarmupPlan

Prepare = Callable[[Mapping[str, Any]], Mapping[str, np.ndarray]]
"""One raw row to the model's named tensors, without the batch axis."""


@dataclasses.dataclass
class Parts:
    """Records, arrays (`rows` and `expected`: name to (rows, ...)) and the preprocessing of one target."""

    verified: Verified
    released: ReleasedTarget
    engine: Engine
    plan: WarmupPlan
    rows: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]
    labels: tuple[str, ...]
    prepare: Prepare

    @property
    def folder(self) -> Path:
        """Folder of the engine's files."""
        return self.verified.folder / self.released.folder

    def open_session(self, concurrency: int | None = None) -> Session:
        """Load the engine with as many slots as the plan warms, or fewer. The backend hashes what it hands to the runtime."""
        slots = self.plan.concurrency if concurrency is None else concurrency
        if not 1 <= slots <= self.plan.concurrency:
            raise ConfigError(
                "The plan does not warm so many concurrent calls",
                where="concurrency",
                expected=f"1 to {self.plan.concurrency}",
                got=str(slots),
                next="widen warmup.concurrency in params.yaml and release again, or run more processes",
            )
        return engines.backend(self.engine.target).load(self.folder, self.engine, concurrency=slots)


def read_parts(verified: Verified, released: ReleasedTarget) -> Parts:
    """Parse one target's records and arrays from verified bytes: `verify` has held the records to the digests that the manifest names."""
    return Parts(
        verified=verified,
        released=released,
        engine=read_record(verified, released, "engine.json", Engine),
        plan=read_record(verified, released, "plan.json", WarmupPlan),
        rows=arrays_of(verified, "warmup/rows.npz"),
        expected=arrays_of(verified, f"{released.folder}/expected.npz"),
        labels=tuple(json.loads(verified.read("labels.json"))),
        prepare=load_preprocess(verified),
    )


def read_record(verified: Verified, released: ReleasedTarget, name: str, kind: type[Any]) -> Any:
    """A record of a target's folder."""
    path = f"{released.folder}/{name}"
    try:
        return kind.from_json(json.loads(verified.read(path)), path)
    except ValueError as error:
        raise RecordError("A record cannot be read", where=path, expected="JSON", got=str(error), next=KEEP) from error


def arrays_of(verified: Verified, path: str) -> dict[str, np.ndarray]:
    """Arrays of an .npz of the bundle, from the bytes that were verified."""
    return read_arrays(verified.read(path), what="Arrays of the bundle", where=path, next=KEEP)


def load_preprocess(verified: Verified) -> Prepare:
    """The shipped function, compiled from the verified bytes: no path is imported and no `__pycache__` written."""
    file, _, function = verified.manifest.preprocess.partition(":")
    module = types.ModuleType(f"qwarm_preprocess_{verified.manifest.files[file].sha256[:12]}")
    module.__file__ = str(verified.folder / file)
    sys.modules[module.__name__] = module  # dataclasses and pickle look their module up
    try:
        exec(compile(verified.read(file), f"{verified.folder.name}/{file}", "exec", dont_inherit=True), module.__dict__)
        prepare: Prepare = getattr(module, function)
        return prepare
    except Refused:
        raise
    except Exception as error:  # a user's module may raise anything
        raise RecordError("The preprocessing of the bundle cannot be used", where=file, expected=f"a function {function}", got=repr(error)) from error
