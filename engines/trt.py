"""NVIDIA TensorRT-RTX (`tensorrt-rtx`) and TensorRT (`tensorrt`): one build path over the part of their API that both have.

TensorRT-RTX builds ahead of time, on a machine without a GPU, one plan for several compute capabilities (`targets.tensorrt-rtx` in
params.yaml names them); TensorRT builds on the GPU it is for. Networks are strongly typed: precision is in the Q/DQ model and nowhere else.
TF32 is off, so that "float32" means it and layers in float are alike on every GPU. INT8 plans are not byte-reproducible (seen): an engine
is keyed by its recipe, and the engine that ships is the file that was measured.

No machine that this was written on has a GPU. Nothing behind `load`, no timing cache that holds a timing, no plugin, no DLA and no census has ever
run; `Engine.census` of a plan that was built without a GPU is null, because only a GPU can be asked what a plan executes in.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import platform as host
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from engines import census as executed
from engines import trt_census
from engines.building import only_known, record, refuse_misfit, refuse_other_tensors, start
from engines.caches import Key, Store
from engines.contract import NO_SETTINGS, Progress, silent
from engines.stored import copy_checked, verified_bytes
from engines.trt_caches import runtime_key, timing_key, timing_seed
from engines.trt_plan import PROGRESS_STEPS, PlanOptions, build_plan, load_plugins, new_log
from engines.trt_session import TensorRTSession
from pipeline.digests import sha256_file
from pipeline.errors import ConfigError, TargetError
from pipeline.files import replacing_folder
from pipeline.gpus import Gpu, first_gpu
from pipeline.platforms import difference, package_version
from pipeline.records import AxisRange, Census, Engine, Platform, TensorSpec

RTX, TENSORRT = "tensorrt-rtx", "tensorrt"
TARGETS = (RTX, TENSORRT)
SCHEMES = {RTX: ("tensorrt",), TENSORRT: ("tensorrt",)}
HOST_PACKAGES = {RTX: ("tensorrt-rtx", "torch"), TENSORRT: ("tensorrt", "torch")}
LIBRARIES = {RTX: "tensorrt_rtx", TENSORRT: "tensorrt"}
INSTALL = {
    RTX: "run `make` again, or `pip install tensorrt-rtx` in the version that pyproject.toml pins",
    TENSORRT: "`pip install -e '.[tensorrt]'`, with NVIDIA's own package index as --extra-index-url: its libraries are nowhere else",
}
PLAN, PLUGINS, COMPATIBILITY = "model.plan", "plugins", "hardware_compatibility"
AMPERE = (8, 0)
CAPABILITIES = "compute_capabilities"
NO_CAPABILITY, NOT_BY_DEFAULT = frozenset({"NONE", "CURRENT"}), frozenset({"SM75"})
"""What is no compute capability of a plan, and what refuses a Gemm in FP32."""
SETTINGS = {"profiling_verbosity": "DETAILED", "strongly_typed": "true", "tf32": "false"}
CHOICES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "optimization_level": ("a whole number, 0 to 5", lambda value: type(value) is int and 0 <= value <= 5),
    "hardware_compatibility": (
        "NONE, AMPERE_PLUS or SAME_COMPUTE_CAPABILITY", lambda value: value in {"NONE", "AMPERE_PLUS", "SAME_COMPUTE_CAPABILITY"},
    ),
    "workspace_mib": ("a whole number, 1 or more", lambda value: type(value) is int and value > 0),
    "repeatable": ("true or false", lambda value: type(value) is bool),
    "device": ("GPU or DLA", lambda value: value in {"GPU", "DLA"}),
    "dla_core": ("a whole number, 0 or more", lambda value: type(value) is int and value >= 0),
    "gpu_fallback": ("true or false", lambda value: type(value) is bool),
    "cuda_graphs": ("true or false", lambda value: type(value) is bool),
}  # fmt: skip
"""What params.yaml may say under `targets.tensorrt`, beside `plugins` (paths, each with its sha256)."""


def unavailable(target: str) -> str | None:
    """Why no plan of `target` can be built here, and what to install or where to go."""
    if importlib.util.find_spec(LIBRARIES[target]) is None:
        return f"{LIBRARIES[target]} is not installed: {INSTALL[target]}"
    if target == TENSORRT and first_gpu() is None:
        return "no NVIDIA GPU: TensorRT builds on the GPU it is for; run `dvc repro` on a machine that has one"
    return None


def unrunnable(target: str) -> str | None:
    """Why a plan cannot be run here: no library, no GPU, or no torch with CUDA, which holds the device memory."""
    if reason := unavailable(target):
        return reason
    if first_gpu() is None:
        return "no NVIDIA GPU: the plan is built and can be run and measured on a machine that has one"
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed: a build of it with CUDA holds the device memory of a session"
    import torch

    return None if torch.cuda.is_available() else "torch sees no GPU: install a build of it with CUDA"


def platform_key(target: str) -> dict[str, str]:
    """An RTX plan depends on no GPU of the machine that builds it; a TensorRT plan on its GPU, the driver and its CUDA major version."""
    fields = {LIBRARIES[target]: package_version(target), "os": host.system(), "architecture": host.machine()}
    if target == TENSORRT:
        gpu = first_gpu()
        fields["gpu"] = gpu.name if gpu else "none"
        fields["compute_capability"] = gpu.compute_capability if gpu else "none"
        fields["cuda_major"] = gpu.driver_cuda.partition(".")[0] if gpu else "none"
        fields["driver"] = gpu.driver if gpu else "none"
    return fields


def gpu(target: str) -> Gpu | None:  # noqa: ARG001
    """The first that CUDA sees."""
    return first_gpu()


def misfit(target: str, wanted: Mapping[str, str]) -> list[str]:
    """Every field must be equal, but a plan runs under a newer driver, and a CUDA that came with it, than it was built under; and one that was built
    for more GPUs than its own (`hardware_compatibility`) on those."""
    here = platform_key(target)
    compatible = wanted.get(COMPATIBILITY, "NONE")
    wanted = {name: value for name, value in wanted.items() if name != COMPATIBILITY}
    ours, theirs = (_version(fields.get("compute_capability", "")) for fields in (here, wanted))
    if (compatible == "AMPERE_PLUS" and ours >= AMPERE) or (compatible == "SAME_COMPUTE_CAPABILITY" and ours == theirs):
        here |= {name: wanted[name] for name in ("gpu", "compute_capability")}
    if _version(here.get("driver", "")) > _version(wanted.get("driver", "")) > ():
        here |= {name: wanted[name] for name in ("driver", "cuda_major") if name in wanted}
    return difference(wanted, here)


def _version(text: str) -> tuple[int, ...]:
    """`580.65.06` as numbers; () for what is none, so that nothing is newer than it."""
    parts = text.split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


def preload(target: str) -> None:
    """Import the library."""
    _library(target)


def build(
    model: Path, folder: Path, *, target: str, precision: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...],
    shapes: dict[str, AxisRange], platform: Platform, settings: Mapping[str, Any] = NO_SETTINGS, progress: Progress = silent,
) -> Engine:  # fmt: skip
    """Parse the ONNX `model`, build a plan with one optimization profile from `shapes`, and store it with the plugins it needs.

    A timing cache of this GPU and TensorRT is taken from the cache store, and what it learned is kept there. Where the plan can run here, its
    census is taken. An exception that `progress` raises cancels the build and is raised again. Raises TargetError (no library, another
    platform, a plugin that does not load), ConfigError (a setting or a compute capability that does not exist, a plugin that is not the named one),
    ModelError (unreadable model, other inputs or outputs than declared, a node that the parser refuses, a build that fails).
    """
    library = _library(target)
    options, recorded = _options(library, target, settings)
    file = start(model, target=target, precision=precision, inputs=inputs, outputs=outputs, platform=platform, key_here=platform_key(target))
    seeded = timing_seed(Store(), timing_key(platform.key_fields, recorded)) if target == TENSORRT else None
    with replacing_folder(folder) as work:
        for path in options.plugins:
            (work / PLUGINS).mkdir(exist_ok=True)
            (work / PLUGINS / path.name).write_bytes(path.read_bytes())
        (work / PLAN).write_bytes(plan := build_plan(library, file, inputs, shapes, options, progress, seeded))
        census = _census(library, plan, file.content, options, executed.row_sizes(inputs, shapes)) if unrunnable(target) is None else None
        engine = record(
            work, file.content, target=target, precision=precision, settings=recorded, inputs=inputs, outputs=outputs, shapes=shapes,
            platform=platform, census=census, fits={COMPATIBILITY: recorded[COMPATIBILITY]} if COMPATIBILITY in recorded else None,
        )  # fmt: skip
    progress(PROGRESS_STEPS, PROGRESS_STEPS, "")
    return engine


def load(folder: Path, engine: Engine, *, concurrency: int) -> TensorRTSession:
    """Deserialize the very bytes that were hashed: a plan is executable. Never run on hardware.

    Raises Refused (a file is not what engine.json lists) and TargetError (another platform, nothing here can run it, or the runtime refuses it).
    """
    content = verified_bytes(folder, engine, PLAN)
    refuse_misfit(misfit(engine.target, engine.key_fields), engine.target, f"build the target {engine.target} on a machine like this one")
    if reason := unrunnable(engine.target):
        raise TargetError(
            f"An engine of {engine.target} cannot run here", where=str(folder), expected="its library and an NVIDIA GPU", got=reason,
            next="serve another target of the bundle here",
        )  # fmt: skip
    library = _library(engine.target)
    log = new_log(library)
    runtime = library.Runtime(log)
    with _shipped_plugins(folder, engine) as plugins:
        load_plugins(runtime.get_plugin_registry(), plugins, log)
    cuda_engine = runtime.deserialize_cuda_engine(content)
    if cuda_engine is None:
        raise TargetError("The runtime refuses the plan", where=str(folder / PLAN), expected="a plan for this GPU", got=log.said())
    names = [cuda_engine.get_tensor_name(index) for index in range(cuda_engine.num_io_tensors)]
    taken = {name for name in names if cuda_engine.get_tensor_mode(name) == library.TensorIOMode.INPUT}
    refuse_other_tensors(engine, taken, set(names) - taken, folder / PLAN)
    kept = _runtime_cache(engine) if engine.target == RTX else None
    graphs = bool(engine.recipe["settings"].get("cuda_graphs", False))
    return TensorRTSession(library, engine, cuda_engine, concurrency, graphs=graphs, kept=kept)


def _runtime_cache(engine: Engine) -> tuple[Store, Key] | None:
    """Where the runtime cache of a plan is kept on this host; None on one that has no place for it, which costs only time."""
    here = first_gpu()
    try:
        return (Store(), runtime_key(engine, engine.key_fields, here)) if here else None
    except ConfigError:
        return None


def _library(target: str) -> Any:
    if reason := unavailable(target):
        raise TargetError(f"The target {target} cannot be built here", where=target, expected="its library installed", got=reason)
    try:
        return importlib.import_module(LIBRARIES[target])
    except (ImportError, OSError, RuntimeError) as error:
        raise TargetError(
            f"The library of {target} cannot be loaded", where=target, expected=f"import {LIBRARIES[target]}", got=str(error), next=INSTALL[target]
        ) from error


def _options(library: Any, target: str, settings: Mapping[str, Any]) -> tuple[PlanOptions, dict[str, Any]]:
    """What a plan is built with, and what the recipe records of it: a plugin by its name and sha256, never its path."""
    if target == RTX:
        only_known(settings, (CAPABILITIES,), target)
        capabilities = _capabilities(library, target, settings)
        return PlanOptions(compute_capabilities=capabilities), SETTINGS | {CAPABILITIES: list(capabilities)}
    only_known(settings, (*CHOICES, PLUGINS), target)
    for name, (expected, fits) in CHOICES.items():
        if name in settings and not fits(settings[name]):
            raise ConfigError(
                "A setting of TensorRT does not fit", where=f"params.yaml: targets.{target}.{name}", expected=expected, got=str(settings[name])
            )
    chosen = {name: settings[name] for name in CHOICES if name in settings}
    plugins = _plugins(settings.get(PLUGINS, {}), target)
    options = PlanOptions(plugins=tuple(plugins), **{name: value for name, value in chosen.items() if name != "cuda_graphs"})
    return options, SETTINGS | chosen | ({PLUGINS: {path.name: digest for path, digest in plugins.items()}} if plugins else {})


def _plugins(asked: Any, target: str) -> dict[Path, str]:
    """Paths and sha256 of plugin libraries, each checked: a plugin is code that runs here."""
    where = f"params.yaml: targets.{target}.{PLUGINS}"
    if not isinstance(asked, Mapping) or len({Path(path).name for path in asked}) != len(asked):
        raise ConfigError("Plugins do not fit", where=where, expected="path: sha256, each file name once", got=str(asked))
    for path, wanted in asked.items():
        got = sha256_file(path) if Path(path).is_file() else "no file"
        if got != wanted:
            raise ConfigError("A plugin is not the one that was named", where=f"{where}: {path}", expected=f"sha256 {wanted}", got=got)
    return {Path(path): str(wanted) for path, wanted in asked.items()}


@contextlib.contextmanager
def _shipped_plugins(folder: Path, engine: Engine) -> Iterator[tuple[Path, ...]]:
    """An engine's plugins as private copies, checked as they are copied, while they are loaded."""
    names = sorted(name for name in engine.files if name.startswith(f"{PLUGINS}/"))
    with tempfile.TemporaryDirectory(prefix="qwarm-plugins-") as private:
        for name in names:
            copy_checked(folder, name, engine.files[name], Path(private) / name)
        yield tuple(Path(private) / name for name in names)


