"""A target's machine, and the engine built for it."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from pipeline.strict import Record
from pipeline.tensors import AxisRange, TensorSpec


@dataclasses.dataclass(frozen=True)
class Platform(Record):
    """One target's machine. `key` changes when an engine is invalid, `machine_id` when a measurement is.

    `unavailable` says why no engine of the target can be built here, `unrunnable` why none can be run, or null.
    """

    SCHEMA: ClassVar[str] = "qwarm.platform/1"
    target: str
    key: str
    key_fields: dict[str, str]
    machine_id: str
    machine_fields: dict[str, str]
    provenance: dict[str, str]
    unavailable: str | None
    unrunnable: str | None = None


@dataclasses.dataclass(frozen=True)
class File(Record):
    """A file by size and content."""

    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class CensusLayer(Record):
    """One layer as the runtime really executes it; `macs` for one row. `why` it is not in INT8, empty where it is."""

    name: str
    operator: str
    precision: str
    macs: int
    why: str = ""


@dataclasses.dataclass(frozen=True)
class Census(Record):
    """Which precision really executes: `int8_share` is the INT8 part of all multiply-accumulates, 0 to 1.

    `conversions` counts the layers that only change a type or a layout, by the runtime's name of their kind.
    """

    layers: tuple[CensusLayer, ...]
    int8_share: float
    conversions: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Engine(Record):
    """One built engine: a folder with `engine.json` (this) and the files it lists."""

    SCHEMA: ClassVar[str] = "qwarm.engine/2"
    target: str
    precision: str
    model_sha256: str
    platform_key: str
    key_fields: dict[str, str]
    recipe: dict[str, Any]
    recipe_sha256: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    shapes: dict[str, AxisRange]
    files: dict[str, File]
    census: Census | None
    """Null where nothing here can say what the engine executes in: a plan for a GPU that this machine lacks."""
