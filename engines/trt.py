"""NVIDIA TensorRT-RTX (`tensorrt-rtx`) and TensorRT (`tensorrt`): one build path over the part of their API that both have.

TensorRT-RTX builds ahead of time, on a machine without a GPU, one plan for several compute capabilities (`targets.tensorrt-rtx` in
params.yaml names them); TensorRT builds on the GPU it is for. Networks are strongly typed: precision is in the Q/DQ model and nowhere else.
TF32 is off, so that "float32" means it and layers in float are alike on every GPU. INT8 plans are not byte-reproducible (seen): an engine
is keyed by its recipe.

No machine that this was written on has a GPU. Nothing behind `load` has ever run, and no layer is claimed to run in INT8: `Engine.census` is null,
because only a GPU can be asked what a plan executes in.
"""

from __future__ import annotations

import importlib
import importlib.util
import platform as host
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.building import only_known, record, refuse_misfit, start
from engines.contract import NO_SETTINGS, Progress, Session, silent
from engines.onnx_file import ModelFile
from engines.stored import verified_bytes
from pipeline.errors import ConfigError, ModelError, TargetError
from pipeline.files import replacing_folder
from pipeline.gpus import Gpu, first_gpu
from pipeline.platforms import difference, package_version
from pipeline.records import AxisRange, Engine, Platform, TensorSpec
from pipeline.tensors import Batch

if TYPE_CHECKING:
    import numpy as np

RTX, TENSORRT = "tensorrt-rtx", "tensorrt"
TARGETS = (RTX, TENSORRT)
SCHEMES = {RTX: ("tensorrt",), TENSORRT: ("tensorrt",)}
HOST_PACKAGES = {RTX: ("tensorrt-rtx", "torch"), TENSORRT: ("tensorrt", "torch")}
LIBRARIES = {RTX: "tensorrt_rtx", TENSORRT: "tensorrt"}
INSTALL = {
    RTX: "run `make` again, or `pip install tensorrt-rtx` in the version that pyproject.toml pins",
    TENSORRT: "`pip install -e '.[tensorrt]'`, with NVIDIA's own package index as --extra-index-url: its libraries are nowhere else",
}
PLAN = "model.plan"
CAPABILITIES = "compute_capabilities"
NO_CAPABILITY, NOT_BY_DEFAULT = frozenset({"NONE", "CURRENT"}), frozenset({"SM75"})
"""What is no compute capability of a plan, and what refuses a Gemm in FP32."""
SETTINGS = {"profiling_verbosity": "DETAILED", "strongly_typed": "true", "tf32": "false"}
PROGRESS_STEPS = 1000
CHECKS = "[checkMacros"
"""From here on a message of the parser speaks of the GPU that is missing."""


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
    library = LIBRARIES[target]
    fields = {library: package_version(library.replace("_", "-")), "os": host.system(), "architecture": host.machine()}
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
    """Every field must be equal, but a plan runs under a newer driver, and a CUDA that came with it, than it was built under."""
    here = platform_key(target)
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
    """Parse the ONNX `model`, build a plan with one optimization profile from `shapes`, and store it. Nothing is run.

    An exception that `progress` raises cancels the build and is raised again. Raises TargetError (no library, another platform), ConfigError
    (a setting or a compute capability that does not exist), ModelError (unreadable model, other inputs or outputs than declared, a node that
    the parser refuses, a build that fails).
    """
    library = _library(target)
    capabilities = _capabilities(library, target, settings)
    file = start(model, target=target, precision=precision, inputs=inputs, outputs=outputs, platform=platform, key_here=platform_key(target))
    with replacing_folder(folder) as work:
        (work / PLAN).write_bytes(_plan(library, file, inputs, shapes, capabilities, progress))
        engine = record(
            work, file.content, target=target, precision=precision, settings=SETTINGS | ({CAPABILITIES: list(capabilities)} if capabilities else {}),
            inputs=inputs, outputs=outputs, shapes=shapes, platform=platform, census=None,
        )  # fmt: skip
    progress(PROGRESS_STEPS, PROGRESS_STEPS, "")
    return engine


def load(folder: Path, engine: Engine, *, concurrency: int) -> TensorRTSession:
    """Deserialize the very bytes that were hashed: a plan is executable. Never run on hardware.

    Raises Refused (the plan is not what engine.json lists) and TargetError (another platform, nothing here can run it, or the runtime refuses it).
    """
    content = verified_bytes(folder, engine, PLAN)
    refuse_misfit(misfit(engine.target, engine.key_fields), engine.target, f"build the target {engine.target} on a machine like this one")
    if reason := unrunnable(engine.target):
        raise TargetError(
            f"An engine of {engine.target} cannot run here", where=str(folder), expected="its library and an NVIDIA GPU", got=reason,
            next="serve another target of the bundle here",
        )  # fmt: skip
    library = _library(engine.target)
    log = _log(library)
    cuda_engine = library.Runtime(log).deserialize_cuda_engine(content)
    if cuda_engine is None:
        raise TargetError("The runtime refuses the plan", where=str(folder / PLAN), expected="a plan for this GPU", got=log.said())
    return TensorRTSession(engine, cuda_engine, concurrency)


