"""When `qat` trains, what a saved state is bound to, and which model `choose` takes."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from cli.init import init
from cli.stage import stage
from pipeline.config import Config, load_config
from pipeline.digests import sha256_bytes
from pipeline.errors import ConfigError, DataError, ModelError, RecordError
from pipeline.records import Candidate, Choice, ExportedModel, QuantizedModel, Role, Roles, Training
from pipeline.search_records import SearchPoint, SearchResult
from stages import choose, paths, qat

DECIBELS: dict[str, float | None] = {"tensorrt": 18.0, "cpu": 25.0}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A starter with two quantized models that are bytes and a record."""
    init(tmp_path / "project", "arrays")
    monkeypatch.chdir(tmp_path / "project")
    quantized(DECIBELS)
    return tmp_path / "project"


def quantized(decibels: dict[str, float | None]) -> None:
    for scheme, db in decibels.items():
        folder = paths.QUANTIZED / scheme
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.onnx").write_bytes(scheme.encode())
        QuantizedModel(scheme, sha256_bytes(scheme.encode()), "f", "r", "q", 1, 2, (), (), 64, db, None, {}).save(folder / "quantized.json")
        searched("entropy").save(folder / "search.json")


def searched(method: str) -> SearchResult:
    return SearchResult("cpu", "f", 64, method, {}, None, None, (), (SearchPoint("", (), 0.01, {}, True),), (0,), 0, None, "", 0.0, {}, {})


def config(**quantize: Any) -> Config:
    found = load_config(paths.PARAMS).model_dump(mode="json")
    found["quantize"] |= {"schemes": ["tensorrt", "cpu"], **quantize}
    return Config.model_validate(found)


@pytest.mark.parametrize(
    ("settings", "scheme", "says"),
    [
        ({"qat": "never", "max_drift": 0.0001}, None, "never"),
        ({"qat": "auto", "max_drift": 0.02}, None, "every scheme keeps"),
        ({"qat": "auto", "max_drift": 0.01}, "tensorrt", "does not keep quantize.max_drift 0.01: tensorrt 0.0158, cpu 0.00316"),
        ({"qat": "auto", "max_drift": 0.001}, "tensorrt", "does not keep"),
        ({"qat": "always"}, "tensorrt", "always"),
    ],
)
@pytest.mark.usefixtures("project")
def test_it_trains_when_asked_to_or_when_the_budget_is_missed(settings: dict[str, Any], scheme: str | None, says: str) -> None:
    found, why = qat.wanted(config(**settings))
    assert found == scheme
    assert says in why


@pytest.mark.usefixtures("project")
def test_without_a_difference_there_is_nothing_to_train_for() -> None:
    quantized({"tensorrt": None, "cpu": None})
    assert qat.wanted(config(qat="auto", max_drift=1e-9))[0] is None


@pytest.mark.usefixtures("project")
def test_auto_needs_a_budget_and_a_misspelt_setting_is_named() -> None:
    with pytest.raises(ValueError, match="set quantize.max_drift"):
        config(qat="auto")
    text = paths.PARAMS.read_text().replace("quantize:", "quantize:\n  training: {epoch: 3}")
    paths.PARAMS.write_text(text)
    with pytest.raises(ConfigError, match=r"(?s)quantize.training.epoch.*did you mean 'epochs'"):
        load_config(paths.PARAMS)


@pytest.mark.usefixtures("project")
def test_never_costs_nothing_and_the_quantized_model_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    stage("qat")
    stage("choose", "tensorrt")
    assert "not trained: quantize.qat is never" in capsys.readouterr().out
    assert Training.load(paths.QAT / "training.json").ran is False
    choice = Choice.load(paths.CHOSEN / "tensorrt/choice.json")
    assert (choice.chosen, list(choice.candidates)) == ("ptq", ["ptq"])
    for name in ("model.onnx", "quantized.json"):
        assert (paths.CHOSEN / "tensorrt" / name).read_bytes() == (paths.QUANTIZED / "tensorrt" / name).read_bytes()


