"""Rows that are not well: a closed list of kinds, a policy for each, and every one of them counted and listed."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from pipeline.anomalies import Anomaly
from pipeline.data_config import HealthConfig
from pipeline.errors import DataError

if TYPE_CHECKING:
    from calibration.sources import Row, Source

KINDS = tuple(HealthConfig.model_fields)
"""Every kind of anomaly: the keys of `data.health`, each with its default action."""


class RowError(DataError):
    """One row cannot be used. `kind` is a key of `data.health`, whose policy may leave the row out instead."""

    def __init__(self, kind: str, what: str, **facts: str) -> None:
        self.kind = kind
        super().__init__(what, **facts)

    def at(self, where: str) -> RowError:
        """The same error with its place."""
        return RowError(self.kind, self.what, where=where, expected=self.expected, got=self.got, next=self.next)


@dataclasses.dataclass(frozen=True)
class BadRow:
    """A row that was left out: its id, the kind of anomaly, where it is, and the error that a refusal would have shown."""

    id: str
    kind: str
    where: str
    error: RowError

    @classmethod
    def of(cls, row_id: str, error: RowError) -> BadRow:
        return cls(row_id, error.kind, error.where, error)


class Health:
    """Applies `data.health` to the rows of one source, and remembers what it met.

    health = Health(config.data.health)
    for row in health.rows(source):
        try:
            prepare_row(row.id, row.raw, ...)
        except RowError as error:
            health.bad(BadRow.of(row.id, error))
    anomalies = health.finish()
    """

    def __init__(self, policy: HealthConfig | None = None) -> None:
        self.policy = policy or HealthConfig()
        self._found: dict[str, dict[str, str]] = defaultdict(dict)
        self._seen = 0

    def action(self, kind: str) -> str:
        """`refuse`, `quarantine` or `accept`."""
        return str(getattr(self.policy, kind))

    def rows(self, source: Source, wanted: Collection[str] | None = None) -> Iterator[Row]:
        """The rows of `source` that may be used; raises as `bad` and `admit` do."""
        for name in source.ignored:
            self.admit(name, ("not_a_picture",))
        self._seen = 0
        for row in source.rows(wanted, on_bad=self.bad):
            if self.admit(row.id, row.notes):
                yield row

    def bad(self, row: BadRow) -> None:
        """Leave `row` out where the policy says `quarantine`; raises its own error otherwise."""
        if self.action(row.kind) != "quarantine":
            raise row.error
        self._found[row.kind][row.id] = f"{row.error.what}: {row.error.got}" if row.error.got else row.error.what

    def admit(self, row_id: str, notes: Collection[str]) -> bool:
        """Whether a readable row with these anomalies may be used; raises RowError when the policy refuses one of them."""
        self._seen += 1
        admitted = True
        for kind in notes:
            action = self.action(kind)
            if action == "refuse":
                raise RowError(
                    kind,
                    "A row has an anomaly that data.health refuses",
                    where=f"row {row_id}",
                    expected=f"no row of kind {kind}",
                    got=kind,
                    next=f"repair or remove the row, or set data.health.{kind} to quarantine or accept in params.yaml",
                )
            self._found[kind][row_id] = ""
            admitted = admitted and action == "accept"
        return admitted

    def finish(self) -> dict[str, Anomaly]:
        """What was met, by kind, once all rows were read.

        Grey pictures are an anomaly only among others in colour. Raises DataError when every row is constant: nothing can be calibrated on that.
        """
        found: dict[str, dict[str, str]] = dict(self._found)
        if self._seen and len(found.get("constant", ())) == self._seen:
            raise DataError(
                "Every row is constant",
                where=f"rows {min(found['constant'])} to {max(found['constant'])}",
                expected="arrays whose values differ within a row",
                got=f"{self._seen} rows of one value each",
                next="correct the source, or what writes it",
            )
        if len(found.get("greyscale", ())) == self._seen:
            found.pop("greyscale", None)
        return {kind: Anomaly(self.action(kind), len(rows), dict(sorted(rows.items()))) for kind, rows in sorted(found.items())}


def summary(anomalies: Mapping[str, Anomaly]) -> str:
    """One line for people: "exif_rotation 12 kept, undecodable 3 left out"; empty when all rows are well."""
    words = {"quarantine": "left out", "accept": "kept"}
    return ", ".join(f"{kind} {anomaly.count} {words[anomaly.action]}" for kind, anomaly in sorted(anomalies.items()))
