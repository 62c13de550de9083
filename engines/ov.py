"""OpenVINO on a CPU (target `openvino-cpu`): ONNX to an exported blob, and the blob to a session.

Settings, and why (measured with OpenVINO 2026.4.1 on 2 cores with AVX512-VNNI and BF16; Q/DQ networks of 28 and 150 million multiply-accumulates,
variants interleaved in one process):

- `NUM_STREAMS=1`. A lone caller's p50 is 0.21 against 0.32 ms (0.54 against 0.80 ms) with two streams, because a request gets all cores, and
  what the gates judge is the latency of one request. The price: two concurrent callers together get 4240 instead of 5660 (1780
  instead of 2060) requests a second and a longer tail, as their requests queue. One stream also means one set of kernels.
- `INFERENCE_PRECISION_HINT=f32`, for both precisions. Left alone, float layers run in bf16 where the CPU has it: that would make the float32
  engine no baseline, and the few float layers of an INT8 engine less accurate than what was quantized for. On those networks f32
  costs an INT8 engine nothing (p50 0.206 against 0.212 ms, 0.540 against 0.549 ms).
- `import_model` does NOT take the hint from the blob: without the settings an f32 blob runs in bf16. They are passed again and read back.
- `CACHE_DIR` is never set: it keys on path and time, not content. The blob lies under our own digests.
- Blobs for lesser CPUs (`targets.openvino-cpu.isa_levels`) lie beside the native one: see `engines/ov_levels.py`.
- `INFERENCE_NUM_THREADS` stays the runtime's choice, the cores of the serving host, unless `threads` is set; `Session.settings` tells what it was.
"""

from __future__ import annotations

import importlib.util
import io
import os
import platform as host
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engines import census as executed
from engines import ov_levels
from engines.building import THREADS, asked_threads, only_known, record, refuse_misfit, refuse_other_tensors, start
from engines.contract import NO_SETTINGS, Progress, Session, silent
from engines.onnx_file import ModelFile, probe, same_outputs
from engines.ov_import import openvino_module
from engines.stored import verified_bytes
from pipeline.errors import ModelError, TargetError
from pipeline.files import replacing_folder
from pipeline.gpus import Gpu
from pipeline.platforms import difference, isa, package_version
from pipeline.records import AxisRange, Census, Engine, Platform, TensorSpec
from pipeline.tensors import Batch

TARGETS = ("openvino-cpu",)
SCHEMES = {"openvino-cpu": ("cpu", "tensorrt")}
HOST_PACKAGES = {"openvino-cpu": ("openvino",)}
BLOB = "model.blob"
SETTINGS = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1", "INFERENCE_PRECISION_HINT": "f32"}
READ_BACK = (*SETTINGS, "INFERENCE_NUM_THREADS", "ENABLE_CPU_PINNING")
ISA_FLAGS = (
    "amx_bf16", "amx_complex", "amx_fp16", "amx_int8", "avx10_2", "avx512_bf16", "avx512_fp16", "avx512_vnni", "avx512vl",
    "avx_ne_convert", "avx_vnni", "avx_vnni_int8",
)  # fmt: skip
"""What tells apart the instruction sets that oneDNN, and so the blob's header, distinguishes: finer than `isa()`."""
ISA_FIELDS = ("isa", "isa_flags", "max_cpu_isa")
MULTIPLYING_LAYERS = frozenset(
    {"Convolution", "Deconvolution", "FullyConnected", "MatMul", "Subgraph", "ScaledDotProductAttention", "RNNSeq", "RNNCell"}
)
CONVERTING_LAYERS = frozenset({"Convert", "FakeQuantize", "Reorder"})
PRECISION_NAMES = {"i8": executed.INT8, "u8": executed.INT8, "f32": "FP32", "bf16": "BF16", "f16": "FP16"}


def unavailable(target: str) -> str | None:  # noqa: ARG001
    """None when OpenVINO is installed, else what to install."""
    if importlib.util.find_spec("openvino") is None:
        return "openvino is not installed: `pip install openvino`, in the version that pyproject.toml or the bundle's README pins"
    return None


def unrunnable(target: str) -> str | None:
    """What can be built here can be run here."""
    return unavailable(target)


def platform_key(target: str) -> dict[str, str]:  # noqa: ARG001
    """What the importer checks (version, instruction set) and what it cannot (system, architecture)."""
    flags = ov_levels.flags_here()
    return {
        "openvino": package_version("openvino"),
        "isa": isa(),
        "isa_flags": " ".join(flag for flag in ISA_FLAGS if flag in flags),
        "max_cpu_isa": os.environ.get(ov_levels.LIMIT, "ALL"),
        "os": host.system(),
        "architecture": host.machine(),
    }


def gpu(target: str) -> Gpu | None:  # noqa: ARG001
    """None: it runs on the CPU."""
    return None


