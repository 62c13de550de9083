"""ONNX Runtime on a CPU (target `onnxruntime-cpu`): the graph is optimized once, at build, and stored; a host only loads it.

Settings, and why (measured 2026-11-30, onnxruntime 1.24.4, 2 cores with AVX512-VNNI):

- The optimized graph is saved at ORT_ENABLE_ALL and loaded at ORT_DISABLE_ALL: outputs are bit-identical, and loading takes 4 instead of
  20 ms (digits), or 97 instead of 260 ms (a ResNet-18 in FP32, 47 MB). Above ORT_ENABLE_EXTENDED such a file fits one instruction set only,
  which is therefore in the platform key.
- Weights lie in a file of their own. At load they are hashed while they are copied to a private folder in memory, and the runtime maps that copy,
  which has no name any more when `load` returns: it reads the very bytes whose sha256 was checked, and a file swapped after the check, or another
  `weights.bin` in the current folder, changes nothing. EfficientNet-Lite0 in FP32 (19 MB) then takes 41 MB of memory; with the weights handed
  over as bytes (`add_external_initializers_from_files_in_memory`, where there is no room for the copy), of which it makes copies of its own, 64 MB.
  Without the check 11 instead of 121 ms; the sha256 is the larger part of the time.
- `session.disable_prepacking` is never set: quantized convolutions then give other numbers in every process (seen).
- The ORT format with `session.use_ort_model_bytes_for_initializers` is faster still and WRONG from Python: the binding hands over a temporary
  copy of the bytes, and initializers then point into freed memory (seen: outputs off by 64, zero points that change).
- `WeightBiasQuantization` is off: it re-quantizes weights that a mixed-precision model keeps in float, with one scale a tensor. For INT8
  `MatMulAddFusion` is off as well: it turns a quantized MatMul with a bias behind it into a Gemm that runs in float.
- One session, whose runs may overlap, with as many intra-op threads as there are physical cores this process may use (counted here: the
  runtime's own count ignores affinity), unless `threads` is set. Idle threads do not spin. On 2 cores shared with other work spinning takes one
  caller's p50 from 0.25 to 0.22 ms, but five times the processor time at a low request rate, two callers from 2200 to 1400 requests a second, and
  p99 from 12 to 20 ms. A network of 91 million multiply-accumulates answers one row in 0.39 ms by one thread, 0.59 by two; 16 rows in 5.3 and 3.7.
"""

from __future__ import annotations

import importlib.util
import json
import platform as host
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.building import THREADS, asked_threads, only_known, record, refuse_misfit, refuse_other_tensors, start
from engines.census import row_sizes
from engines.contract import NO_SETTINGS, Progress, Session, silent
from engines.onnx_file import probe, same_outputs
from engines.ort_census import take_census
from engines.stored import copy_checked, verified_bytes
from pipeline.errors import ModelError, QwarmError, TargetError
from pipeline.files import replacing_folder
from pipeline.gpus import Gpu
from pipeline.platforms import difference, isa, package_version, physical_cores
from pipeline.records import AxisRange, Engine, Platform, TensorSpec
from pipeline.tensors import Batch

if TYPE_CHECKING:
    import numpy as np

TARGETS = ("onnxruntime-cpu",)
SCHEMES = {"onnxruntime-cpu": ("cpu",)}
"""Not `tensorrt`: without Q/DQ on their outputs ONNX Runtime runs every convolution of it in float."""
HOST_PACKAGES = {"onnxruntime-cpu": ("onnxruntime-gpu",)}
"""The distribution that was measured; the one without CUDA, in the same version, counts as the same platform."""
GRAPH, WEIGHTS = "model.onnx", "weights.bin"
DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu")
PROVIDERS = ["CPUExecutionProvider"]
SETTINGS = {
    "graph_optimization_level": "ORT_ENABLE_ALL",
    "execution_mode": "ORT_SEQUENTIAL",
    "inter_op_num_threads": "1",
    "session.intra_op.allow_spinning": "0",
}
DISABLED = {"int8": ["MatMulAddFusion", "WeightBiasQuantization"], "float32": ["WeightBiasQuantization"]}
EXTERNAL_FROM_BYTES = "1024"
FOLDER_OF_WEIGHTS, IN_MEMORY = "session.model_external_initializers_file_folder_path", Path("/dev/shm")
ERROR = 3
"""Severity from which the runtime may write to standard error; it raises what matters."""


def unavailable(target: str) -> str | None:  # noqa: ARG001
    """None when ONNX Runtime is installed, else what to install."""
    if importlib.util.find_spec("onnxruntime") is None:
        return "onnxruntime is not installed: `pip install onnxruntime`, in the version that pyproject.toml or the bundle's README pins"
    return None


