"""Building an engine by way of the cache store: what was built before, from the same model for the same platform by the same code, is copied."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import engines
from engines.building import refuse_misfit
from engines.caches import MODEL, Found, Key, State, Store
from engines.contract import NO_SETTINGS, Progress, silent
from engines.onnx_file import read_verified
from engines.stored import read_engine
from pipeline.digests import sha256_bytes, sha256_files
from pipeline.errors import TargetError
from pipeline.platforms import difference
from pipeline.records import AxisRange, Engine, Platform, TensorSpec

KIND = "engine"
ROOT = Path(__file__).resolve().parents[1]


def build(
    model: Path, folder: Path, *, target: str, precision: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...],
    shapes: dict[str, AxisRange], platform: Platform, settings: Mapping[str, Any] = NO_SETTINGS, progress: Progress = silent, store: Store | None,
    subject: str = "",
) -> tuple[Engine, Found]:  # fmt: skip
    """The backend's `build` into `folder`, or a copy of what it built before; and what the store found. Without a store it is always built.

    Raises what the backend's `build` raises, also for what the store has: another machine's engine is not this one's to hand out.
    """
    backend = engines.backend(target)
    if reason := backend.unavailable(target):
        raise TargetError(f"The target {target} cannot be built here", where=target, expected="its runtime and its hardware", got=reason)
    refuse_misfit(difference(platform.key_fields, backend.platform_key(target)), target, f"run `dvc repro platform@{target}`")

    def make(to: Path) -> Engine:
        return backend.build(
            model, to, target=target, precision=precision, inputs=inputs, outputs=outputs, shapes=shapes, platform=platform, settings=settings,
            progress=progress,
        )  # fmt: skip

    if store is None:
        return make(folder), Found(State.MISS)
    found = store.get_or_make(
        key(
            read_verified(model).content, target=target, precision=precision, inputs=inputs, outputs=outputs, shapes=shapes, platform=platform,
            settings=settings, subject=subject or f"{precision} engine of {target} from {model.resolve()}",
        ), folder, make,
    )  # fmt: skip
    if found.state is State.HIT:
        progress(1, 1, "from the cache")
    return read_engine(folder), found


def key(
    content: bytes, *, target: str, precision: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...],
    shapes: Mapping[str, AxisRange], platform: Platform, settings: Mapping[str, Any], subject: str = "",
) -> Key:  # fmt: skip
    """All that an engine follows from: the model's bytes, what is declared of it, the target's settings, the platform's key and our own code."""
    specs = {f"{kind}.{spec.name}": spec.to_json() for kind, given in (("input", inputs), ("output", outputs)) for spec in given}
    told = {f"settings.{name}": value for name, value in settings.items()} | {f"shapes.{axis}": sizes.to_json() for axis, sizes in shapes.items()}
    fields = {
        MODEL: sha256_bytes(content),
        "target": target,
        "precision": precision,
        "code_sha256": code_sha256(),
        "record": Engine.SCHEMA,
        **{f"platform.{name}": value for name, value in platform.key_fields.items()},
        **{name: json.dumps(value, sort_keys=True) for name, value in (specs | told).items()},
    }
    return Key(KIND, fields, subject)


@functools.cache
def code_sha256() -> str:
    """Digest of the code that builds engines and takes their census: a corrected backend makes its engines anew."""
    return sha256_files([*(ROOT / "engines").glob("*.py"), ROOT / "pipeline/macs.py"], ROOT)
