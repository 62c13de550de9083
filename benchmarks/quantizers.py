"""One quantizer on EfficientNet-Lite0, in a process of its own: a child of `quantization.py`.

    python benchmarks/quantizers.py NAME WORK OUT

reads what `ranges.prepare` and `quantization.prepare` wrote to WORK, writes OUT/model.onnx (NNCF: model.xml) and prints one line of JSON. The clock
starts when libraries are imported and stops when the model is written; `peak_rss_mb` is the largest resident memory of this process or of a child.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import folder_last  # noqa: F401
import numpy as np
from ranges import BATCH_ROWS, MODEL, ROWS, SHAPE, peak_rss_mb, rows_of

PERCENTILE_ROWS = 64
"""ONNX Runtime's histogram methods hold every activation of every row: 256 rows would take some 17 GB."""
SEARCH_DRIFT, SEARCH_SLOWDOWN, SEARCH_SECONDS = 10**-2.8, 1.05, 600.0
"""What `qwarm-search` is held to: 28 dB, or as near as 1.05 of plain INT8's latency allows."""
Figures = dict[str, Any]


def noise(size: int = BATCH_ROWS) -> Iterator[dict[str, np.ndarray]]:
    """As many rows of uniform noise, from -1 to 1, as there are calibration rows."""
    random = np.random.default_rng(0)
    for _ in range(0, ROWS, size):
        yield {"image": random.uniform(-1, 1, (size, *SHAPE)).astype(np.float32)}


def pictures(work: Path, size: int = BATCH_ROWS, rows: int = ROWS) -> Iterator[dict[str, np.ndarray]]:
    """The calibration rows."""
    return ({"image": batch} for batch in rows_of(work, rows, size))


def own_copy(work: Path, out: Path) -> str:
    """The export in a file of the quantizer's own: modelopt writes into its input's."""
    path = out / "input.onnx"
    path.write_bytes((work / "export/model.onnx").read_bytes())
    return str(path)


class Reader:
    """What ONNX Runtime's calibrators ask for."""

    def __init__(self, batches: Iterator[dict[str, np.ndarray]]) -> None:
        self.batches = batches

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.batches, None)


def modelopt(method: str) -> Callable[[Path, Path], Figures]:
    def run(work: Path, out: Path) -> Figures:
        from modelopt.onnx.quantization import quantize

        started = time.perf_counter()
        data = np.concatenate([batch["image"] for batch in pictures(work)])
        quantize(
            own_copy(work, out), quantize_mode="int8", calibration_data={"image": data}, calibration_method=method,
            calibration_eps=["cpu"], high_precision_dtype="fp32", output_path=str(out / "model.onnx"), log_level="ERROR",
        )  # fmt: skip
        return {"calibration_s": time.perf_counter() - started}

    return run


def onnxruntime_static(method: str, rows: int, per_channel: bool = True) -> Callable[[Path, Path], Figures]:
    def run(work: Path, out: Path) -> Figures:
        from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

        started = time.perf_counter()
        quantize_static(
            own_copy(work, out), str(out / "model.onnx"), Reader(pictures(work, 8, rows)), quant_format=QuantFormat.QDQ,
            per_channel=per_channel, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, calibrate_method=CalibrationMethod[method],
        )  # fmt: skip
        return {"calibration_s": time.perf_counter() - started}

    return run


def nncf_mixed(work: Path, out: Path) -> Figures:
    import nncf
    import openvino

    nncf.set_log_level(40)
    model = openvino.Core().read_model(work / "export/model.onnx")
    started = time.perf_counter()
    data = nncf.Dataset([batch["image"] for batch in pictures(work, 1)])
    openvino.save_model(nncf.quantize(model, data, preset=nncf.QuantizationPreset.MIXED, subset_size=ROWS), out / "model.xml", compress_to_fp16=False)
    return {"calibration_s": time.perf_counter() - started}


