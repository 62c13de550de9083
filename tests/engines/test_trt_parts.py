"""TensorRT without a GPU: settings, keys and caches on the real builder of TensorRT-RTX, which shares the API; the inspector's text by samples.

The samples are written after NVIDIA's documentation of 10 and 11. They come from no hardware.
"""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
import tiny_onnx

from engines import census as executed
from engines import trt, trt_caches, trt_census, trt_plan
from engines.caches import State, Store
from engines.onnx_file import read_verified
from pipeline.digests import sha256_file
from pipeline.errors import ConfigError, TargetError
from pipeline.gpus import Gpu
from pipeline.platforms import fingerprint

L4 = Gpu("NVIDIA L4", "8.9", 22, "570.10.01", "12.8")
needs_rtx = pytest.mark.skipif(trt.unavailable(trt.RTX) is not None, reason=str(trt.unavailable(trt.RTX)))


@pytest.fixture
def key_fields(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(trt, "first_gpu", lambda: L4)
    return trt.platform_key(trt.TENSORRT)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("optimization_level", 6), ("optimization_level", True), ("hardware_compatibility", "VOLTA"), ("workspace_mib", 0), ("repeatable", "yes"),
        ("device", "TPU"), ("dla_core", -1), ("gpu_fallback", 1), ("cuda_graphs", None),
    ],
)  # fmt: skip
def test_a_setting_that_does_not_fit_is_named(name: str, wrong: object) -> None:
    with pytest.raises(ConfigError, match=name):
        trt._options(None, trt.TENSORRT, {name: wrong})


def test_settings_become_options_and_are_recorded(tmp_path: Path) -> None:
    plugin = tmp_path / "libmine.so"
    plugin.write_bytes(b"code")
    digest = sha256_file(plugin)
    settings = {"optimization_level": 4, "device": "DLA", "gpu_fallback": True, "cuda_graphs": True, "plugins": {str(plugin): digest}}
    options, recorded = trt._options(None, trt.TENSORRT, settings)
    assert options == trt_plan.PlanOptions(optimization_level=4, device="DLA", gpu_fallback=True, plugins=(plugin,))
    assert recorded == {**trt.SETTINGS, **settings, "plugins": {"libmine.so": digest}}  # no path of this machine
    plugin.write_bytes(b"other")
    with pytest.raises(ConfigError, match="not the one that was named"):
        trt._options(None, trt.TENSORRT, settings)
    with pytest.raises(ConfigError, match="plugins"):
        trt._options(None, trt.TENSORRT, {"plugins": [str(plugin)]})
    with pytest.raises(ConfigError, match="compute_capabilities"):
        trt._options(None, trt.TENSORRT, {"compute_capabilities": ["SM89"]})


