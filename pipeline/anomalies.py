"""What was wrong with rows of a source, by kind: counted, listed, and what was done about it."""

from __future__ import annotations

import dataclasses

from pipeline.strict import Record


@dataclasses.dataclass(frozen=True)
class Anomaly(Record):
    """One kind of anomaly. `action` is "quarantine" (the rows were left out) or "accept" (they were kept); refused rows end the run.

    `rows` maps the id of each row to what was found, "" where the kind says all.
    """

    action: str
    count: int
    rows: dict[str, str]