def unrunnable(target: str) -> str | None:
    """What can be built here can be run here."""
    return unavailable(target)


def platform_key(target: str) -> dict[str, str]:  # noqa: ARG001
    """The runtime checks none of these."""
    versions = [version for name in DISTRIBUTIONS if (version := package_version(name)) != "absent"]
    return {"onnxruntime": versions[0] if versions else "absent", "isa": isa(), "os": host.system(), "architecture": host.machine()}


def gpu(target: str) -> Gpu | None:  # noqa: ARG001
    """None: it runs on the CPU."""
    return None


def misfit(target: str, wanted: Mapping[str, str]) -> list[str]:
    """Every field must be equal."""
    return difference(wanted, platform_key(target))


def preload(target: str) -> None:
    """Import ONNX Runtime (about 90 ms)."""
    runtime_of(target)


def build(
    model: Path, folder: Path, *, target: str, precision: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...],
    shapes: dict[str, AxisRange], platform: Platform, settings: Mapping[str, Any] = NO_SETTINGS, progress: Progress = silent,
) -> Engine:  # fmt: skip
    """Optimize the ONNX `model`, store it, load it as a host would and take the census of what really runs.

    Raises TargetError (no ONNX Runtime, or `platform` is not this machine), ConfigError (a setting that is none of its own, or an unknown precision),
    ModelError (unreadable model, other inputs or outputs than declared, or a stored engine that does not give the outputs of the optimized
    graph; of the graph as written, in float32).
    """
    only_known(settings, (THREADS,), target)
    threads = asked_threads(settings, target) if precision == "int8" else None  # the float engine is the baseline, at its best
    runtime = runtime_of(target)
    file = start(model, target=target, precision=precision, inputs=inputs, outputs=outputs, platform=platform, key_here=platform_key(target))
    batch = probe(inputs, shapes)
    names = [spec.name for spec in outputs]
    with replacing_folder(folder) as work:
        progress(0, 2, "optimize")
        options = session_options(runtime, SETTINGS["graph_optimization_level"])
        options.optimized_model_filepath = str(work / GRAPH)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", WEIGHTS)
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", EXTERNAL_FROM_BYTES)
        try:
            optimized = _session(runtime, file.source, options, DISABLED[precision])
            if precision == "float32":
                optimized = _session(runtime, file.source, session_options(runtime, "ORT_DISABLE_ALL"))
            reference = dict(zip(names, optimized.run(names, batch), strict=True))
        except Exception as error:  # the binding's exceptions have no common base but Exception
            raise ModelError("ONNX Runtime cannot run the model", where=str(model), expected="a model it supports", got=said(error)) from error
        progress(1, 2, "census")
        stored = {path.name: path.read_bytes() for path in work.iterdir()}
        plain, sizes = session_options(runtime, "ORT_DISABLE_ALL"), row_sizes(inputs, shapes)
        census, got = take_census(lambda told: _open(runtime, stored, told), plain, file.content, batch, names, sizes)
        same_outputs(reference, got, str(model))
        told = {"disabled_optimizers": DISABLED[precision]} | ({THREADS: threads} if threads else {})
        engine = record(
            work, file.content, target=target, precision=precision, settings=SETTINGS | told,
            inputs=inputs, outputs=outputs, shapes=shapes, platform=platform, census=census,
        )  # fmt: skip
    progress(2, 2, "")
    return engine


def load(folder: Path, engine: Engine, *, concurrency: int) -> ONNXRuntimeSession:
    """A session on the very bytes that were hashed; `concurrency` calls may be inside it at once.

    Raises Refused (a file is not what engine.json lists) and TargetError (no ONNX Runtime, another platform, the runtime refuses the graph).
    """
    return ONNXRuntimeSession(engine, _opened(folder, engine), concurrency)


def profile(folder: Path, engine: Engine, batch: Batch, requests: int) -> list[dict[str, float]]:
    """Milliseconds of each layer, by its name and kernel, in each of `requests` requests of a new session. Raises as `load` does."""
    with tempfile.TemporaryDirectory(prefix="qwarm-profile-") as scratch:
        session = _opened(folder, engine, f"{scratch}/run")
        for _ in range(requests):
            session.run(None, dict(batch))
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    runs = sorted((event for event in events if event["name"] == "model_run"), key=lambda event: event["ts"])
    found: list[dict[str, float]] = [{} for _ in runs]
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            place = next(place for place, run in enumerate(runs) if run["ts"] <= event["ts"] <= run["ts"] + run["dur"])
            found[place][f"{event['name'].removesuffix('_kernel_time')} ({event['args']['op_name']})"] = event["dur"] / 1e3
    return found


