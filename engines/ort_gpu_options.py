"""What ONNX Runtime's providers for NVIDIA GPUs are told, and what of it a recipe records: every option, by its own name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines import ort
from engines.building import only_known
from pipeline.errors import ConfigError
from pipeline.records import AxisRange, TensorSpec

CUDA, TENSORRT = "onnxruntime-cuda", "onnxruntime-tensorrt"
PROVIDERS = {CUDA: "CUDAExecutionProvider", TENSORRT: "TensorrtExecutionProvider"}
CUDA_OPTIONS = {
    "device_id": "0",
    "cudnn_conv_algo_search": "EXHAUSTIVE",
    "cudnn_conv_use_max_workspace": "1",
    "arena_extend_strategy": "kSameAsRequested",
    "do_copy_in_default_stream": "1",
    "use_tf32": "0",
}
TENSORRT_OPTIONS = {
    "device_id": "0",
    "trt_int8_enable": "1",
    "trt_fp16_enable": "0",
    "trt_build_heuristics_enable": "0",
    "trt_engine_cache_enable": "1",
    "trt_timing_cache_enable": "1",
    "trt_force_timing_cache": "0",
}
SEARCHES = ("EXHAUSTIVE", "HEURISTIC", "DEFAULT")
SETTINGS = {CUDA: ("cudnn_conv_algo_search", "cuda_graphs", "workspace_mib"), TENSORRT: ("optimization_level", "workspace_mib", "cuda_graphs")}
GRAPH, CONTEXT = ort.GRAPH, "context.onnx"
HERE = "a folder of the building machine"


def checked(settings: Mapping[str, Any], target: str) -> dict[str, Any]:
    only_known(settings, SETTINGS[target], target)
    fits = {
        "cudnn_conv_algo_search": (" or ".join(SEARCHES), lambda value: value in SEARCHES),
        "cuda_graphs": ("true or false", lambda value: type(value) is bool),
        "workspace_mib": ("a whole number, 1 or more", lambda value: type(value) is int and value > 0),
        "optimization_level": ("a whole number, 0 to 5", lambda value: type(value) is int and 0 <= value <= 5),
    }
    for name, value in settings.items():
        expected, fit = fits[name]
        if not fit(value):
            raise ConfigError("A setting of a target does not fit", where=f"params.yaml: targets.{target}.{name}", expected=expected, got=str(value))
    return dict(settings)


def provider_options(
    target: str, settings: Mapping[str, Any], inputs: tuple[TensorSpec, ...], shapes: Mapping[str, AxisRange], model_sha256: str, timing: Path
) -> dict[str, str]:
    """All options that the provider is told, each by its own name."""
    limit, graphs = settings.get("workspace_mib"), "1" if settings.get("cuda_graphs") else "0"
    if target == CUDA:
        search = {name: str(settings[name]) for name in ("cudnn_conv_algo_search",) if name in settings}
        return CUDA_OPTIONS | {"enable_cuda_graph": graphs} | search | ({"gpu_mem_limit": str(limit << 20)} if limit else {})
    profiles = {
        f"trt_profile_{point}_shapes": ",".join(
            f"{spec.name}:{'x'.join(map(str, spec.concrete({name: getattr(axis, point) for name, axis in shapes.items()})))}" for spec in inputs
        )
        for point in ("min", "opt", "max")
    }
    chosen = {"trt_builder_optimization_level": str(settings["optimization_level"])} if "optimization_level" in settings else {}
    chosen |= {"trt_max_workspace_size": str(limit << 20)} if limit else {}
    named = {"trt_engine_cache_prefix": model_sha256, "trt_timing_cache_path": str(timing), "trt_cuda_graph_enable": graphs}
    return TENSORRT_OPTIONS | profiles | chosen | named


def session_entries(target: str, work: Path) -> dict[str, str]:
    """What the session is told beside its provider: TensorRT's engine goes into a file beside its EPContext model."""
    if target == CUDA:
        return {}
    return {"ep.context_enable": "1", "ep.context_file_path": str(work / CONTEXT), "ep.context_embed_mode": "0"}


def recorded(target: str, settings: Mapping[str, Any], told: Mapping[str, str]) -> dict[str, Any]:
    """What the recipe says: every option, and no path of this machine."""
    kept = {name: HERE if name.endswith("_path") else value for name, value in told.items()}
    return {**ort.SETTINGS, **settings, "provider": PROVIDERS[target], "provider_options": kept}
