"""`qwarm gate PAIRS.csv --max-drop D`: PASS, FAIL or UNDECIDED from paired right/wrong, and how many rows would decide."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.errors import ConfigError, DataError
from pipeline.verdicts import Verdict

REFERENCE, CANDIDATE = "fp32_correct", "int8_correct"
SIDE_CONFIDENCE = 0.95
VALUES = {"0": False, "1": True}


def gate_file(path: str | Path, max_drop: float, *, reference_column: str = REFERENCE, candidate_column: str = CANDIDATE) -> dict[str, Any]:
    """Judge a CSV file with a header and two columns of 0 and 1 (was the row right?), one line a row, both for the same rows.

    `max_drop` is a fraction (0.005 is half a point). `interval` is the two-sided 90 %: one-sided 95 % bounds of the drop.

    Raises ConfigError for a limit outside (0, 1), equal columns or a missing file; DataError naming the line for anything
    else that is not as said. No line is skipped.
    """
    if not 0 < max_drop < 1:
        raise ConfigError(
            "The largest allowed drop is out of range", where="--max-drop", expected="a fraction between 0 and 1, such as 0.005", got=str(max_drop),
            next="correct --max-drop",
        )  # fmt: skip
    lost, gained, rows, right = count_pairs(Path(path), reference_column, candidate_column)
    from release import paired  # scipy takes 0.4 s, which `qwarm --help` need not wait for

    interval = paired.compare(lost, gained, rows, SIDE_CONFIDENCE)
    return {
        "verdict": paired.decide(lost, gained, rows, max_drop, SIDE_CONFIDENCE).name,
        "drop": (lost - gained) / rows,
        "interval": [interval.low, interval.high],
        "max_drop": max_drop,
        "rows": rows,
        "rows_to_decide": paired.rows_to_decide(lost, gained, rows, max_drop, SIDE_CONFIDENCE),
        "lost": lost,
        "gained": gained,
        "reference_accuracy": right / rows,
        "candidate_accuracy": (right - lost + gained) / rows,
        "method": paired.METHOD,
    }


def count_pairs(path: Path, reference_column: str, candidate_column: str) -> tuple[int, int, int, int]:
    """(lost, gained, rows, rows the reference got right) of a CSV file; see `gate_file` for what is refused."""
    if reference_column == candidate_column:
        raise ConfigError(
            "The two columns are the same one", where="--reference-column and --candidate-column", expected="two columns", got=reference_column,
            next="name another column",
        )  # fmt: skip
    lost = gained = rows = right = 0
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, strict=True)
            header = [name.strip() for name in next(reader, [])]
            places = [_place(header, column, path) for column in (reference_column, candidate_column)]
            for cells in reader:
                reference, candidate = _pair(cells, header, places, f"{path}, line {reader.line_num}")
                rows += 1
                right += reference
                lost += reference and not candidate
                gained += candidate and not reference
    except FileNotFoundError as error:
        raise ConfigError("There is no such file", where=str(path), expected="a CSV file", got="nothing", next="check the path") from error
    except UnicodeDecodeError as error:
        raise DataError("The file is not text", where=str(path), expected="CSV in UTF-8", got=str(error), next="save it as UTF-8") from error
    except csv.Error as error:
        where, expected = f"{path}, line {reader.line_num}", "comma-separated values"
        raise DataError("The file is not CSV", where=where, expected=expected, got=str(error), next="correct that line") from error
    except OSError as error:
        raise DataError(
            "The file cannot be read", where=str(path), expected="a readable CSV file", got=str(error), next="correct the path"
        ) from error
    if not rows:
        expected = "a header and at least one row"
        raise DataError("The file holds no row", where=str(path), expected=expected, got="a header only", next="write one line a row")
    return lost, gained, rows, right


def _place(header: list[str], column: str, path: Path) -> int:
    if header.count(column) != 1:
        raise DataError(
            f"The column {column} is {'missing' if column not in header else 'there twice'}",
            where=f"{path}, line 1",
            expected=f"a header with one column {column}",
            got=", ".join(header)[:200] or "an empty file",
            next="name the columns with --reference-column and --candidate-column",
        )
    return header.index(column)


def _pair(cells: list[str], header: list[str], places: list[int], where: str) -> tuple[bool, bool]:
    if len(cells) != len(header):
        raise DataError(
            "A row has another number of cells than the header",
            where=where,
            expected=f"{len(header)} cells",
            got=f"{len(cells)} cells" if cells else "an empty line",
            next="correct that line",
        )
    values = []
    for place in places:
        value = VALUES.get(cells[place].strip())
        if value is None:
            raise DataError(
                "A value is neither 0 nor 1", where=f"{where}, column {header[place]}", expected="0 (wrong) or 1 (right)",
                got=repr(cells[place])[:80], next="correct that line",
            )  # fmt: skip
        values.append(value)
    return values[0], values[1]


def describe(result: dict[str, Any]) -> str:
    """The result in a few lines for a person."""
    low, high = (100 * end for end in result["interval"])
    wanted = result["rows_to_decide"]
    lines = [
        f"{result['verdict']}: the drop is {100 * result['drop']:+.2f} points, 90 % interval {low:+.2f} to {high:+.2f}; "
        f"at most {100 * result['max_drop']:g} allowed",
        f"{result['rows']} rows: {100 * result['reference_accuracy']:.2f} % right before, {100 * result['candidate_accuracy']:.2f} % after; "
        f"{result['lost']} lost, {result['gained']} gained",
    ]
    if wanted is not None:
        lines.append(f"about {wanted} rows in all would decide, if rows go on to flip as these did")
    return "\n".join([*lines, f"method: {result['method']}"])


def gate(
    pairs: Annotated[str, typer.Argument(metavar="PAIRS.csv", help="one line a row, two columns of 0 and 1: was the row right?")],
    max_drop: Annotated[float, typer.Option(help="largest allowed drop, as a fraction: 0.005 is half a point")],
    reference_column: Annotated[str, typer.Option(help="column of the model before")] = REFERENCE,
    candidate_column: Annotated[str, typer.Option(help="column of the model after")] = CANDIDATE,
    json_output: Annotated[bool, typer.Option("--json", help="one JSON object on standard output")] = False,
) -> None:
    """PASS (exit 0), FAIL (3) or UNDECIDED (4): may this build ship, given which rows were right before and after?"""
    result = gate_file(pairs, max_drop, reference_column=reference_column, candidate_column=candidate_column)
    typer.echo(json.dumps(result) if json_output else describe(result))
    raise typer.Exit(Verdict[result["verdict"]].exit_code)
