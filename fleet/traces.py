"""Recorded requests for replay: CSV with `timestamp` and `count`, or `timestamp` and `model`. What is odd is refused or counted."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pipeline.errors import ConfigError, DataError

MOST_COUNT = 10_000_000
"""Requests in one row; more is taken for a fault of the file."""
MOST_REQUESTS = 5_000_000
"""Of a whole trace after thinning: replay holds each of them."""


@dataclasses.dataclass(frozen=True)
class Trace:
    """Rows of one model in time order: `starts` seconds since the epoch (UTC where the file names no zone), `counts`; each row lasts `step_s`.

    `notes`: how many rows came out of order, had a time that was there before (they are added up), or were missing between others.
    """

    model: str
    starts: np.ndarray
    counts: np.ndarray
    step_s: float
    notes: dict[str, int]

    @property
    def end(self) -> float:
        """End of the last row."""
        return float(self.starts[-1] + self.step_s)

    def arrivals(self, keep: float = 1.0, seed: int = 0) -> list[float]:
        """Times of single requests, sorted: each is kept with probability `keep` and placed evenly at random within its row."""
        if not 0.0 < keep <= 1.0:
            raise ConfigError("Thinning keeps a share of the requests", where="keep", expected="above 0 and at most 1", got=str(keep))
        random = np.random.default_rng(seed)
        kept = random.binomial(self.counts, keep)
        if kept.sum() > MOST_REQUESTS:
            raise ConfigError(
                "The trace holds more requests than replay takes", where=self.model, expected=f"at most {MOST_REQUESTS}", got=str(int(kept.sum())),
                next="thin it: --thin 1000 keeps one request in 1000",
            )  # fmt: skip
        times = np.repeat(self.starts, kept) + random.random(int(kept.sum())) * max(self.step_s, 1e-3)
        return [float(at) for at in np.sort(times)]


def read_traces(path: str | Path) -> list[Trace]:
    """The traces in a CSV file, by model (one named after the file where it has no column `model`).

    Raises ConfigError when there is no such file, DataError naming the line for a time or count that cannot be. No row is skipped.
    """
    place = Path(path)
    rows: dict[str, list[tuple[float, int]]] = {}
    for model, at, count in _rows(place):
        rows.setdefault(model, []).append((at, count))
    if not rows:
        raise DataError("The trace holds no row", where=str(place), expected="a header and at least one row", got="none")
    return [_trace(model, found) for model, found in sorted(rows.items())]


def _trace(model: str, rows: list[tuple[float, int]]) -> Trace:
    times = [at for at, _ in rows]
    late = sum(after < before for before, after in itertools.pairwise(times))
    merged: dict[float, int] = {}
    for at, count in rows:
        merged[at] = merged.get(at, 0) + count
    starts = np.array(sorted(merged))
    steps = np.diff(starts)
    step = float(np.median(steps)) if len(steps) else 0.0
    missing = int(np.round(steps / step - 1.0).clip(0).sum()) if step > 0 else 0
    counts = np.array([merged[at] for at in starts.tolist()], dtype=np.int64)
    return Trace(model, starts, counts, step, {"out_of_order": late, "duplicate": len(rows) - len(merged), "missing": missing})


def _rows(path: Path) -> Iterator[tuple[str, float, int]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream, strict=True)
            header = reader.fieldnames or []
            if "timestamp" not in header or not {"count", "model"} & set(header):
                raise DataError(
                    "The trace lacks a column",
                    where=f"{path}, line 1",
                    expected="timestamp, and count or model",
                    got=", ".join(header)[:200] or "nothing",
                )
            for row in reader:
                where = f"{path}, line {reader.line_num}"
                if None in row or None in row.values():
                    raise DataError(
                        "A row has another number of cells than the header", where=where, expected=f"{len(header)} cells", got=str(row)[:200]
                    )
                yield row.get("model") or path.stem, _time(row["timestamp"], where), _count(row.get("count", "1"), where)
    except FileNotFoundError as error:
        raise ConfigError("There is no such file", where=str(path), expected="a CSV file", got="nothing", next="check the path") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError("The file is no CSV text", where=str(path), expected="comma-separated values in UTF-8", got=str(error)) from error
    except OSError as error:
        raise DataError("The file cannot be read", where=str(path), expected="a CSV file", got=str(error)) from error


def _time(text: str, where: str) -> float:
    """ISO 8601, or seconds since the epoch."""
    try:
        at = float(text)
    except ValueError:
        try:
            moment = datetime.datetime.fromisoformat(text)
        except ValueError:
            raise DataError("A time cannot be read", where=where, expected="ISO 8601, or seconds since 1970", got=repr(text)[:80]) from None
        at = (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()
    if not math.isfinite(at) or not 0.0 <= at < 1e11:
        raise DataError("A time cannot be", where=where, expected="between 1970 and the year 5000", got=repr(text)[:80])
    return at


def _count(text: str, where: str) -> int:
    try:
        count = float(text)
    except ValueError:
        count = math.nan
    if not (math.isfinite(count) and count == int(count) and 0 <= count <= MOST_COUNT):
        raise DataError("A count cannot be", where=where, expected=f"a whole number from 0 to {MOST_COUNT}", got=repr(text)[:80])
    return int(count)
