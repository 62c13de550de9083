"""The real builder of TensorRT-RTX, which needs no GPU: settings, refusals of its parser, cancelling. Nothing is run."""

from __future__ import annotations

import dataclasses

import pytest
import tiny_onnx

from engines import trt
from pipeline.errors import ConfigError, ModelError, TargetError

RTX = trt.RTX


@pytest.fixture
def ours(built):
    if built.target != RTX:
        pytest.skip("another backend")
    return built


def test_a_plan_names_what_it_is_for_and_claims_no_census(ours, tmp_path):
    engine = ours.build(ours.models["int8"], tmp_path / "engine", settings={"compute_capabilities": ["SM120", "SM86", "SM86"]})
    assert engine.recipe["settings"] == {**trt.SETTINGS, "compute_capabilities": ["SM86", "SM120"]}
    assert set(engine.files) == {trt.PLAN}
    assert engine.census is None


def test_by_default_a_plan_is_for_all_that_the_library_knows_but_turing(ours):
    names = ours.engines["int8"].recipe["settings"]["compute_capabilities"]
    assert "SM75" not in names
    assert {"SM80", "SM86", "SM89", "SM120"} <= set(names)
    assert names == sorted(names, key=lambda name: int(name[2:]))


def test_equal_builds_have_equal_recipes(ours, tmp_path):
    again = ours.build(ours.models["int8"], tmp_path / "engine")
    assert again.recipe_sha256 == ours.engines["int8"].recipe_sha256
    other = ours.build(ours.models["int8"], tmp_path / "other", settings={"compute_capabilities": ["SM89"]})
    assert other.recipe_sha256 != again.recipe_sha256


@pytest.mark.parametrize("wrong", [["SM90"], ["CURRENT"], [], "SM89", [89], None])
def test_a_compute_capability_that_does_not_exist_is_refused(ours, tmp_path, wrong):
    with pytest.raises(ConfigError, match="SM89"):
        ours.build(ours.models["int8"], tmp_path / "engine", settings={"compute_capabilities": wrong})
    assert not (tmp_path / "engine").exists()


def test_the_parser_refuses_asymmetric_activations_naming_the_node(ours, tmp_path):
    model = tiny_onnx.conv_net(tmp_path / "cpu.onnx", scheme="cpu")
    with pytest.raises(ModelError, match=r"cpu\.onnx") as caught:
        ours.build(model, tmp_path / "engine")
    assert "image_q" in caught.value.got
    assert "Cuda Runtime" not in caught.value.got
    assert not (tmp_path / "engine").exists()


def test_an_exception_of_progress_cancels_the_build(ours, tmp_path):
    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ours.build(ours.models["int8"], tmp_path / "engine", progress=stop)
    assert not (tmp_path / "engine").exists()


def test_a_build_says_how_far_it_is_in_many_steps(ours, tmp_path):
    told = []
    ours.build(ours.models["int8"], tmp_path / "engine", progress=lambda *step: told.append(step))
    assert len({done for done, _, _ in told}) > 10
    assert all(note for _, _, note in told[:-1])


def test_without_the_library_the_target_says_what_to_install(ours, monkeypatch, tmp_path):
    monkeypatch.setattr(trt.importlib.util, "find_spec", lambda _: None)
    assert "pip install tensorrt-rtx" in str(trt.unavailable(RTX))
    assert "--extra-index-url" in str(trt.unavailable(trt.TENSORRT))
    with pytest.raises(TargetError, match="pip install tensorrt-rtx"):
        ours.build(ours.models["int8"], tmp_path / "engine")


def test_tensorrt_without_a_gpu_is_unavailable_and_says_where_to_go(monkeypatch):
    monkeypatch.setattr(trt.importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(trt, "first_gpu", lambda: None)
    assert "machine that has one" in str(trt.unavailable(trt.TENSORRT))
    assert trt.unavailable(RTX) is None
    assert "no NVIDIA GPU" in str(trt.unrunnable(RTX))
    key = trt.platform_key(trt.TENSORRT)
    assert (key["gpu"], key["compute_capability"]) == ("none", "none")


def test_a_plan_for_another_version_of_the_library_is_refused_by_name(ours, tmp_path):
    stale = dataclasses.replace(ours.platform, key_fields={**ours.platform.key_fields, "tensorrt_rtx": "1.0.0"})
    with pytest.raises(TargetError, match=r"tensorrt_rtx: built for 1\.0\.0"):
        ours.build(ours.models["int8"], tmp_path / "engine", platform=stale)


def test_the_platform_says_that_the_plan_can_be_built(ours):
    assert ours.platform.unavailable is None
