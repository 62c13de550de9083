"""ONNX Runtime on an NVIDIA GPU: its CUDA provider (`onnxruntime-cuda`) and its TensorRT provider (`onnxruntime-tensorrt`). Never run on hardware.

What is behind the settings:

- CUDA. The convolution algorithm search writes nothing to disk, so its *mode* is recorded, and each process finds its algorithms while it is warmed.
  The arena grows by what is asked for. CUDA graphs (`cuda_graphs: true`) need fixed addresses: a shape's buffers are bound once, its first run is
  eager, and the runtime captures and replays under an id of its own. Q/DQ runs in float there: the census says so.
- TensorRT. The provider's own cache hashes file and node names and not weights (two public reports of wrong engines), so the engine is stored as
  an EPContext model under our key, with the model's sha256 as prefix, and its timing cache lies in the cache store, a folder a key.
- A model that the provider takes nothing of is an error: left alone, the runtime would silently run it on the CPU.
"""

from __future__ import annotations

import importlib.util
import platform as host
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines import ort
from engines.building import record, refuse_misfit, refuse_other_tensors, start
from engines.caches import Key, Store
from engines.census import row_sizes
from engines.contract import NO_SETTINGS, Progress, silent
from engines.onnx_file import probe, same_outputs
from engines.ort_bound import BoundSession
from engines.ort_census import take_census
from engines.ort_gpu_options import CONTEXT, CUDA, GRAPH, HERE, PROVIDERS, TENSORRT, checked, provider_options, recorded, session_entries
from engines.stored import copy_checked
from pipeline.digests import sha256_bytes
from pipeline.errors import ModelError, QwarmError, TargetError
from pipeline.files import replacing_folder
from pipeline.gpus import Gpu, first_gpu
from pipeline.platforms import cuda_library_version, difference, package_version
from pipeline.records import AxisRange, Engine, Platform, TensorSpec

TARGETS = (CUDA, TENSORRT)
SCHEMES = {CUDA: ("tensorrt",), TENSORRT: ("tensorrt",)}
HOST_PACKAGES = {CUDA: ("onnxruntime-gpu",), TENSORRT: ("onnxruntime-gpu", "tensorrt")}
NO_CACHES = {CUDA: {}, TENSORRT: {"trt_engine_cache_enable": "0", "trt_timing_cache_enable": "0"}}
"""A host builds nothing, so the provider writes nothing to its current folder."""
TIMING = "onnxruntime-tensorrt-timing"
NEEDS_TENSORRT_10, FIRST_FOR_11 = (10,), (1, 27)
"""The provider is linked to libnvinfer 10 until ONNX Runtime 1.27."""


def unavailable(target: str) -> str | None:
    """No GPU, no build of ONNX Runtime with the provider, or another TensorRT than it is linked to."""
    if reason := ort.unavailable(target):
        return reason
    if first_gpu() is None:
        return "no NVIDIA GPU: run `dvc repro` on a machine that has one"
    import onnxruntime

    if PROVIDERS[target] not in onnxruntime.get_available_providers():
        return f"this build of onnxruntime has no {PROVIDERS[target]}: `pip install onnxruntime-gpu`, in the version that pyproject.toml pins"
    if target == TENSORRT and importlib.util.find_spec("tensorrt") is None:
        return "tensorrt is not installed: `pip install tensorrt`, in the major version that onnxruntime is linked to (10 before 1.27)"
    if target == TENSORRT and numbers(onnxruntime.__version__) < FIRST_FOR_11 and numbers(package_version("tensorrt"))[:1] != NEEDS_TENSORRT_10:
        return f"onnxruntime {onnxruntime.__version__} is linked to TensorRT 10, not {package_version('tensorrt')}: `pip install 'tensorrt<11'`"
    return None


def unrunnable(target: str) -> str | None:
    """What can be built here can be run here."""
    return unavailable(target)


def platform_key(target: str) -> dict[str, str]:
    """CUDA's engine is a graph; TensorRT's depends on GPU and driver, as `engines/trt.py` has it."""
    here = first_gpu()
    fields = {**ort.platform_key(target), "cuda_runtime": cuda_library_version("cuda-runtime"), "cudnn": cuda_library_version("cudnn")}
    if target == TENSORRT:
        fields |= {"tensorrt": package_version("tensorrt"), "os": host.system()}
        fields |= {"gpu": here.name, "compute_capability": here.compute_capability, "driver": here.driver} if here else {"gpu": "none"}
    return fields


def gpu(target: str) -> Gpu | None:  # noqa: ARG001
    """The first that CUDA sees."""
    return first_gpu()


def misfit(target: str, wanted: Mapping[str, str]) -> list[str]:
    """Every field must be equal."""
    return difference(wanted, platform_key(target))


def preload(target: str) -> None:
    """Import ONNX Runtime."""
    _runtime(target)


