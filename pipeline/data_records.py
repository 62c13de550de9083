"""The nouns of data: which row plays which role, what overlaps, what is unhealthy, and what a leak would cost."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from pipeline.anomalies import Anomaly
from pipeline.strict import Record
from pipeline.verdicts import Interval

ROLES = ("train", "calibration", "search", "warmup", "validation")


@dataclasses.dataclass(frozen=True)
class Role(Record):
    """The rows of one role: ids in their source, decoded-content digests (same order), Merkle root, label histogram, digest of all labels in order.

    `source` names an entry of `Roles.sources`. `groups` are the distinct groups of these rows, as sha256 of their names: a patient's or
    user's name stays in the source.
    """

    source: str
    rows: tuple[str, ...]
    digests: tuple[str, ...]
    merkle_root: str
    labels: dict[str, int]
    labels_sha256: str
    groups: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Finding(Record):
    """Two rows that overlap, and what was done about it: "moved" (the right row plays no role) or "allowed".

    `kind` is "exact", "near" or "group"; `roles` are those that the rows had when it was found, equal for repeated content of one source,
    which was found before roles were drawn ("").
    """

    left: str
    right: str
    kind: str
    distance: float
    roles: tuple[str, str]
    action: str


@dataclasses.dataclass(frozen=True)
class Shift(Record):
    """How far calibration is from validation in one respect: 0 (alike) to 1 (apart), and the chance of that among equal ones.

    `statistic` is "total variation" (labels) or "Kolmogorov-Smirnov" (a figure of each row); `p_value` is null where none is defined.
    """

    of: str
    statistic: str
    distance: float
    p_value: float | None


@dataclasses.dataclass(frozen=True)
class RowSource(Record):
    """One data source: its name, the digest of its files, and its rows, those in quarantine included."""

    name: str
    sha256: str
    rows: int


@dataclasses.dataclass(frozen=True)
class Roles(Record):
    """Which row plays which role, and the proof that no content, near copy or group plays two that must be apart."""

    SCHEMA: ClassVar[str] = "qwarm.roles/3"
    sources: dict[str, RowSource]
    preprocess_sha256: str
    seed: int
    class_names: tuple[str, ...]
    findings: tuple[Finding, ...]
    health: dict[str, dict[str, Anomaly]]
    """By source and kind, where there is any."""
    shifts: tuple[Shift, ...]
    roles: dict[str, Role]


@dataclasses.dataclass(frozen=True)
class Claim(Record):
    """What one calibration claims on one set of rows: drift from the float model, with two-sided 90 % bootstrap intervals over rows.

    `calibrated_on` and `judged_on` are "clean" or "leaked". `sqnr_db` is null where no output differs; `changed` is the share of rows whose
    class changes, null without classes.
    """

    calibrated_on: str
    judged_on: str
    rows: int
    sqnr_db: float | None
    sqnr_interval: Interval | None
    changed: float | None
    changed_interval: Interval | None


@dataclasses.dataclass(frozen=True)
class LeakCost(Record):
    """Four claims, and by how much the leak flatters: what the leaked calibration gains on the rows that leaked over what it gains elsewhere.

    `flattery_db` is a difference of differences, so that leaked rows which are easier or harder than the others change nothing.
    """

    SCHEMA: ClassVar[str] = "qwarm.leak-cost/1"
    scheme: str
    method: str
    calibration_rows: int
    preprocess_sha256: str
    calibration_root: str
    leaked_root: str
    claims: tuple[Claim, ...]
    flattery_db: float
    flattery_interval: Interval
    flattery_changed: float | None
    """The same in the share of rows whose class changes: positive when the leak hides changes."""
    sentence: str
