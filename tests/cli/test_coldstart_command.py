"""`qwarm coldstart` on an ONNX file, on its engine, and on what it refuses before it builds or starts anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from cli.app import app
from cli.build import build_file
from cli.coldstart import FEWEST, IDLE, coldstart
from cli.coldstart_report import describe
from pipeline.errors import ConfigError, DataError, QwarmError, RecordError, Refused
from pipeline.loading import load_object
from pipeline.records import AxisRange
from warmup.latency import trials_needed

ROOT = Path(__file__).resolve().parents[2]


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["coldstart", *map(str, arguments)])


def refused(kind: type[QwarmError], *arguments: object) -> QwarmError:
    error = command(*arguments).exception
    assert isinstance(error, kind), error
    assert error.next
    return error


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    conv_net: Any = load_object("tests/engines/tiny_onnx.py:conv_net", ROOT)
    path: Path = conv_net(tmp_path_factory.mktemp("model") / "model.onnx", scheme="cpu")
    return path


@pytest.fixture(scope="module")
def engine(model: Path) -> Path:
    folder = model.parent / "engine"
    build_file(model, "onnxruntime-cpu", folder, batch=AxisRange(1, 2, 4), store=None)
    return folder


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a build nor a process."""

    def started(*arguments: object, **_: object) -> None:
        pytest.fail(f"started: {arguments}")

    monkeypatch.setattr("engines.once.build_once", started)
    monkeypatch.setattr("warmup.coldstart.subprocess.Popen", started)


def images(count: int = 4) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, 3, 8, 8)).astype(np.float32)


def test_an_onnx_file_is_measured_in_fresh_processes(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", image=images(), label=np.arange(4))
    done = command(
        model, "--target", "onnxruntime-cpu", "--runs", FEWEST, "--batch", 1, "--out", tmp_path / "plan.json", "--data", tmp_path / "rows.npz",
        "--layers", "--cold-pages", "--json",
    )  # fmt: skip
    result = json.loads(done.stdout)
    assert result["target"] == "onnxruntime-cpu"
    assert result["rows"] == str(tmp_path / "rows.npz")
    assert [trial["variant"] for trial in result["trials"][:4]] == ["cold", "warm", "warm", "cold"]
    assert all(request["interval"] for request in result["cold"]["leading"]), "so many processes bound the first request"
    assert (tmp_path / "plan.json").is_file()
    assert all(trial["curve"] for trial in result["trials"])
    assert result["cold"]["peak_rss_mb"] > 20
    assert any("QLinearConv" in layer["layer"] for layer in result["excess"]["layers"])
    said = describe(result)
    assert "by the runtime's profiler" in said
    assert "request 1:" in said
    assert "unseen sizes" in said


def test_what_is_neither_engine_nor_model_nor_bundle(tmp_path: Path) -> None:
    assert "neither" in refused(ConfigError, tmp_path).got
    assert "absent.onnx" in refused(ConfigError, tmp_path / "absent.onnx").where


def test_fewer_processes_than_decide_are_wrong_usage(model: Path) -> None:
    assert trials_needed(0.95) == FEWEST
    done = command(model, "--runs", FEWEST - 1)
    assert done.exit_code == 2


NAN = images()
NAN[2, 0, 0, 0] = np.nan


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(
    ("arrays", "kind", "says"),
    [
        ({"image": NAN}, DataError, "row 2, input image"),
        ({"picture": images()}, DataError, "expected: image"),
        ({"image": images().astype(np.float64)}, DataError, "expected: float32"),
        ({"image": images()[:, :, :4]}, DataError, "expected: [3, 8, 8]"),
        ({"image": images(0)}, DataError, "There are no rows"),
        ({}, DataError, "got:      no array"),
        (None, RecordError, "numpy.savez"),
    ],
)
def test_rows_are_checked_before_anything_is_built(
    model: Path, engine: Path, tmp_path: Path, arrays: Mapping[str, np.ndarray] | None, kind: type[QwarmError], says: str
) -> None:
    path = tmp_path / "rows.npz"
    if arrays is None:
        path.write_bytes(b"junk")
    else:
        np.savez(path, **dict(arrays))  # type: ignore[arg-type]
    for what in (model, engine):
        error = refused(kind, what, "--data", path)
        assert says in " ".join(str(error).split()) or says in str(error)
        assert str(path) in error.where
        assert "dvc" not in error.next
        assert "--" not in error.next, "the command has neither --quarantine nor --column"


@pytest.mark.usefixtures("nothing_starts")
def test_other_wrong_options_are_refused_before_anything_is_built(model: Path, engine: Path, tmp_path: Path) -> None:
    for what in (model, engine):
        error = refused(ConfigError, what, "--batch", 999)
        assert (error.where, error.got) == ("--batch", "999")
    assert refused(ConfigError, model, "--target", "abacus").where == "--target"
    assert "--data" in refused(ConfigError, model, "--data", tmp_path / "absent.npz").where
    (tmp_path / "rows.csv").write_text("image\n1\n")
    assert "numpy.savez" in refused(ConfigError, model, "--data", tmp_path / "rows.csv").next


@pytest.mark.usefixtures("nothing_starts")
def test_a_plan_of_another_engine_or_of_other_rows_is_refused(engine: Path, tmp_path: Path) -> None:
    from engines.onnx_file import probe
    from engines.stored import read_engine
    from warmup.plan import Maker

    built = read_engine(engine)
    plan = Maker(built, probe(built.inputs, built.shapes), [1], [1], 60.0, "").ladder(1, "test")
    np.savez(tmp_path / "rows.npz", image=images())
    plan.save(tmp_path / "plan.json")
    error = refused(Refused, engine, "--plan", tmp_path / "plan.json", "--data", tmp_path / "rows.npz")
    assert "another set of rows" in error.what
    plan = Maker(type(built)(**{**vars(built), "target": "openvino-cpu"}), {"image": images()}, [1], [1], 60.0, "").ladder(1, "test")
    plan.save(tmp_path / "plan.json")
    error = refused(Refused, engine, "--plan", tmp_path / "plan.json", "--data", tmp_path / "rows.npz")
    assert "another engine" in error.what
    assert error.exit_code == 3
    for option in (("--batch", 1), ("--callers", 2), ("--out", tmp_path / "other.json")):
        assert refused(ConfigError, engine, "--plan", tmp_path / "plan.json", *option).where == option[0]


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("kind", ["bundle", "engine", "model"])
def test_an_option_without_a_meaning_is_refused_by_name(kind: str, model: Path, tmp_path: Path) -> None:
    names = {"bundle": "manifest.json", "engine": "engine.json"}
    if name := names.get(kind):
        (tmp_path / name).write_text("{}")
    what = tmp_path if name else model
    values = {"cold_pages": (), "layers": (), "allow_unsigned": (), "batch": (1,), "callers": (1,), "target": ("openvino-cpu",), "size": ("time=1",)}
    for option, why in IDLE[kind].items():
        spelled = f"--{option.replace('_', '-')}"
        error = refused(ConfigError, what, spelled, *values.get(option, (model,)))  # any file that exists
        assert (error.where, error.next) == (spelled, f"leave out {spelled}")
        assert why in error.what
        assert error.exit_code == 2


def test_what_has_no_meaning_is_an_option() -> None:
    assert {name for options in IDLE.values() for name in options} <= set(coldstart.__annotations__)