class TensorRTSession(Session):
    """Each slot is an execution context with a stream of its own; device memory comes from torch. Never run on hardware."""

    def __init__(self, engine: Engine, cuda_engine: Any, concurrency: int) -> None:
        import torch

        self._torch, self._cuda_engine = torch, cuda_engine
        super().__init__(engine, [(cuda_engine.create_execution_context(), torch.cuda.Stream()) for _ in range(concurrency)])

    def _infer(self, slot: Any, inputs: Batch) -> dict[str, np.ndarray]:
        import numpy as np

        torch, (context, stream) = self._torch, slot
        with torch.cuda.stream(stream):
            given = {name: torch.from_numpy(np.ascontiguousarray(array)).to("cuda") for name, array in inputs.items()}
            for name, tensor in given.items():
                context.set_input_shape(name, tuple(tensor.shape))
                context.set_tensor_address(name, tensor.data_ptr())
            results = {}
            for spec in self.engine.outputs:
                shape = tuple(context.get_tensor_shape(spec.name))
                results[spec.name] = torch.empty(shape, dtype=getattr(torch, spec.dtype), device="cuda")
                context.set_tensor_address(spec.name, results[spec.name].data_ptr())
            if not context.execute_async_v3(stream.cuda_stream):
                raise TargetError("The runtime did not run the plan", where=self.engine.target, expected="execute_async_v3 to accept the inputs")
            return {name: tensor.cpu().numpy() for name, tensor in results.items()}  # .cpu() waits for the stream

    def _release(self) -> None:
        self._cuda_engine = None


def _library(target: str) -> Any:
    if reason := unavailable(target):
        raise TargetError(f"The target {target} cannot be built here", where=target, expected="its library installed", got=reason)
    try:
        return importlib.import_module(LIBRARIES[target])
    except (ImportError, OSError, RuntimeError) as error:
        raise TargetError(
            f"The library of {target} cannot be loaded", where=target, expected=f"import {LIBRARIES[target]}", got=str(error), next=INSTALL[target]
        ) from error


def _capabilities(library: Any, target: str, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Names such as `SM89`, in order; all that the library knows but Turing when none is asked for. Empty for TensorRT: it builds for its own GPU."""
    only_known(settings, (CAPABILITIES,) if target == RTX else (), target)
    if target != RTX:
        return ()
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


def _plan(
    library: Any, file: ModelFile, inputs: tuple[TensorSpec, ...], shapes: Mapping[str, AxisRange], capabilities: tuple[str, ...],
    progress: Progress,
) -> bytes:  # fmt: skip
    log = _log(library)
    builder = library.Builder(log)
    flags = library.NetworkDefinitionCreationFlag
    # Before 11 a network is weakly typed unless told otherwise, and the flag's number is another: by name only, and only where it is needed.
    network = builder.create_network(1 << int(flags.STRONGLY_TYPED) if hasattr(flags, "EXPLICIT_BATCH") else 0)
    parser = library.OnnxParser(network, log)
    if not (parser.parse_from_file(str(file.path)) if file.side else parser.parse(file.content)):
        said = [parser.get_error(index) for index in range(parser.num_errors)]
        raise ModelError(
            "The parser refuses the model", where=str(file.path), expected="operators and Q/DQ that TensorRT takes",
            got=" | ".join(f"node {each.node_name()}: {' '.join(each.desc().partition(CHECKS)[0].split())}" for each in said)[:1500] or log.said(),
        )  # fmt: skip
    config = builder.create_builder_config()
    config.profiling_verbosity = getattr(library.ProfilingVerbosity, SETTINGS["profiling_verbosity"])
    config.clear_flag(library.BuilderFlag.TF32)
    profile = builder.create_optimization_profile()
    points = [{name: getattr(axis, point) for name, axis in shapes.items()} for point in ("min", "opt", "max")]
    for spec in inputs:
        profile.set_shape(spec.name, *(spec.concrete(sizes) for sizes in points))
    config.add_optimization_profile(profile)
    if capabilities:
        config.num_compute_capabilities = len(capabilities)
        for index, name in enumerate(capabilities):
            config.set_compute_capability(getattr(library.ComputeCapability, name), index)
    monitor = _monitor(library, progress)
    config.progress_monitor = monitor
    plan = builder.build_serialized_network(network, config)
    if monitor.error is not None:
        raise monitor.error
    if plan is None:
        raise ModelError("No plan could be built", where=str(file.path), expected="a plan", got=log.said())
    return bytes(plan)


def _log(library: Any) -> Any:
    """A logger of the library's own kind that keeps errors and prints nothing."""

    class Log(library.ILogger):
        def __init__(self) -> None:
            library.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (library.ILogger.Severity.ERROR, library.ILogger.Severity.INTERNAL_ERROR):
                self.errors.append(" ".join(message.split()))

        def said(self) -> str:
            """The last errors in one line."""
            return " | ".join(self.errors[-3:])[:1500] or "no message"

    return Log()


def _monitor(library: Any, progress: Progress) -> Any:
    """A progress monitor that tells how much of the outermost phase is done, and never less than before.

    An exception that `progress` raises cancels the build and is kept in `error`.
    """

    class Monitor(library.IProgressMonitor):
        def __init__(self) -> None:
            library.IProgressMonitor.__init__(self)
            self.phases: dict[str, tuple[str | None, int, int]] = {}
            self.error: BaseException | None = None
            self.told = 0

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self.phases[phase_name] = (parent_phase, max(num_steps, 1), 0)

        def step_complete(self, phase_name: str, step: int) -> bool:
            parent, steps, _ = self.phases[phase_name]
            self.phases[phase_name] = (parent, steps, step + 1)
            share, phase = (step + 1) / steps, parent
            while phase is not None and phase in self.phases:
                parent, steps, done = self.phases[phase]
                share, phase = (done + share) / steps, parent
            try:
                self.told = max(self.told, min(int(PROGRESS_STEPS * share), PROGRESS_STEPS - 1))
                progress(self.told, PROGRESS_STEPS, phase_name)
            except BaseException as error:  # must not unwind through the library
                self.error = error
            return self.error is None

        def phase_finish(self, phase_name: str) -> None:
            self.phases.pop(phase_name, None)

    return Monitor()
