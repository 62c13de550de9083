"""From an ONNX model to a plan, over the part of their API that TensorRT 10.13 to 11 and TensorRT-RTX share.

Enums are taken by name only: their numbers moved between 10 and 11. `tests/engines/test_trt_bindings.py` holds every attribute that is used on a
library's object to the real bindings of each version; it knows the objects by the names of the variables here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engines.contract import Progress
from engines.onnx_file import ModelFile
from pipeline.errors import ModelError, TargetError
from pipeline.records import AxisRange, TensorSpec

PROGRESS_STEPS = 1000
CHECKS = "[checkMacros"
"""From here on a message of the parser speaks of the GPU that is missing."""
MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class PlanOptions:
    """What a plan is built with beside the model; the names are those of params.yaml, None is the library's own default."""

    compute_capabilities: tuple[str, ...] = ()
    optimization_level: int | None = None
    hardware_compatibility: str = "NONE"
    workspace_mib: int | None = None
    plugins: tuple[Path, ...] = ()
    repeatable: bool = False
    device: str = "GPU"
    dla_core: int = 0
    gpu_fallback: bool = False


@dataclasses.dataclass
class TimingSeed:
    """`seed`: the timing cache to start from, b"" for none. `grown` is called with the library's cache after the build, where there is one."""

    seed: bytes
    grown: Callable[[Any, Any], None]


def build_plan(
    library: Any, file: ModelFile, inputs: tuple[TensorSpec, ...], shapes: Mapping[str, AxisRange], options: PlanOptions,
    progress: Progress, seeded: TimingSeed | None = None,
) -> bytes:  # fmt: skip
    """The plan, with one optimization profile from `shapes`. An exception that `progress` raises cancels the build and is raised again.

    Raises ModelError naming the node that the parser refuses, or with the builder's message; TargetError for a plugin that cannot be loaded, and
    for a repeatable build whose timing cache does not fit.
    """
    log = new_log(library)
    builder = library.Builder(log)
    load_plugins(builder.get_plugin_registry(), options.plugins, log)
    flags = library.NetworkDefinitionCreationFlag
    # Before 11 a network is weakly typed unless told otherwise, and the flag's number is another: by name only, and only where it is needed.
    network = builder.create_network(1 << int(flags.STRONGLY_TYPED) if hasattr(flags, "EXPLICIT_BATCH") else 0)
    parser = library.OnnxParser(network, log)
    if not (parser.parse_from_file(str(file.path)) if file.side else parser.parse(file.content)):
        said = [_said_of(parser.get_error(index)) for index in range(parser.num_errors)]
        raise ModelError(
            "The parser refuses the model", where=str(file.path), expected="operators and Q/DQ that TensorRT takes",
            got=" | ".join(said)[:1500] or log.said(),
        )  # fmt: skip
    config = builder.create_builder_config()
    configure(library, config, options)
    profile = builder.create_optimization_profile()
    points = [{name: getattr(axis, point) for name, axis in shapes.items()} for point in ("min", "opt", "max")]
    for spec in inputs:
        profile.set_shape(spec.name, *(spec.concrete(sizes) for sizes in points))
    config.add_optimization_profile(profile)
    if seeded is not None:
        seed_timing_cache(config, seeded.seed, options.repeatable)
    monitor = new_monitor(library, progress)
    config.progress_monitor = monitor
    plan = builder.build_serialized_network(network, config)
    if monitor.error is not None:
        raise monitor.error
    if plan is None:
        raise ModelError("No plan could be built", where=str(file.path), expected="a plan", got=log.said())
    if seeded is not None:
        seeded.grown(config, config.get_timing_cache())
    return bytes(plan)


def configure(library: Any, config: Any, options: PlanOptions) -> None:
    """Set all that `options` says. TF32 is off, so that "float32" means it on every GPU; the inspector gets every layer's detail."""
    config.profiling_verbosity = library.ProfilingVerbosity.DETAILED
    config.clear_flag(library.BuilderFlag.TF32)
    config.hardware_compatibility_level = getattr(library.HardwareCompatibilityLevel, options.hardware_compatibility)
    if options.optimization_level is not None:
        config.builder_optimization_level = options.optimization_level
    if options.workspace_mib is not None:
        config.set_memory_pool_limit(library.MemoryPoolType.WORKSPACE, options.workspace_mib * MIB)
    if options.repeatable:
        config.set_flag(library.BuilderFlag.EDITABLE_TIMING_CACHE)
        config.set_flag(library.BuilderFlag.ERROR_ON_TIMING_CACHE_MISS)
    if options.device == "DLA":
        config.default_device_type = library.DeviceType.DLA
        config.DLA_core = options.dla_core
    if options.gpu_fallback:
        config.set_flag(library.BuilderFlag.GPU_FALLBACK)
    if options.compute_capabilities:
        config.num_compute_capabilities = len(options.compute_capabilities)
        for index, name in enumerate(options.compute_capabilities):
            config.set_compute_capability(getattr(library.ComputeCapability, name), index)


def seed_timing_cache(config: Any, seed: bytes, repeatable: bool) -> None:
    """Start from `seed`; from an empty cache where it is of another device or build, or is none. Never with `ignore_mismatch`.

    Raises TargetError where the build must be repeatable and the seed does not serve: an empty cache would miss.
    """
    timing = config.create_timing_cache(seed)
    if timing is not None and config.set_timing_cache(timing, False) and (seed or not repeatable):
        return
    if repeatable:
        raise TargetError(
            "A repeatable build has no timing cache to repeat", where="timing cache", expected="one of this GPU and this TensorRT",
            got="none that fits", next="build once without `repeatable`, which fills it; then build again with it",
        )  # fmt: skip
    config.set_timing_cache(config.create_timing_cache(b""), False)


def load_plugins(registry: Any, plugins: tuple[Path, ...], log: Any) -> None:
    """Load the libraries of plugins, in order, for the rest of the process: an engine needs them while it lives. Raises TargetError naming one."""
    for path in plugins:
        if registry.load_library(str(path)) is None:
            raise TargetError("A plugin cannot be loaded", where=str(path), expected="a TensorRT plugin library", got=log.said())


def _said_of(problem: Any) -> str:
    return f"node {problem.node_name()}: {' '.join(problem.desc().partition(CHECKS)[0].split())}"


def new_log(library: Any) -> Any:
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


def new_monitor(library: Any, progress: Progress) -> Any:
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