def misfit(target: str, wanted: Mapping[str, str]) -> list[str]:
    """Every field must be equal, but those of the instruction set where there is a blob that this CPU can run."""
    return _misfit(target, wanted)[0]


def _misfit(target: str, wanted: Mapping[str, str]) -> tuple[list[str], str | None]:
    """What differs, and the level of the blob to take in place of the native one."""
    here, built = platform_key(target), {name: value for name, value in wanted.items() if name != ov_levels.SETTING}
    lines = difference(built, here)
    if not lines:
        return lines, None
    level = ov_levels.best_level(wanted.get(ov_levels.SETTING, "").split(), ov_levels.flags_here(), os.environ.get(ov_levels.LIMIT, ""))
    if level is not None:
        lines = difference({**built, **{name: here[name] for name in ISA_FIELDS}}, here)
    return lines, level


def preload(target: str) -> None:
    """Import OpenVINO (about 250 ms)."""
    _openvino(target)


def build(
    model: Path, folder: Path, *, target: str, precision: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...],
    shapes: dict[str, AxisRange], platform: Platform, settings: Mapping[str, Any] = NO_SETTINGS, progress: Progress = silent,
) -> Engine:  # fmt: skip
    """Compile the ONNX `model`, export the blob, import it back, compare, and take the census of what really runs.

    Raises TargetError (no OpenVINO, or `platform` is not this machine), ConfigError (a setting that it has not, or an unknown precision),
    ModelError (unreadable model, other inputs or outputs than declared, or a blob that does not give the compiled model's outputs).
    """
    only_known(settings, (ov_levels.SETTING, THREADS), target)
    _openvino(target)
    shipped = precision == "int8"  # the float engine is the baseline here, at its best
    levels = ov_levels.asked_levels(settings, target) if shipped else ()
    threads = asked_threads(settings, target) if shipped else None
    told: dict[str, Any] = {ov_levels.SETTING: list(levels)} if levels else {}
    told |= {"INFERENCE_NUM_THREADS": str(threads)} if threads else {}
    file = start(model, target=target, precision=precision, inputs=inputs, outputs=outputs, platform=platform, key_here=platform_key(target))
    progress(0, 3, "compile")
    blob, wanted, got, imported = exported(file, probe(inputs, shapes), outputs, model)
    same_outputs(wanted, got, str(model))
    with replacing_folder(folder) as work:
        (work / BLOB).write_bytes(blob)
        progress(1, 3, "census")
        taken = census(imported, file.content, executed.row_sizes(inputs, shapes))
        progress(2, 3, "blobs for lesser CPUs" if levels else "")
        if levels:
            ov_levels.export_levels(file, work, levels, inputs, outputs, shapes, got)
        engine = record(
            work, file.content, target=target, precision=precision, settings=SETTINGS | told,
            inputs=inputs, outputs=outputs, shapes=shapes, platform=platform, census=taken,
            fits={ov_levels.SETTING: " ".join(levels)} if levels else None,
        )  # fmt: skip
    progress(3, 3, "")
    return engine


def exported(
    file: ModelFile, batch: Batch, outputs: tuple[TensorSpec, ...], model: Path
) -> tuple[bytes, dict[str, np.ndarray], dict[str, np.ndarray], Any]:
    """The blob of an ONNX model, what the compiled and the imported one give for `batch`, and the imported one. Raises ModelError."""
    core = openvino_module().Core()
    try:
        compiled = core.compile_model(core.read_model(file.path if file.side else io.BytesIO(file.content)), "CPU", SETTINGS)
        blob = compiled.export_model().getvalue()
        imported = core.import_model(io.BytesIO(blob), "CPU", SETTINGS)
        return blob, _run_once(compiled, batch, outputs), _run_once(imported, batch, outputs), imported
    except RuntimeError as error:
        raise ModelError("OpenVINO cannot compile the model", where=str(model), expected="a model it supports", got=_said(error)) from error


def load(folder: Path, engine: Engine, *, concurrency: int) -> OpenVINOSession:
    """Import the blob from the very bytes that were hashed; `concurrency` infer requests share one compiled model.

    Raises Refused (the blob is not what engine.json lists) and TargetError (no OpenVINO, another platform, a setting not taken).
    """
    return OpenVINOSession(engine, _imported(folder, engine, {}), concurrency)


def profile(folder: Path, engine: Engine, batch: Batch, requests: int) -> list[dict[str, float]]:
    """Milliseconds of each layer, by its name and type, in each of `requests` requests of a new session. Raises as `load` does."""
    request = _imported(folder, engine, {"PERF_COUNT": "YES"}).create_infer_request()
    found = []
    for _ in range(requests):
        request.infer(dict(batch))
        layers = ((f"{info.node_name} ({info.node_type})", info.real_time.total_seconds() * 1e3) for info in request.get_profiling_info())
        found.append({name: taken for name, taken in layers if taken > 0})
    return found