def ours(
    scheme: str, method: str, *, rows: Callable[[Path], Iterator[dict[str, np.ndarray]]] = pictures, **switches: Any
) -> Callable[[Path, Path], Figures]:
    """qwarm, with the methods that `switches` turn off or down."""

    def run(work: Path, out: Path) -> Figures:
        from calibration.ranges import collect
        from calibration.rounding.methods import Calibration, Methods
        from pipeline.records import ExportedModel
        from stages.schemes import QUANTIZERS

        exported = ExportedModel.load(work / "export/exported.json", next="")
        search = {"image": np.fromfile(work / "search.f32", np.float32).reshape(-1, *SHAPE)}
        started = time.perf_counter()
        ids = [str(number) for number in range(ROWS)]
        ranges = collect(
            work / "export/model.onnx", exported, rows(work), ids,
            calibration_root="", preprocess_sha256="", min_rows=1, batch_rows=BATCH_ROWS, method=method,
        )  # fmt: skip
        ranges_s = time.perf_counter() - started
        calibration = Calibration(lambda: rows(work), ids, Methods(**switches))
        record = QUANTIZERS[scheme](work / "export/model.onnx", exported, ranges, out / "quantized", search, calibration=calibration)
        (out / "quantized/model.onnx").rename(out / "model.onnx")
        return {"ranges_s": ranges_s, "calibration_s": time.perf_counter() - started, "variant": record.variant, "search_sqnr_db": record.variants}

    return run


def searched(work: Path, out: Path) -> Figures:
    """qwarm with layers in float, chosen on the search rows: at least 28 dB if that costs no more than 1.05 of plain INT8's latency."""
    from calibration.ranges import collect_each
    from calibration.rounding.methods import Calibration
    from calibration.search.budget import Budget
    from calibration.search.run import Deployment, quantize
    from calibration.variants import Job
    from engines.once import deployed
    from pipeline.platforms import machine_facts
    from pipeline.records import ExportedModel
    from stages.schemes import RULES

    exported = ExportedModel.load(work / "export/exported.json", next="")
    search = {"image": np.fromfile(work / "search.f32", np.float32).reshape(-1, *SHAPE)}
    started = time.perf_counter()
    ids = [str(number) for number in range(ROWS)]
    by_method = collect_each(
        work / "export/model.onnx", exported, pictures(work), ids,
        calibration_root="", preprocess_sha256="", min_rows=1, batch_rows=BATCH_ROWS, methods=("mse", "percentile", "entropy", "max"),
    )  # fmt: skip
    ranges_s = time.perf_counter() - started
    job = Job(work / "export/model.onnx", exported, by_method["mse"], search, Calibration(lambda: pictures(work), ids))
    runtimes = {target: deployed(target, exported.inputs, exported.shapes) for target in ("openvino-cpu", "onnxruntime-cpu")}
    budget = Budget(SEARCH_DRIFT, SEARCH_SLOWDOWN, SEARCH_SECONDS)
    record, result = quantize(RULES["cpu"], job, by_method, out / "quantized", budget, Deployment(runtimes, machine_facts()))
    (out / "quantized/model.onnx").rename(out / "model.onnx")
    return {
        "ranges_s": ranges_s, "calibration_s": time.perf_counter() - started, "variant": record.variant, "search_sqnr_db": record.variants,
        "method": result.method, "methods": result.methods, "float_layers": list(result.written.float_layers), "stopped": result.stopped,
        "points": [[point.added, point.worst_drift, point.latency_ratio, point.whole] for point in result.points], "search_s": result.seconds,
    }  # fmt: skip


def trained(work: Path, out: Path) -> Figures:
    """QAT on the calibration rows, stopped on those that qwarm chooses by: the trained weights in Q/DQ, whether they would be chosen or not."""
    import safetensors.torch

    from calibration.export import export
    from calibration.qat.machines import machine
    from calibration.qat.saved import Saved
    from calibration.qat.train import Data, train
    from calibration.ranges import collect
    from calibration.rounding.methods import Calibration
    from pipeline.config import ModelConfig, TrainingConfig
    from stages.schemes import QUANTIZERS

    rows = {"image": np.fromfile(work / "rows.f32", np.float32).reshape(-1, *SHAPE)}
    search = {"image": np.fromfile(work / "search.f32", np.float32).reshape(-1, *SHAPE)}
    started = time.perf_counter()
    settings = TrainingConfig(**QAT)
    result = train(
        ModelConfig.model_validate(MODEL), work, Data(rows, search, lambda: pictures(work)), settings, Saved(out / "saved", "training"),
        affine=True, method="mse", machine=machine(), progress=lambda *entry: print(*entry, file=sys.stderr, flush=True),
    )  # fmt: skip
    safetensors.torch.save_file(result.state, work / "trained.safetensors")
    training_s = time.perf_counter() - started
    exported = export(ModelConfig.model_validate(MODEL | {"checkpoint": "trained.safetensors"}), work, out / "export", {"image": search["image"][:8]})
    ids = [str(number) for number in range(ROWS)]
    ranges = collect(
        out / "export/model.onnx", exported, pictures(work), ids,
        calibration_root="", preprocess_sha256="", min_rows=1, batch_rows=BATCH_ROWS, method="mse",
    )  # fmt: skip
    calibration = Calibration(lambda: pictures(work), ids)
    record = QUANTIZERS["cpu"](
        out / "export/model.onnx", exported, ranges, out / "quantized", search, calibration=calibration, reference=work / "export/model.onnx"
    )
    (out / "quantized/model.onnx").rename(out / "model.onnx")
    return {
        "calibration_s": time.perf_counter() - started, "training_s": training_s, "variant": record.variant, "search_sqnr_db": record.variants,
        "epochs": [[epoch.loss, epoch.search_sqnr_db] for epoch in result.epochs], "start_sqnr_db": result.start_db,
    }  # fmt: skip


