"""params.yaml is strict: each wrong key or value is named with what it must be."""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config import Config, load_config
from pipeline.data_config import DataConfig
from pipeline.errors import USAGE, ConfigError
from pipeline.records import AxisRange, TensorSpec
from pipeline.section import Section

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write params.yaml with one dotted key set (or deleted, when the value is `...`)."""

    def make(key: str = "", value: Any = None) -> Path:
        data = yaml.safe_load((ROOT / "params.yaml").read_text())
        *parents, last = key.split(".")
        place = data
        for parent in parents:
            place = place[parent]
        if value is ...:
            del place[last]
        elif key:
            place[last] = value
        path = tmp_path / "params.yaml"
        path.write_text(yaml.safe_dump(data))
        return path

    return make


def test_the_example_is_valid() -> None:
    config = load_config(ROOT / "params.yaml")
    assert config.model.input_specs() == (TensorSpec("image", "float32", ("batch", 1, 32, 32)),)
    assert config.model.axis_ranges() == {"batch": AxisRange(1, 8, 16)}
    assert config.model.batch_axis == "batch"


def test_a_targets_settings_are_what_its_backend_is_told() -> None:
    targets = load_config(ROOT / "params.yaml").targets
    assert targets["openvino-cpu"].settings() == {}
    assert targets["tensorrt-rtx"].settings() == {"compute_capabilities": ["SM86", "SM89", "SM120"]}


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("gates.max_dorp", 0.1, "did you mean 'max_drop'"),
        ("warmup.iteration", 3, "did you mean 'iterations'"),
        ("gatse", {}, "did you mean 'gates'"),
        ("targets.openvino-cpu.requird", True, "did you mean 'required'"),
        ("model.inputs.image.dtpye", "float32", "did you mean 'dtype'"),
        ("data.source.kind", "floppy", "parquet"),
        ("data.roles.calibration", 0, "data.roles.calibration"),
        ("data.roles.calibration", ..., "calibration"),
        ("data.roles.search", "rest", "only one role"),
        ("data.roles.test", 5, "data.roles"),
        ("data.columns.label", ..., "label"),
        ("data.columns", {"label": "label"}, "besides `label`"),
        ("data.labels", None, "gates.metric top1 needs class names"),
        ("model.inputs.image.pad", 0, "nothing to fill"),
        ("warmup.shapes", {"batch": [1, 2]}, "warmup.batches"),
        ("warmup.shapes", {"time": [1, 2]}, "warmup.shapes.time"),
        ("gates.metric", "top3", "'top3' is no metric"),
        ("gates.slices", ["site"], "no names of data.columns"),
        ("gates.max_slice_drop", 2, "fractions for top1"),
        ("gates.min_reference", 1.5, "fractions for top1"),
        ("model.shapes.batch", {"min": 4, "opt": 2, "max": 8}, "min <= opt <= max"),
        ("model.shapes.time", {"min": 1, "opt": 2, "max": 8}, "time"),
        ("model.inputs.image.shape", ["n", 1, 32, 32], "'n'"),
        ("model.inputs.image.shape", [1, 1, 32, 32], "batch axis"),
        ("warmup.batches", [1, 64], "64"),
        ("warmup.batches", [], "warmup.batches"),
        ("gates.max_drop", 1.5, "gates.max_drop"),
        ("gates.max_trials", 3, "max_trials"),
        ("data.firewall", {"pairs": {"calibration/validation": "move", "validation/calibration": "allow"}}, "both orders"),
        ("data.roles.search", 1.0, "data.roles.search"),
        ("data.firewall", {"tolerance": 0.5}, "data.firewall.tolerance"),
        ("quantize.min_rows", 1000, "min_rows"),
        ("quantize.schemes", ["int4"], "tensorrt"),
        ("release.name", "../up", "release name"),
        ("release.version", 1.0, "semantic version"),
        ("release.undecided", "maybe", "leave-out"),
        ("release.sign", {"key": ""}, "at least 1"),
        ("release.sign", {}, "release.sign.key"),
        ("release.sign", {"key": "k.pem", "keyless": True}, "either"),
        ("release.sign", {"keyless": True, "development": True}, "development belongs"),
        ("release.sign", {"key": "k.pem", "developement": True}, "development"),
        ("targets", {}, "targets"),
        ("gates.max_drop", "0.01", "valid number"),
        ("targets.openvino-cpu.required", "yes", "valid boolean"),
        ("targets.onnxruntime-cpu.threads", "1", "valid integer"),
        ("targets.onnxruntime-cpu.threads", True, "valid integer"),
        ("model.inputs.image.shape", ["batch", 1.0, 32, 32], "model.inputs.image.shape.1"),
        ("data.roles", {"tarin": 600}, "did you mean 'train'?"),
        ("data.roles.search", "rset", "did you mean 'rest'?"),
        ("data.roles.search", {"kind": "parquet", "pth": "x"}, "did you mean 'path'?"),
        ("data.roles.search", {"kind": "parqet", "path": "x"}, "did you mean 'parquet'?"),
        ("data.roles.search", {"kind": "parquet"}, "a source of kind parquet has a path"),
        ("data.roles.search", {"path": "x"}, "data.roles.search.kind\n"),
        ("model.inputs", {"pad": {"shape": ["batch", 1], "dtpye": "int8"}}, "did you mean 'dtype'"),
        ("quantize.method", "percentil", "did you mean 'percentile'?"),
        ("model", ..., "model"),
    ],
)
def test_a_wrong_parameter_is_named(write: Callable[..., Path], key: str, value: Any, says: str) -> None:
    path = write(key, value)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == USAGE
    assert not any(noise in str(caught.value) for noise in ("Value error", "constrained-", "[key]", "SourceConfig"))
    assert len(str(caught.value)) < 700  # the fault, and not the file


def test_no_file_and_no_yaml_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no params.yaml"):
        load_config(tmp_path / "params.yaml")
    (tmp_path / "params.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match="not YAML"):
        load_config(tmp_path / "params.yaml")


def test_a_policy_for_a_role_that_does_not_exist_is_refused(write: Callable[..., Path]) -> None:
    data = load_config(write("data.firewall", {"pairs": {"train/validation": "move"}})).data.model_dump()
    data["roles"].pop("train")
    with pytest.raises(ValueError, match="'train/validation' would be without effect, because data.roles has no train"):
        DataConfig.model_validate(data)


def test_a_key_that_stands_twice_is_refused_as_dvc_does(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text((ROOT / "params.yaml").read_text().replace("  max_drift: ", "  max_drift: 0.5\n  max_drift: "), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"(?s)not YAML.*max_drift stands twice"):
        load_config(path)


def floats(section: Any, outer: str) -> Iterator[str]:
    """Dotted names of every number that may have a fraction, in a section's own keys and those of the sections in it."""
    for name, field in section.model_fields.items():
        kinds = [field.annotation, *typing.get_args(field.annotation)]
        if any(kind is float or float in typing.get_args(kind) for kind in kinds):
            yield f"{outer}{name}"
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, Section):
                yield from floats(kind, f"{outer}{name}.")


