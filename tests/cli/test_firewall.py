"""`qwarm firewall`: what sources share, on folders and files, without a pipeline."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cli.firewall import choose, compare_sources
from cli.main import main
from pipeline.errors import ConfigError, DataError

CASES = Path(__file__).resolve().parents[2] / "../shared/cases/make_cases.py"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QWARM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["qwarm", "firewall", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
        printed = capsys.readouterr()
        return int(caught.value.code or 0), printed.out, printed.err

    return call


def picture(g: np.random.Generator, side: int = 64) -> np.ndarray:
    low = Image.fromarray(g.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((side, side), Image.Resampling.BICUBIC)
    return np.clip(np.asarray(low, np.int16) + g.integers(-8, 9, (side, side, 3)), 0, 255).astype(np.uint8)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """`a` with 12 pictures, `b` with 6 below it: 000.png equals a/03.png in other bytes, 001.jpg is a/04.png as JPEG."""
    g = np.random.default_rng(11)
    a, b = tmp_path / "a", tmp_path / "b"
    a.mkdir()
    (b / "deep").mkdir(parents=True)
    pixels = [picture(g) for _ in range(12)]
    for index, pixel in enumerate(pixels):
        Image.fromarray(pixel).save(a / f"{index:02d}.png")
    Image.fromarray(pixels[3]).save(b / "deep" / "000.png", compress_level=1)
    Image.fromarray(pixels[4]).save(b / "deep" / "001.jpg", quality=60)
    for index in range(2, 6):
        Image.fromarray(picture(g)).save(b / "deep" / f"{index:03d}.png")
    return a, b


def test_json_names_both_rows_kind_and_distance(folders: tuple[Path, Path], run: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = run(*folders, "--json")
    result = json.loads(out)
    assert code == 3
    assert result["rows"] == [12, 6]
    first, second = result["findings"]
    assert first == {"left": {"source": 0, "row": "03.png"}, "right": {"source": 1, "row": "deep/000.png"}, "kind": "exact", "distance": 0.0}
    assert (second["left"]["row"], second["right"]["row"], second["kind"]) == ("04.png", "deep/001.jpg", "near")
    assert 0 < second["distance"] < 1


def test_the_table_and_the_page_are_for_people(folders: tuple[Path, Path], run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    code, out, _ = run(*folders, "--report", tmp_path / "found.html")
    assert code == 3
    assert "deep/000.png" in out
    assert "12 rows" in out
    page = (tmp_path / "found.html").read_text()
    assert page.count("data:image/png;base64,") == 4
    assert "http" not in page


def test_nothing_shared_is_exit_0(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    g = np.random.default_rng(5)
    for name in "abc":
        (tmp_path / name).mkdir()
        for index in range(4):
            Image.fromarray(picture(g)).save(tmp_path / name / f"{index}.png")
    code, out, _ = run(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert (code, "No row of one source is in another" in out) == (0, True)


def test_a_folder_a_parquet_file_and_an_npz_of_the_same_pictures_are_equal(folders: tuple[Path, Path], tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    a, _ = folders
    names = sorted(path.name for path in a.iterdir())
    stored = [(a / name).read_bytes() for name in names]
    pyarrow.parquet.write_table(pyarrow.table({"label": [1] * 12, "photo": stored}), tmp_path / "a.parquet")
    np.savez(tmp_path / "a.npz", x=np.stack([np.asarray(Image.open(io.BytesIO(content))) for content in stored]))
    result = compare_sources([str(a), str(tmp_path / "a.parquet"), str(tmp_path / "a.npz")])
    assert {finding["kind"] for finding in result["findings"]} == {"exact"}
    pairs = [(f["left"]["source"], f["right"]["source"], f["left"]["row"], f["right"]["row"]) for f in result["findings"]]
    assert len(pairs) == 36
    assert (0, 1, "05.png", "0000005") in pairs


def test_groups_that_straddle_two_sources(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    for name, patients in (("a", ("p1", "p2", "p3")), ("b", ("p9", "p3", "p3"))):
        lines = [f"{hash_text(name, i)},{patient}" for i, patient in enumerate(patients)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,patient", *lines]) + "\n")
    code, out, _ = run(tmp_path / "a.csv", tmp_path / "b.csv", "--group", "patient", "--json")
    findings = json.loads(out)["findings"]
    assert code == 3
    assert [(f["kind"], f["left"]["row"], f["right"]["row"]) for f in findings] == [("group", "0000002", "0000001")]
    assert run(tmp_path / "a.csv", tmp_path / "b.csv")[0] == 0


def hash_text(name: str, index: int) -> str:
    from hashlib import sha256

    return " ".join(sha256(f"{name}{index}{word}".encode()).hexdigest()[:6] for word in range(12))


def test_unreadable_rows_are_refused_or_listed(folders: tuple[Path, Path], run: Callable[..., tuple[int, str, str]]) -> None:
    a, b = folders
    (b / "deep" / "page.jpg").write_text("<html>404</html>")
    code, _, err = run(a, b)
    assert code == 1
    assert "deep/page.jpg" in err
    code, out, _ = run(a, b, "--quarantine", "--json")
    result = json.loads(out)
    assert (code, result["rows"]) == (3, [12, 6])
    assert list(result["health"][1]["undecodable"]["rows"]) == ["deep/page.jpg"]


@pytest.mark.parametrize(
    ("arguments", "code"), [((), 2), (("a", "a"), 2), (("nowhere",), 2), (("--cost", "a"), 2), (("a", "b", "--tolerance", "7"), 2)]
)
def test_wrong_use_says_so(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Any, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    found, _, err = run(*arguments)
    assert found == code
    assert err


def test_columns_are_chosen_by_kind_and_never_the_label() -> None:
    assert choose({"image": "picture", "caption": "text", "label": "numbers"}, None, "x") == ["image"]
    assert choose({"b": "numbers", "a": "numbers", "label": "numbers", "user": "numbers"}, "user", "x") == ["a", "b"]
    with pytest.raises(ConfigError, match="no column to compare"):
        choose({"label": "numbers"}, None, "x")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if not CASES.exists():
        pytest.skip("shared/cases is not beside this repository")
    spec = importlib.util.spec_from_file_location("make_cases", CASES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = tmp_path_factory.mktemp("cases")

    def make(name: str) -> Path:
        getattr(module, name)(folder / name)
        return folder / name

    return make


def test_the_case_leaked_rows(cases: Any) -> None:
    folder = cases("leaked_rows")
    result = compare_sources([str(folder / "a"), str(folder / "b")])
    found = {finding["right"]["row"]: finding for finding in result["findings"]}
    with (folder / "truth.csv").open(newline="") as stream:
        truth = {row["leaked"].removeprefix("b/"): (row["source"].removeprefix("a/"), row["kind"]) for row in csv.DictReader(stream)}
    for row, (source, kind) in truth.items():
        if kind in {"same_bytes", "re_encoded"}:
            assert (found[row]["left"]["row"], found[row]["kind"]) == (source, "exact")
    right = [row for row, (source, _) in truth.items() if row in found and found[row]["left"]["row"] == source]
    assert len(right) >= 38
    assert len(set(found) - set(truth)) <= 1


def test_the_cases_nan_row_and_constant_input(cases: Any) -> None:
    rows = cases("nan_row") / "calibration.npz"
    with pytest.raises(DataError, match="row 0000007, column x"):
        compare_sources([str(rows)])
    left = compare_sources([str(rows)], quarantine=True)
    assert left["rows"] == [31]
    assert list(left["health"][0]["non_finite"]["rows"]) == ["0000007"]
    with pytest.raises(DataError, match="constant"):
        compare_sources([str(cases("constant_input") / "calibration.npz")])


def test_the_case_bad_images(cases: Any) -> None:
    result = compare_sources([str(cases("bad_images"))], quarantine=True)
    health = {kind: set(anomaly["rows"]) for kind, anomaly in result["health"][0].items()}
    assert health["undecodable"] == {"truncated.jpg", "empty.jpg", "web_page.jpg"}
    assert health["exif_rotation"] == {"exif6.jpg"}
    assert health["misnamed"] == {"png_named.jpg"}
    assert health["cmyk"] == {"cmyk.jpg"}
    assert health["palette"] == {"palette.png"}
    assert health["sixteen_bit"] == {"sixteen_bit.png"}
    assert {"rgba.png", "grey_alpha.png"} <= health["alpha"]
    assert "grey.jpg" in health["greyscale"]


def test_help_names_the_exit_code() -> None:
    text = subprocess.run([sys.executable, "-m", "cli.main", "firewall", "--help"], capture_output=True, text=True, check=True).stdout
    assert "Exit 3" in text


def test_only_columns_that_all_sources_have_are_compared(tmp_path: Path) -> None:
    """Else a further column in one of two files hid that all their rows are the same."""
    (tmp_path / "a.csv").write_text("x,y\n1.25,2.5\n3.75,4.125\n")
    (tmp_path / "b.csv").write_text("note,x,y\n7,1.25,2.5\n8,9.5,4.125\n")
    result = compare_sources([str(tmp_path / "a.csv"), str(tmp_path / "b.csv")])
    assert [(f["left"]["row"], f["right"]["row"], f["kind"]) for f in result["findings"]] == [("0000000", "0000000", "exact")]
    assert "note not compared" in result["warnings"][0]
    (tmp_path / "c.csv").write_text("u,v\n1.25,2.5\n")
    with pytest.raises(ConfigError, match="no column in common"):
        compare_sources([str(tmp_path / "a.csv"), str(tmp_path / "c.csv")])


def test_one_source_under_two_names_and_a_missing_one(folders: tuple[Path, Path]) -> None:
    a, _ = folders
    with pytest.raises(ConfigError, match="given twice"):
        compare_sources([str(a), f"{a}/../a/"])
    with pytest.raises(DataError, match="is missing"):
        compare_sources([str(a), f"{a}-elsewhere"])


def test_a_refused_row_says_how_to_leave_it_out(folders: tuple[Path, Path]) -> None:
    (folders[0] / "torn.png").write_bytes(b"nothing")
    with pytest.raises(DataError, match="cannot be decoded") as caught:
        compare_sources([str(folders[0]), str(folders[1])])
    assert "--quarantine" in caught.value.next


def test_the_way_out_of_a_wrong_column_is_an_option_and_the_page_is_checked_first(folders: tuple[Path, Path], tmp_path: Path) -> None:
    paths = [str(folder) for folder in folders]
    with pytest.raises(DataError) as caught:
        compare_sources(paths, group="patient")
    assert caught.value.next == "correct --column or --group"
    with pytest.raises(ConfigError, match="page cannot be written"):
        compare_sources(paths, page=str(tmp_path / "missing" / "page.html"))