def build(
    model: Path, folder: Path, *, target: str, precision: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...],
    shapes: dict[str, AxisRange], platform: Platform, settings: Mapping[str, Any] = NO_SETTINGS, progress: Progress = silent,
) -> Engine:  # fmt: skip
    """Store the graph as the provider optimized it (CUDA), or its engine as an EPContext model (TensorRT), and compare what that gives when loaded.

    The census is CUDA's alone: TensorRT's provider does not tell what its engines execute in. Raises TargetError, ConfigError and ModelError as the
    CPU's `build` does, and ModelError where the provider takes no node of the model.
    """
    known = checked(settings, target)
    runtime = _runtime(target)
    file = start(model, target=target, precision=precision, inputs=inputs, outputs=outputs, platform=platform, key_here=platform_key(target))
    batch, names = probe(inputs, shapes), [spec.name for spec in outputs]
    store, key = Store(), timing_key(platform.key_fields)
    with replacing_folder(folder) as work, tempfile.TemporaryDirectory(prefix="qwarm-timing-") as timing:
        progress(0, 2, "build")
        store.fetch(key, Path(timing))
        told = provider_options(target, known, inputs, shapes, sha256_bytes(file.content), Path(timing))
        stored = CONTEXT if target == TENSORRT else GRAPH
        options = ort.session_options(runtime, ort.SETTINGS["graph_optimization_level"])
        for name, value in session_entries(target, work).items():
            options.add_session_config_entry(name, value)
        if target == CUDA:
            options.optimized_model_filepath = str(work / GRAPH)
        try:
            built = _session(runtime, file.source, options, target, told)
            reference = dict(zip(names, built.run(names, batch), strict=True))
            _refuse_untaken(runtime, work / stored, target)
            loaded = _session(runtime, str(work / stored), ort.session_options(runtime, "ORT_DISABLE_ALL"), target, told)
            got = dict(zip(names, loaded.run(names, batch), strict=True))
        except QwarmError:
            raise
        except Exception as error:  # the binding's exceptions have no common base but Exception
            raise ModelError(
                f"{PROVIDERS[target]} cannot run the model", where=str(model), expected="a model it supports", got=ort.said(error)
            ) from error
        same_outputs(reference, got, str(model))
        _keep_timing(store, key, Path(timing))
        progress(1, 2, "census")
        census = None
        if target == CUDA:
            plain, sizes = ort.session_options(runtime, "ORT_DISABLE_ALL"), row_sizes(inputs, shapes)
            census, _ = take_census(
                lambda told_to: _session(runtime, str(work / stored), told_to, target, told), plain, file.content, batch, names, sizes
            )
        engine = record(
            work, file.content, target=target, precision=precision, settings=recorded(target, known, told), inputs=inputs, outputs=outputs,
            shapes=shapes, platform=platform, census=census,
        )  # fmt: skip
    progress(2, 2, "")
    return engine


def load(folder: Path, engine: Engine, *, concurrency: int) -> BoundSession:
    """A session on checked private copies of the engine's files: a TensorRT engine is executable, and the provider opens it by path.

    Raises Refused (a file is not what engine.json lists) and TargetError (another platform, nothing here can run it, the runtime refuses it).
    """
    target, stored = engine.target, CONTEXT if engine.target == TENSORRT else GRAPH
    with tempfile.TemporaryDirectory(prefix="qwarm-engine-") as private:
        for name, file in engine.files.items():
            copy_checked(folder, name, file, Path(private) / name)
        runtime = _runtime(target)
        refuse_misfit(misfit(target, engine.key_fields), target, "serve on a machine like the one it was built on, or build it here")
        told = {name: value for name, value in engine.recipe["settings"]["provider_options"].items() if value != HERE} | NO_CACHES[target]
        try:
            session = _session(runtime, str(Path(private) / stored), ort.session_options(runtime, "ORT_DISABLE_ALL"), target, told)
        except Exception as error:  # the binding's exceptions have no common base but Exception
            raise TargetError("ONNX Runtime refuses the engine", where=str(folder), expected="what it stored itself", got=ort.said(error)) from error
    refuse_other_tensors(engine, (port.name for port in session.get_inputs()), (port.name for port in session.get_outputs()), folder / stored)
    return BoundSession(runtime, engine, session, concurrency, graphs=bool(engine.recipe["settings"].get("cuda_graphs", False)))


def timing_key(platform_fields: Mapping[str, str]) -> Key:
    """TensorRT's timing cache, by all that the platform's key names: it serves every model."""
    return Key(TIMING, dict(platform_fields), "timing cache of ONNX Runtime's TensorRT provider")


def _keep_timing(store: Store, key: Key, timing: Path) -> None:
    files = {path.name: path for path in timing.iterdir() if path.is_file()}
    if files:
        with store.locked(key) as refusal:
            if refusal is None:
                store.keep(key, files)


def numbers(text: str) -> tuple[int, ...]:
    """`10.13.3` as numbers, as far as they go."""
    found = []
    for part in text.split("."):
        if not part.isdecimal():
            break
        found.append(int(part))
    return tuple(found)


def _refuse_untaken(runtime: Any, path: Path, target: str) -> None:
    """Raise ModelError where the stored model has no node for the provider: the runtime would run it elsewhere and say nothing."""
    import onnx

    if target == TENSORRT and not any(node.op_type == "EPContext" for node in onnx.load(path, load_external_data=False).graph.node):
        raise ModelError("The provider takes no node of the model", where=str(path), expected="an EPContext node", got=f"none, {runtime.__version__}")


def _runtime(target: str) -> Any:
    if reason := unavailable(target):
        raise TargetError(f"The target {target} cannot run here", where=target, expected="its runtime and an NVIDIA GPU", got=reason)
    return ort.runtime_of(target)


def _session(runtime: Any, model: bytes | str | Path, options: Any, target: str, told: Mapping[str, str]) -> Any:
    providers: list[Any] = [(PROVIDERS[target], dict(told)), "CPUExecutionProvider"]
    return runtime.InferenceSession(model, options, providers=providers, enable_fallback=0)