def _census(library: Any, plan: bytes, content: bytes, options: PlanOptions, sizes: Mapping[str, int]) -> Census:
    """By the engine inspector, on the GPU that the plan was built on. Never run on hardware."""
    import onnx

    log = new_log(library)
    runtime = library.Runtime(log)
    load_plugins(runtime.get_plugin_registry(), options.plugins, log)
    cuda_engine = runtime.deserialize_cuda_engine(plan)
    if cuda_engine is None:
        raise TargetError("The runtime refuses the plan that was built", where="census", expected="a plan for this GPU", got=log.said())
    inspector = cuda_engine.create_engine_inspector()
    text = inspector.get_engine_information(library.LayerInformationFormat.JSON)
    return executed.take(onnx.load_from_string(content), sizes, trt_census.layers(text), trt_census.overhead(text))


def _capabilities(library: Any, target: str, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Names such as `SM89`, in order; all that the library knows but Turing when none is asked for."""
    known = sorted(set(library.ComputeCapability.__members__) - NO_CAPABILITY, key=_number)
    asked = settings.get(CAPABILITIES, [name for name in known if name not in NOT_BY_DEFAULT])
    if not isinstance(asked, (list, tuple)) or not asked or any(name not in known for name in asked):
        raise ConfigError(
            "A plan cannot be built for these compute capabilities",
            where=f"params.yaml: targets.{target}.{CAPABILITIES}",
            expected=f"one or more of {', '.join(known)}",
            got=str(asked),
        )
    return tuple(sorted(set(asked), key=_number))


def _number(capability: str) -> int:
    """`SM120` as 120."""
    return int(capability.removeprefix("SM"))