FLOATS = sorted(floats(Config, ""))


def test_the_walk_finds_the_numbers() -> None:
    assert {"warmup.max_seconds", "gates.p99_over_p50", "quantize.training.learning_rate", "data.firewall.tolerance"} <= {*FLOATS}
    assert len(FLOATS) > 20


@pytest.mark.parametrize("key", FLOATS)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_no_number_is_infinite_or_none(write: Callable[..., Path], key: str, value: float) -> None:
    path = write("data.firewall", {}) if key.startswith("data.firewall.") else write()
    data = yaml.safe_load(path.read_text())
    *parents, last = key.split(".")
    functools.reduce(lambda place, name: place[name], parents, data)[last] = value
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(ConfigError, match=rf"(?s){key}.*got: +-?(inf|nan)"):
        load_config(path)


def test_a_number_with_an_exponent_is_a_number_as_dvc_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text((ROOT / "params.yaml").read_text().replace("max_drop: 0.01", "max_drop: 1e-2"), encoding="utf-8")
    assert load_config(path).gates.max_drop == 0.01


def test_a_waiver_of_a_target_that_there_is_not_names_the_nearest(write: Callable[..., Path]) -> None:
    entry = {
        "target": "openvino-cpx", "check": "int8_share", "why": "the head stays in float", "by": "Ada", "granted": "2026-12-01",
        "expires": "2026-12-31", "signature": "AAAA",
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"(?s)waivers has one for 'openvino-cpx'.*would do nothing: did you mean 'openvino-cpu'"):
        load_config(write("release.waivers", {"key": "granter.pub", "entries": [entry]}))
    entry["target"] = "openvino-cpu"
    read = load_config(write("release.waivers", {"key": "granter.pub", "entries": [entry]})).release.waivers.entries
    assert [waiver.expires.isoformat() for waiver in read] == ["2026-12-31"]
