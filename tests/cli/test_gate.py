"""`qwarm gate`: verdict, exit code and JSON; and every file that is not what it should be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cli.gate import gate, gate_file
from pipeline.errors import USAGE, ConfigError, DataError, QwarmError
from release import paired

APPLICATION = typer.Typer()
APPLICATION.command()(gate)


def write(path: Path, lost: int, gained: int, rows: int, header: str = "fp32_correct,int8_correct") -> Path:
    pairs = ["1,0"] * lost + ["0,1"] * gained + ["1,1"] * (rows - lost - gained)
    path.write_text("\n".join([header, *pairs]) + "\n")
    return path


@pytest.mark.parametrize(
    ("lost", "gained", "rows", "verdict", "code"),
    [(25, 25, 5000, "PASS", 0), (20, 3, 564, "FAIL", 3), (0, 0, 50, "UNDECIDED", 4)],
)
def test_verdict_exit_code_and_json(tmp_path: Path, lost: int, gained: int, rows: int, verdict: str, code: int) -> None:
    path = write(tmp_path / "pairs.csv", lost, gained, rows)
    result = CliRunner().invoke(APPLICATION, [str(path), "--max-drop", "0.005", "--json"])
    assert result.exit_code == code
    found = json.loads(result.stdout)
    interval = paired.compare(lost, gained, rows)
    assert found["verdict"] == verdict
    assert found["interval"] == [interval.low, interval.high]
    assert found["drop"] == (lost - gained) / rows
    assert (found["rows"], found["lost"], found["gained"]) == (rows, lost, gained)
    assert found["rows_to_decide"] == paired.rows_to_decide(lost, gained, rows, 0.005)
    assert (found["rows_to_decide"] is None) == (verdict != "UNDECIDED")
    assert found["reference_accuracy"] == pytest.approx((rows - gained) / rows)
    assert found["candidate_accuracy"] == pytest.approx((rows - lost) / rows)


def test_a_person_reads_the_verdict_the_interval_and_what_would_decide(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.csv", 0, 0, 50)
    result = CliRunner().invoke(APPLICATION, [str(path), "--max-drop", "0.005"])
    assert result.exit_code == 4
    assert result.stdout.startswith("UNDECIDED: the drop is +0.00 points, 90 % interval -5.85 to +5.85; at most 0.5 allowed")
    assert "about 610 rows" in result.stdout


def test_other_column_names_other_columns_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_bytes("\ufeffbefore,id,after\r\n1,a,0\r\n0,b,1\r\n1,c,1\r\n".encode())
    found = gate_file(path, 0.5, reference_column="before", candidate_column="after")
    assert (found["rows"], found["lost"], found["gained"]) == (3, 1, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"(?s)column fp32_correct is missing.*an empty file"),
        ("fp32_correct,int8\n1,1\n", r"(?s)column int8_correct is missing.*line 1.*fp32_correct, int8"),
        ("fp32_correct,int8_correct,int8_correct\n1,1,1\n", "int8_correct is there twice"),
        ("fp32_correct,int8_correct\n", "holds no row"),
        ("fp32_correct,int8_correct\n1,1\n1,2\n", r"(?s)neither 0 nor 1.*line 3, column int8_correct.*'2'"),
        ("fp32_correct,int8_correct\n1,1\n,1\n", r"(?s)neither 0 nor 1.*line 3, column fp32_correct.*''"),
        ("fp32_correct,int8_correct\n1,1\nnan,1\n", r"(?s)line 3, column fp32_correct.*'nan'"),
        ("fp32_correct,int8_correct\n1,1\nTrue,1\n", r"(?s)line 3.*'True'"),
        ("fp32_correct,int8_correct\n1,1\n1,0.5\n", r"(?s)line 3.*'0.5'"),
        ("fp32_correct,int8_correct\n1,1\n1\n", r"(?s)another number of cells.*line 3.*1 cells"),
        ("fp32_correct,int8_correct\n1,1\n\n1,1\n", r"(?s)another number of cells.*line 3.*an empty line"),
        ("fp32_correct,int8_correct\n1,1\n1,1,0\n", r"(?s)another number of cells.*line 3.*3 cells"),
        ('fp32_correct,int8_correct\n1,1\n1,"1\n', r"(?s)not CSV.*line 3"),
        (b"\xff\xfe\x00", "not text"),
    ],
)
def test_a_file_that_is_not_as_said_is_refused_by_line(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = tmp_path / "pairs.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message):
        gate_file(path, 0.005)


@pytest.mark.parametrize("limit", [0.0, -0.1, 1.0, float("nan"), float("inf")])
def test_a_limit_out_of_range_is_a_usage_error(tmp_path: Path, limit: float) -> None:
    with pytest.raises(ConfigError, match="out of range"):
        gate_file(write(tmp_path / "pairs.csv", 0, 0, 5), limit)


def test_no_file_a_folder_and_one_column_twice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file") as caught:
        gate_file(tmp_path / "absent.csv", 0.005)
    assert caught.value.exit_code == USAGE
    with pytest.raises(DataError, match="cannot be read"):
        gate_file(tmp_path, 0.005)
    with pytest.raises(ConfigError, match="the same one"):
        gate_file(write(tmp_path / "pairs.csv", 0, 0, 5), 0.005, candidate_column="fp32_correct")


def test_the_command_lets_errors_through_to_the_one_place_that_prints_them(tmp_path: Path) -> None:
    result = CliRunner().invoke(APPLICATION, [str(tmp_path / "absent.csv"), "--max-drop", "0.005"])
    assert isinstance(result.exception, QwarmError)
    assert result.stdout == ""