def _imported(folder: Path, engine: Engine, more: Mapping[str, str]) -> Any:
    ov = _openvino(engine.target)
    lines, level = _misfit(engine.target, engine.key_fields)
    name = ov_levels.blob_name(level) if level else BLOB
    content = verified_bytes(folder, engine, name)
    refuse_misfit(lines, engine.target, "serve on a machine like the one it was built on, or build it here")
    if level:
        os.environ[ov_levels.LIMIT] = level  # oneDNN reads it when its first kernel is made, which in a host's process is here
    try:
        compiled = ov.Core().import_model(io.BytesIO(content), "CPU", {**_properties(engine), **more})
    except RuntimeError as error:
        raise TargetError("OpenVINO refuses the engine", where=str(folder / name), expected="a blob for this machine", got=_said(error)) from error
    refuse_other_tensors(
        engine, (port.get_any_name() for port in compiled.inputs), (n for p in compiled.outputs for n in p.get_names()), folder / name
    )
    return compiled


def census(compiled: Any, model: bytes, sizes: dict[str, int]) -> Census:
    """Precision of each multiplying node of the ONNX `model`, from the runtime graph of `compiled`, which must have run once.

    Kernels of dynamic shapes are chosen at the first inference (before it, `primitiveType` reads `undef_...`). A layer counts as INT8
    only when its `runtimePrecision` and its kernel's name both say so.
    """
    import onnx

    layers, conversions = [], Counter[str]()
    for operation in compiled.get_runtime_model().get_ordered_ops():
        facts = {name: str(value.astype(str)) for name, value in operation.get_rt_info().items()}
        if facts["layerType"] in CONVERTING_LAYERS:
            conversions[facts["layerType"]] += 1
        if facts["layerType"] not in MULTIPLYING_LAYERS:
            continue
        said = {_precision(facts["runtimePrecision"]), _precision(facts["primitiveType"].rpartition("_")[2])}
        precision = executed.INT8 if said == {executed.INT8} else min(said - {executed.INT8})
        layers.append(executed.RuntimeLayer(facts["layerType"], precision, tuple(facts["originalLayersNames"].split(","))))
    return executed.take(onnx.load_from_string(model), sizes, layers, conversions)


class OpenVINOSession(Session):
    """Each slot is an infer request with its own output buffers. The caller's input array is read in place while the call lasts."""

    def __init__(self, engine: Engine, compiled: Any, concurrency: int) -> None:
        super().__init__(engine, [compiled.create_infer_request() for _ in range(concurrency)])
        self._compiled: Any = compiled
        self._tensor: Any = openvino_module().Tensor
        self._ports = {spec.name: compiled.output(spec.name) for spec in engine.outputs}
        self._settings = {name: _setting(compiled.get_property(name)) for name in READ_BACK}
        for name, wanted in _properties(engine).items():
            if (taken := self._settings.get(name)) != wanted:
                raise TargetError("OpenVINO did not take a setting", where=f"{engine.target}: {name}", expected=wanted, got=str(taken))

    @property
    def settings(self) -> dict[str, str]:
        return dict(self._settings)

    def _infer(self, slot: Any, inputs: Batch) -> dict[str, np.ndarray]:
        """On the runtime's own thread: `infer` makes an arena of its own for each thread that calls it.

        A caller's first request then takes 1.1 instead of 1.8 times the rest and a lone caller's p50 0.40 instead of 0.43 ms (measured, a
        network of 91 million multiply-accumulates on 2 cores); a server answers from threads that no plan can reach.
        """
        given = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
        for name, array in given.items():
            slot.set_tensor(name, self._tensor(array, shared_memory=True))
        slot.start_async()
        slot.wait()
        return {name: slot.get_tensor(port).data.copy() for name, port in self._ports.items()}

    def _release(self) -> None:
        self._ports = {}
        self._compiled = None


def _openvino(target: str) -> Any:
    if reason := unavailable(target):
        raise TargetError(f"The target {target} cannot run here", where=target, expected="its runtime installed", got=reason)
    return openvino_module()


def _run_once(compiled: Any, batch: Batch, outputs: tuple[TensorSpec, ...]) -> dict[str, np.ndarray]:
    results = compiled.create_infer_request().infer(batch)
    return {spec.name: results[compiled.output(spec.name)] for spec in outputs}


def _properties(engine: Engine) -> dict[str, Any]:
    """What the runtime is told at import, as it was at build."""
    return {name: value for name, value in engine.recipe["settings"].items() if name != ov_levels.SETTING}


def _setting(value: Any) -> str:
    """An element type by its short name ("f32"), anything else as its text."""
    return str(value.get_type_name() if hasattr(value, "get_type_name") else value)


def _precision(name: str) -> str:
    return PRECISION_NAMES.get(name.lower(), name.upper())


def _said(error: Exception) -> str:
    """OpenVINO's message without the source lines it begins with."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith(("Exception from", "Check '"))]
    return "; ".join(lines) or type(error).__name__