def _opened(folder: Path, engine: Engine, profile_prefix: str = "") -> Any:
    runtime = runtime_of(engine.target)
    refuse_misfit(misfit(engine.target, engine.key_fields), engine.target, "serve on a machine like the one it was built on, or build it here")
    graph, side = verified_bytes(folder, engine, GRAPH), sorted(name for name in engine.files if name != GRAPH)
    try:
        session = _mapped(runtime, graph, side, folder, engine, profile_prefix)
    except QwarmError:
        raise
    except Exception as error:  # the binding's exceptions have no common base but Exception
        raise TargetError("ONNX Runtime refuses the engine", where=str(folder), expected="a graph it stored itself", got=said(error)) from error
    refuse_other_tensors(engine, (port.name for port in session.get_inputs()), (port.name for port in session.get_outputs()), folder / GRAPH)
    return session


class ONNXRuntimeSession(Session):
    """All slots are the one session: its runs share weights and threads, and each has its own buffers."""

    def __init__(self, engine: Engine, session: Any, concurrency: int) -> None:
        super().__init__(engine, [session] * concurrency)
        self._session: Any = session
        self._names = [spec.name for spec in engine.outputs]
        if session.get_providers() != PROVIDERS:
            raise TargetError("ONNX Runtime took another provider", where=engine.target, expected=str(PROVIDERS), got=str(session.get_providers()))

    @property
    def settings(self) -> dict[str, str]:
        options = self._session.get_session_options()
        return {
            "providers": ", ".join(self._session.get_providers()),
            "intra_op_num_threads": str(options.intra_op_num_threads),
            "inter_op_num_threads": str(options.inter_op_num_threads),
            "session.intra_op.allow_spinning": options.get_session_config_entry("session.intra_op.allow_spinning"),
        }

    def _infer(self, slot: Any, inputs: Batch) -> dict[str, np.ndarray]:
        return dict(zip(self._names, slot.run(self._names, dict(inputs)), strict=True))

    def _release(self) -> None:
        self._session = None


def runtime_of(target: str) -> Any:
    if reason := unavailable(target):
        raise TargetError(f"The target {target} cannot run here", where=target, expected="its runtime installed", got=reason)
    import onnxruntime

    onnxruntime.set_default_logger_severity(ERROR)  # the build with CUDA warns where it finds no GPU
    return onnxruntime


def session_options(runtime: Any, level: str, threads: int | None = None) -> Any:
    options = runtime.SessionOptions()
    options.log_severity_level = ERROR
    options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, level)
    options.execution_mode = getattr(runtime.ExecutionMode, SETTINGS["execution_mode"])
    options.intra_op_num_threads = threads or physical_cores()
    options.inter_op_num_threads = int(SETTINGS["inter_op_num_threads"])
    options.add_session_config_entry("session.intra_op.allow_spinning", SETTINGS["session.intra_op.allow_spinning"])
    return options


def _open(runtime: Any, stored: Mapping[str, bytes], options: Any) -> Any:
    """A session on a stored graph. The runtime copies the weights while it is made, so the bytes may go afterwards."""
    side = sorted(name for name in stored if name != GRAPH)
    if side:
        options.add_external_initializers_from_files_in_memory(side, [stored[name] for name in side], [len(stored[name]) for name in side])
    return _session(runtime, stored[GRAPH], options)


def _mapped(runtime: Any, graph: bytes, side: list[str], folder: Path, engine: Engine, profile_prefix: str = "") -> Any:
    """A session that maps a private copy of the weights, checked as they are copied; their bytes themselves where no copy can be made."""
    threads = engine.recipe["settings"].get(THREADS)
    options = session_options(runtime, "ORT_DISABLE_ALL", threads)
    if profile_prefix:
        options.enable_profiling, options.profile_file_prefix = True, profile_prefix
    if not side:
        return _session(runtime, graph, options)
    try:
        with tempfile.TemporaryDirectory(prefix="qwarm-weights-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as private:
            for name in side:
                copy_checked(folder, name, engine.files[name], Path(private) / name)
            options.add_session_config_entry(FOLDER_OF_WEIGHTS, private)
            return _session(runtime, graph, options)
    except OSError:
        stored = {GRAPH: graph} | {name: verified_bytes(folder, engine, name) for name in side}
        return _open(runtime, stored, session_options(runtime, "ORT_DISABLE_ALL", threads))


def _session(runtime: Any, model: bytes | Path, options: Any, disabled: Collection[str] = ()) -> Any:
    return runtime.InferenceSession(model, options, providers=PROVIDERS, disabled_optimizers=disabled, enable_fallback=0)


def said(error: Exception) -> str:
    """The runtime's message in one line."""
    return " ".join(str(error).split()) or type(error).__name__