def test_a_plan_fits_where_its_platform_says(key_fields: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def here(**changes: str) -> list[str]:
        gpu = {"name": L4.name, "compute_capability": L4.compute_capability, "driver": L4.driver, "driver_cuda": L4.driver_cuda} | changes
        monkeypatch.setattr(trt, "first_gpu", lambda: Gpu(memory_gib=22, **gpu))
        return [line.partition(":")[0] for line in trt.misfit(trt.TENSORRT, key_fields)]

    assert here() == []
    assert here(driver="580.65.06", driver_cuda="13.0") == []
    assert here(driver="565.9", driver_cuda="12.7") == ["driver"]
    assert here(driver="unknown") == ["driver"]
    assert here(name="NVIDIA A10", compute_capability="8.6") == ["compute_capability", "gpu"]
    key_fields["hardware_compatibility"] = "AMPERE_PLUS"
    assert here(name="NVIDIA A10", compute_capability="8.6") == []
    assert here(name="NVIDIA B200", compute_capability="10.0") == []
    assert here(name="NVIDIA T4", compute_capability="7.5") == ["compute_capability", "gpu"]
    key_fields["hardware_compatibility"] = "SAME_COMPUTE_CAPABILITY"
    assert here(name="NVIDIA RTX 4090") == []
    assert here(name="NVIDIA A10", compute_capability="8.6") == ["compute_capability", "gpu"]


@needs_rtx
def test_every_option_that_needs_no_gpu_is_taken_by_a_real_builder() -> None:
    library = trt._library(trt.RTX)
    config = library.Builder(trt_plan.new_log(library)).create_builder_config()
    options = trt_plan.PlanOptions(
        optimization_level=2, workspace_mib=64, repeatable=True, gpu_fallback=True, compute_capabilities=("SM86", "SM89"),
    )  # fmt: skip
    trt_plan.configure(library, config, options)
    assert config.profiling_verbosity == library.ProfilingVerbosity.DETAILED
    assert config.builder_optimization_level == 2
    assert config.get_memory_pool_limit(library.MemoryPoolType.WORKSPACE) == 64 << 20
    flags = ("TF32", "EDITABLE_TIMING_CACHE", "ERROR_ON_TIMING_CACHE_MISS", "GPU_FALLBACK")
    on = {flag for flag in flags if config.get_flag(getattr(library.BuilderFlag, flag))}
    assert on == {"EDITABLE_TIMING_CACHE", "ERROR_ON_TIMING_CACHE_MISS", "GPU_FALLBACK"}
    assert config.num_compute_capabilities == 2


@needs_rtx
def test_a_plugin_that_does_not_load_is_named(tmp_path: Path) -> None:
    library = trt._library(trt.RTX)
    log = trt_plan.new_log(library)
    builder = library.Builder(log)
    with pytest.raises(TargetError, match=r"none\.so"):
        trt_plan.load_plugins(builder.get_plugin_registry(), (tmp_path / "none.so",), log)


def test_timing_and_runtime_caches_are_keyed_by_what_they_depend_on(key_fields: dict[str, str], tmp_path: Path) -> None:
    key = trt_caches.timing_key(key_fields, trt.SETTINGS)
    assert key.digest != trt_caches.timing_key({**key_fields, "tensorrt": "another"}, trt.SETTINGS).digest
    assert key.digest != trt_caches.timing_key({**key_fields, "gpu": "another"}, trt.SETTINGS).digest
    assert key.digest != trt_caches.timing_key(key_fields, {**trt.SETTINGS, "tf32": "true"}).digest
    assert key.digest == trt_caches.timing_key(key_fields, {**trt.SETTINGS, "optimization_level": 5}).digest  # it serves every level and model
    assert "model_sha256" not in key.fields
    assert not tmp_path.joinpath("store").exists()


@needs_rtx
def test_a_runtime_cache_is_bound_to_plan_gpu_model_and_driver_major(tmp_path: Path) -> None:
    model = tiny_onnx.conv_net(tmp_path / "model.onnx", scheme="tensorrt")
    platform = fingerprint(trt.RTX, trt.platform_key(trt.RTX), None)
    engine = trt.build(
        model, tmp_path / "engine", target=trt.RTX, precision="int8", inputs=tiny_onnx.INPUTS, outputs=tiny_onnx.OUTPUTS, shapes=tiny_onnx.SHAPES,
        platform=platform, settings={"compute_capabilities": ["SM89"]},
    )  # fmt: skip

    def digest(gpu: Gpu) -> str:
        return trt_caches.runtime_key(engine, engine.key_fields, gpu).digest

    assert digest(L4) == digest(Gpu("NVIDIA L4", "8.9", 24, "570.99", "12.9"))
    assert digest(L4) != digest(Gpu("NVIDIA L4", "8.9", 22, "580.65.06", "13.0"))
    assert digest(L4) != digest(Gpu("NVIDIA L40", "8.9", 22, "570.10.01", "12.8"))


@needs_rtx
@pytest.mark.parametrize("seed", [b"", b"junk that is no timing cache", bytes(64)])
def test_a_build_starts_clean_from_a_junk_timing_cache_and_keeps_what_it_learned(tmp_path: Path, key_fields: dict[str, str], seed: bytes) -> None:
    library = trt._library(trt.RTX)
    store, key = Store(tmp_path / "store", 1 << 30), trt_caches.timing_key(key_fields, trt.SETTINGS)
    with store.locked(key):
        store.keep(key, {trt_caches.TIMING_FILE: seed})
    model = tiny_onnx.conv_net(tmp_path / "model.onnx", scheme="tensorrt")
    options = trt_plan.PlanOptions(compute_capabilities=("SM89",))
    seeded = trt_caches.timing_seed(store, key)
    assert seeded.seed == seed
    plan = trt_plan.build_plan(library, read_verified(model), tiny_onnx.INPUTS, tiny_onnx.SHAPES, options, lambda *_: None, seeded)
    assert len(plan) > 1000
    found, kept = store.read(key, trt_caches.TIMING_FILE)
    assert found.state is State.HIT
    assert kept != b"junk that is no timing cache"


@needs_rtx
def test_a_repeatable_build_without_a_timing_cache_says_what_to_do() -> None:
    library = trt._library(trt.RTX)
    config = library.Builder(trt_plan.new_log(library)).create_builder_config()
    with pytest.raises(TargetError, match="build once without `repeatable`"):
        trt_plan.seed_timing_cache(config, b"", repeatable=True)


class GrownTimingCache:
    """A double for a timing cache with timings in it, which only a GPU makes: remembers what it was merged with."""

    def __init__(self, content: bytes, refuses: bool = False) -> None:
        self.content, self.refuses = content, refuses

    def combine(self, other: bytes, ignore_mismatch: bool) -> None:
        assert ignore_mismatch is False
        if self.refuses:
            raise RuntimeError("another build of the library")
        self.content += other

    def serialize(self) -> bytes:
        return self.content


class PlainConfig:
    """A double for a builder's configuration, whose timing caches are their bytes."""

    def create_timing_cache(self, content: bytes) -> bytes:
        return content


@pytest.mark.parametrize("refuses", [False, True])
def test_what_two_builders_learned_is_merged(tmp_path: Path, key_fields: dict[str, str], refuses: bool) -> None:
    store, key = Store(tmp_path / "store", 1 << 30), trt_caches.timing_key(key_fields, trt.SETTINGS)
    mine, theirs = trt_caches.timing_seed(store, key), trt_caches.timing_seed(store, key)
    theirs.grown(PlainConfig(), GrownTimingCache(b"theirs"))
    mine.grown(PlainConfig(), GrownTimingCache(b"mine+", refuses))
    assert store.read(key, trt_caches.TIMING_FILE)[1] == (b"mine+" if refuses else b"mine+theirs")


def layer(name: str, kind: str, nodes: list[str], datatype: dict[str, str], weights: str | None = None) -> dict[str, object]:
    metadata = "\x1e".join(f"[ONNX Layer: {node}]" for node in nodes)
    found: dict[str, object] = {"Name": name, "LayerType": kind, "Inputs": [{"Name": "x", **datatype}], "Metadata": metadata}
    return found | ({"Weights": {"Type": weights, "Count": 9}} if weights else {})


TEN = {
    "Layers": [
        layer("Reformatting CopyNode", "Reformat", [], {"Format/Datatype": "Row major linear FP32"}),
        layer(
            "conv0 + r0",
            "CaskConvolution",
            ["image_q", "conv0", "r0"],
            {"Format/Datatype": "Four wide channel vectorized row major Int8 format"},
            "Int8",
        ),
        layer("conv1", "CaskConvolution", ["conv1"], {"Format/Datatype": "Channel major FP16 format where channel % 8 == 0"}, "Half"),
        layer("head_gemm", "gemm", ["head_gemm"], {"Format/Datatype": "Row major linear FP32"}),
    ],
    "Bindings": ["image", "logits"],
}
ELEVEN = {
    "Layers": [
        layer("__myl_Quan", "kgen", ["image_q"], {"Format": "Linear", "Datatype": "Float"}),
        layer("conv0", "CaskConvolution", ["conv0", "r0"], {"Format": "NC/32HW32", "Datatype": "Int8"}, "Int8"),
        layer("conv1", "CaskConvolution", ["conv1"], {"Format": "NC/8HW8", "Datatype": "Half"}, "Half"),
        layer("head_gemm", "gemm", ["head_gemm"], {"Format": "Linear", "Datatype": "Float"}),
    ],
    "I/O Tensors": [{"Name": "image"}, {"Name": "logits"}],
}


@pytest.mark.parametrize("said", [TEN, ELEVEN])
def test_both_ways_the_inspector_speaks_give_one_census(tmp_path: Path, said: dict[str, object]) -> None:
    model = onnx.load(tiny_onnx.conv_net(tmp_path / "model.onnx", scheme="tensorrt"))
    census = executed.take(model, executed.row_sizes(tiny_onnx.INPUTS, tiny_onnx.SHAPES), trt_census.layers(json.dumps(said)))
    assert {each.name: each.precision for each in census.layers} == {"conv0": "INT8", "conv1": "FP16", "head_gemm": "FP32"}
    assert census.int8_share == pytest.approx(27648 / (27648 + 147456 + 80))


def test_conversions_are_counted() -> None:
    assert trt_census.overhead(json.dumps(TEN)) == {"reformat": 1}


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"Layers": ["conv0"]}', '{"Layers": null}'])
def test_a_text_that_tells_no_layers_is_refused(text: str) -> None:
    with pytest.raises(TargetError, match="inspector"):
        trt_census.layers(text)


def test_what_tells_no_type_is_not_int8() -> None:
    (found,) = trt_census.layers(json.dumps({"Layers": [{"Name": "conv0", "LayerType": "Convolution"}]}))
    assert (found.precision, found.origins) == ("UNKNOWN", ("conv0",))
    (mixed,) = trt_census.layers(json.dumps({"Layers": [layer("c", "CaskConvolution", ["c"], {"Datatype": "Int8"}, "Float")]}))
    assert mixed.precision == "FP32"