@pytest.mark.usefixtures("project")
def test_a_quantized_model_that_is_not_its_records_is_refused() -> None:
    paths.PARAMS.write_text(paths.PARAMS.read_text().replace("schemes: [tensorrt]", "schemes: [tensorrt, cpu]"))
    stage("qat")
    (paths.QUANTIZED / "cpu/model.onnx").write_bytes(b"another")
    with pytest.raises(ModelError, match=r"(?s)not the one its record names.*dvc repro quantize@cpu"):
        stage("choose", "cpu")
    (paths.QUANTIZED / "tensorrt/quantized.json").unlink()
    with pytest.raises(RecordError, match="dvc repro quantize@tensorrt"):
        stage("choose", "tensorrt")
    assert not paths.CHOSEN.exists()


@pytest.mark.parametrize(
    ("ptq", "trained", "budget", "chosen"),
    [
        ((20.0, 0), (21.0, 0), None, "qat"),
        ((21.0, 0), (20.0, 0), None, "ptq"),
        ((21.0, 0), (21.0, 0), None, "ptq"),  # of equal ones, the weights as they were
        ((None, 0), (60.0, 0), None, "ptq"),
        ((26.0, 4), (25.0, 1), 0.01, "qat"),  # both keep it: fewer layers in float
        ((26.0, 4), (19.0, 1), 0.01, "ptq"),  # only one keeps it
        ((19.0, 4), (18.0, 1), 0.01, "ptq"),  # neither does: the nearer one
        ((25.0, 1), (26.0, 1), 0.01, "qat"),
    ],
)
def test_the_nearer_one_is_chosen_or_where_both_are_near_enough_the_faster_one(
    ptq: tuple[float | None, int], trained: tuple[float | None, int], budget: float | None, chosen: str
) -> None:
    candidates = {"ptq": Candidate("p", *ptq), "qat": Candidate("q", *trained)}
    assert choose.choose(candidates, budget)[0] == chosen


def roles_of(**digests: str) -> None:
    """One manifest a role, each with a single row of this digest."""
    from calibration.prepared import load_prepare

    _, preprocess = load_prepare(load_config(paths.PARAMS).data.preprocess, Path())
    paths.ROLES.mkdir(parents=True, exist_ok=True)
    for name, digest in digests.items():
        role = Role("main", ("0",), (digest * 64,), digest * 64, {}, "", ())
        roles = Roles({}, preprocess, 0, (), (), {}, (), {name: role})
        roles.save(paths.role(name))


@pytest.mark.usefixtures("project")
def test_a_saved_state_is_bound_to_weights_rows_settings_and_scheme() -> None:
    roles_of(train="a", calibration="b", search="c")
    Path("build/model").mkdir(parents=True)
    Path("build/model/checkpoint.safetensors").write_bytes(b"weights")
    exported = ExportedModel("m" * 64, "", "", "", 20, (), (), {}, (), 0, {})
    bound = functools.partial(qat.bindings, config(), exported)
    first, seen = bound("cpu"), []
    seen += [bound("tensorrt"), qat.bindings(config(training={"seed": 1}), exported, "cpu")]
    searched("mse").save(paths.QUANTIZED / "cpu/search.json")  # what `quantize` took, whatever params.yaml says
    seen.append(bound("cpu"))
    searched("entropy").save(paths.QUANTIZED / "cpu/search.json")
    for name in ("train", "calibration", "search"):
        roles_of(**{"train": "a", "calibration": "b", "search": "c", name: "d"})
        seen.append(bound("cpu"))
    roles_of(train="a", calibration="b", search="c")
    assert bound("cpu") == first
    Path("build/model/checkpoint.safetensors").write_bytes(b"others")
    seen.append(bound("cpu"))
    assert all(other != first for other in seen)
    assert len({str(other) for other in seen}) == len(seen)


@pytest.mark.usefixtures("project")
def test_without_rows_to_train_on_it_says_which_role_is_missing() -> None:
    found = config(qat="always")
    roles = {name: size for name, size in found.data.roles.items() if name != "train"}
    without = found.model_copy(update={"data": found.data.model_copy(update={"roles": roles})})
    with pytest.raises(DataError, match=r"(?s)no rows to train on.*role `train`.*quantize.qat: never"):
        qat.bindings(without, ExportedModel("", "", "", "", 20, (), (), {}, (), 0, {}), "cpu")