def shipped(work: Path, out: Path) -> Figures:
    """The scheme that does better on the search rows; both must have been measured before. Costs what both cost."""
    names = ("qwarm-ptq", "qwarm-tensorrt-scheme")
    figures = {name: json.loads((work / name / "figures.json").read_text(encoding="utf-8")) for name in names}
    best = max(names, key=lambda name: max(figures[name]["search_sqnr_db"].values()))
    (out / "model.onnx").write_bytes((work / best / "model.onnx").read_bytes())
    return {"calibration_s": sum(figure["calibration_s"] for figure in figures.values()), "scheme_of": best}


def nothing(work: Path, out: Path) -> Figures:
    (out / "model.onnx").write_bytes((work / "export/model.onnx").read_bytes())
    return {"calibration_s": None}


QAT = {"epochs": 6, "batch_rows": 16}
"""256 pictures: some 400 s of one core."""
PLAIN = {"splitting": False, "equalization": False, "adaptation": False, "rounding": "nearest", "bias_correction": False}
QUANTIZERS_BY_NAME: dict[str, Callable[[Path, Path], Figures]] = {
    "float": nothing,
    "modelopt-max": modelopt("max"),
    "modelopt-entropy": modelopt("entropy"),
    "ort-minmax": onnxruntime_static("MinMax", ROWS),
    "ort-percentile": onnxruntime_static("Percentile", PERCENTILE_ROWS),
    "ort-per-tensor": onnxruntime_static("MinMax", ROWS, per_channel=False),
    "nncf": nncf_mixed,
    "random-noise-max": ours("cpu", "max", rows=lambda _: noise(), **PLAIN),
    "qwarm-max": ours("cpu", "max", **PLAIN),
    "qwarm-mse-ranges": ours("cpu", "mse", **PLAIN),
    "qwarm-bias-correction": ours("cpu", "mse", **PLAIN | {"bias_correction": True}),
    "qwarm-adaptation": ours("cpu", "mse", **PLAIN | {"bias_correction": True, "adaptation": True}),
    "qwarm-compensated": ours("cpu", "mse", splitting=False, equalization=False),
    "qwarm-equalized": ours("cpu", "mse", splitting=False),
    "qwarm-ptq": ours("cpu", "mse"),
    "qwarm-tensorrt-scheme": ours("tensorrt", "mse"),
    "qwarm-qat": trained,
    "qwarm": shipped,
    "qwarm-search": searched,
}
"""`qwarm-ptq`, `qwarm-tensorrt-scheme`, `qwarm` and `qwarm-search` stand for the product; the others add one method each to the one above."""
RUNTIMES: dict[str, tuple[str, ...]] = {"nncf": ("openvino",), "qwarm-tensorrt-scheme": ("openvino",)}
"""Where a model would not be shipped for both: NNCF's is OpenVINO's own format, and ONNX Runtime runs the scheme `tensorrt` in float."""


def main() -> None:
    name, work, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    figures = QUANTIZERS_BY_NAME[name](work, out)
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(json.dumps({"ranges_s": None, **figures, "peak_rss_mb": max(peak_rss_mb(), children)}))


if __name__ == "__main__":
    main()
