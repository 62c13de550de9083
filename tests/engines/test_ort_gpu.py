"""ONNX Runtime's providers for GPUs without a GPU: what they are told, keys, refusals; and the bound session on the CPU, a double for the device."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny_onnx

from engines import ort, ort_gpu, ort_gpu_options
from engines.caches import Store
from engines.ort_bound import BoundSession
from pipeline.errors import ConfigError, ModelError, TargetError
from pipeline.gpus import Gpu
from pipeline.platforms import fingerprint
from pipeline.records import AxisRange, TensorSpec

CUDA, TENSORRT = ort_gpu.TARGETS
L4 = Gpu("NVIDIA L4", "8.9", 22, "570.10.01", "12.8")
pytestmark = pytest.mark.skipif(ort.unavailable(CUDA) is not None, reason=str(ort.unavailable(CUDA)))
INPUTS = (TensorSpec("ids", "int64", ("batch", "time")), TensorSpec("mask", "int64", ("batch", "time")))
SHAPES = {"batch": AxisRange(1, 4, 8), "time": AxisRange(16, 64, 128)}


def told(target: str, **settings: object) -> dict[str, str]:
    return ort_gpu_options.provider_options(target, settings, INPUTS, SHAPES, "a" * 64, Path("/timing"))


def test_every_option_that_is_set_is_known_to_the_provider_itself() -> None:
    """By name, in the binary of the installed build: a misspelt option would be refused only on a machine with a GPU."""
    folder = Path(pytest.importorskip("onnxruntime").__file__).parent / "capi"
    every = {
        CUDA: told(CUDA, cuda_graphs=True, workspace_mib=64, cudnn_conv_algo_search="HEURISTIC"),
        TENSORRT: told(TENSORRT, cuda_graphs=True, workspace_mib=64, optimization_level=3),
    }
    for target, library in ((CUDA, "libonnxruntime_providers_cuda.so"), (TENSORRT, "libonnxruntime_providers_tensorrt.so")):
        if not (folder / library).is_file():
            pytest.skip("this build of onnxruntime has no providers for GPUs")
        binary = (folder / library).read_bytes()
        assert [name for name in every[target] if name.encode() not in binary] == []
        assert b"no_such_option" not in binary
    binding = b"".join(path.read_bytes() for path in folder.glob("onnxruntime_pybind11_state*.so"))
    assert [name for name in ort_gpu_options.session_entries(TENSORRT, Path("/work")) if name.encode() not in binding] == []


def test_tensorrt_is_told_the_declared_shapes_and_the_models_digest() -> None:
    options = told(TENSORRT)
    assert options["trt_profile_min_shapes"] == "ids:1x16,mask:1x16"
    assert options["trt_profile_opt_shapes"] == "ids:4x64,mask:4x64"
    assert options["trt_profile_max_shapes"] == "ids:8x128,mask:8x128"
    assert options["trt_engine_cache_prefix"] == "a" * 64
    assert options["trt_build_heuristics_enable"] == "0"
    assert options["trt_fp16_enable"] == "0"
    assert told(TENSORRT, workspace_mib=2)["trt_max_workspace_size"] == str(2 << 20)


def test_cuda_records_how_it_searches_for_convolutions() -> None:
    assert told(CUDA)["cudnn_conv_algo_search"] == "EXHAUSTIVE"
    assert told(CUDA, cudnn_conv_algo_search="DEFAULT", workspace_mib=1) | {"enable_cuda_graph": "0"} == {
        **ort_gpu_options.CUDA_OPTIONS, "cudnn_conv_algo_search": "DEFAULT", "gpu_mem_limit": str(1 << 20), "enable_cuda_graph": "0",
    }  # fmt: skip


@pytest.mark.parametrize("target", [CUDA, TENSORRT])
def test_a_recipe_holds_every_option_and_no_path(target: str) -> None:
    recipe = ort_gpu_options.recorded(target, {"cuda_graphs": True}, told(target, cuda_graphs=True))
    assert "/timing" not in str(recipe)
    assert recipe["provider_options"].keys() == told(target).keys()
    assert recipe["cuda_graphs"] is True


@pytest.mark.parametrize(
    ("target", "settings"),
    [
        (CUDA, {"cudnn_conv_algo_search": "FASTEST"}), (CUDA, {"optimization_level": 3}), (CUDA, {"cuda_graphs": 1}),
        (TENSORRT, {"optimization_level": 9}), (TENSORRT, {"workspace_mib": "1"}), (TENSORRT, {"cudnn_conv_algo_search": "DEFAULT"}),
    ],
)  # fmt: skip
def test_a_setting_that_does_not_fit_is_named(target: str, settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        ort_gpu_options.checked(settings, target)


def test_without_a_gpu_nothing_is_built_or_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ort_gpu, "first_gpu", lambda: None)
    for target in (CUDA, TENSORRT):
        assert "machine that has one" in str(ort_gpu.unavailable(target))
        platform = fingerprint(target, ort_gpu.platform_key(target), None)
        model = tiny_onnx.conv_net(tmp_path / "model.onnx", scheme="tensorrt")
        with pytest.raises(TargetError, match="no NVIDIA GPU"):
            ort_gpu.build(
                model, tmp_path / "engine", target=target, precision="int8", inputs=tiny_onnx.INPUTS, outputs=tiny_onnx.OUTPUTS,
                shapes=tiny_onnx.SHAPES, platform=platform,
            )  # fmt: skip
        assert not (tmp_path / "engine").exists()


def test_another_tensorrt_than_the_provider_is_linked_to_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    monkeypatch.setattr(ort_gpu, "first_gpu", lambda: L4)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: list(ort_gpu_options.PROVIDERS.values()))
    monkeypatch.setattr(ort_gpu.importlib.util, "find_spec", lambda _: object())
    versions = {"tensorrt": "11.4.0.106"}
    monkeypatch.setattr(ort_gpu, "package_version", lambda name: versions.get(name, "absent"))
    assert "pip install 'tensorrt<11'" in str(ort_gpu.unavailable(TENSORRT))
    versions["tensorrt"] = "10.16.1.11"
    assert ort_gpu.unavailable(TENSORRT) is None
    monkeypatch.setattr(onnxruntime, "__version__", "1.27.0")
    versions["tensorrt"] = "11.4.0.106"
    assert ort_gpu.unavailable(TENSORRT) is None
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    assert "pip install onnxruntime-gpu" in str(ort_gpu.unavailable(CUDA))


def test_keys_name_what_an_engine_depends_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ort_gpu, "first_gpu", lambda: L4)
    cuda, tensorrt = ort_gpu.platform_key(CUDA), ort_gpu.platform_key(TENSORRT)
    assert {"onnxruntime", "isa", "cudnn", "cuda_runtime"} <= set(cuda)
    assert not {"gpu", "driver"} & set(cuda)  # a graph, whatever the GPU
    assert (tensorrt["gpu"], tensorrt["driver"], tensorrt["compute_capability"]) == (L4.name, L4.driver, L4.compute_capability)
    key = ort_gpu.timing_key(tensorrt)
    assert key.digest != ort_gpu.timing_key({**tensorrt, "driver": "another"}).digest
    store, folder = Store(tmp_path / "store", 1 << 20), tmp_path / "timing"
    folder.mkdir()
    ort_gpu._keep_timing(store, key, folder)
    assert store.entries() == []
    (folder / "sm89.timing").write_bytes(b"timings")
    ort_gpu._keep_timing(store, key, folder)
    assert store.read(key, "sm89.timing")[1] == b"timings"


def test_a_model_that_the_provider_takes_nothing_of_is_refused(tmp_path: Path) -> None:
    import onnxruntime

    path = tiny_onnx.conv_net(tmp_path / "model.onnx", scheme=None)
    with pytest.raises(ModelError, match="EPContext"):
        ort_gpu._refuse_untaken(onnxruntime, path, TENSORRT)
    ort_gpu._refuse_untaken(onnxruntime, path, CUDA)
    model = onnx.load(path)
    model.graph.node.append(onnx.helper.make_node("EPContext", ["image"], ["c"], domain="com.microsoft"))
    onnx.save(model, path)
    ort_gpu._refuse_untaken(onnxruntime, path, TENSORRT)


@pytest.fixture
def bound_engine(built):
    if built.target != "onnxruntime-cpu":
        pytest.skip("another backend")
    engine = built.engines["int8"]
    return built, dataclasses.replace(engine, recipe={**engine.recipe, "settings": {"provider": "CPUExecutionProvider"}})


@pytest.mark.parametrize("graphs", [False, True])
def test_bound_buffers_give_each_request_its_own_answer(bound_engine, graphs):
    """The CPU stands where the GPU would: the calls, the buffers and the copies are the real runtime's; the graph is not."""
    import onnxruntime

    built, engine = bound_engine
    plain = onnxruntime.InferenceSession(str(built.folders["int8"] / ort.GRAPH), providers=ort.PROVIDERS)
    requests = [tiny_onnx.images(rows, seed) for seed, rows in enumerate((1, 4, 1, 1, 4, 4))]
    with BoundSession(onnxruntime, engine, plain, 1, graphs=graphs, device="cpu") as session:
        answers = [session.run(request)["logits"] for request in requests]
        assert len(session._bound) == (2 if graphs else 0)
        assert session.settings["providers"] == "CPUExecutionProvider"
    for request, answer in zip(requests, answers, strict=True):
        np.testing.assert_array_equal(answer, plain.run(["logits"], request)[0])


def test_cuda_graphs_serve_one_caller_and_the_provider_must_be_there(bound_engine):
    import onnxruntime

    built, engine = bound_engine
    plain = onnxruntime.InferenceSession(str(built.folders["int8"] / ort.GRAPH), providers=ort.PROVIDERS)
    with pytest.raises(ConfigError, match="concurrency"):
        BoundSession(onnxruntime, engine, plain, 2, graphs=True, device="cpu")
    elsewhere = dataclasses.replace(engine, recipe={**engine.recipe, "settings": {"provider": "CUDAExecutionProvider"}})
    with pytest.raises(TargetError, match="another provider"):
        BoundSession(onnxruntime, elsewhere, plain, 1, graphs=False)
