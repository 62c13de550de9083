"""What INT8 costs in accuracy and what it gains in time, for each quantizer, on EfficientNet-Lite0 and 564 pictures.

    python benchmarks/quantization.py --json build/bench/quantization.json --images ../shared/data/images

Every quantizer is a process of its own (`quantizers.py`) and calibrates on the same 256 rows of split `calib`; qwarm chooses between its variants on
the other 94. Split `eval` judges, once: each model answers every picture at batch 1, all models of a runtime in turn in one process, so that
accuracy and latency come from the same requests and the machine's mood is everybody's. Engines have the settings of `engines/ov.py` and
`engines/ort.py`. The reference is the float model in the same runtime. `difference_interval` is the two-sided 90 % of `release/paired.py`.
`memory` is the collector's peak for 256 rows and for 2,048, the same over and over. `--second`: also plain against fitted on
networks that the methods were not made on (`second_network.py`).

Exit code 1 when a figure that is claimed does not hold. `--rows A,B` measures only some; `--work FOLDER` keeps models between runs.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import folder_last  # noqa: F401
import numpy as np
import ranges as ranges_benchmark
from quantizers import QUANTIZERS_BY_NAME, RUNTIMES
from ranges import MANY_ROWS, ROOT, ROWS, SHAPE, pixels

PEERS = ("modelopt-max", "modelopt-entropy", "ort-minmax", "ort-percentile", "nncf")
BOTH = ("openvino", "onnxruntime")
WARM = 10
"""First requests of each model, which are not timed."""
LIMITS = {
    "sqnr_db": {"qwarm-ptq": 25.5, "qwarm-tensorrt-scheme": 23.0, "qwarm-search": 27.0},
    "agreement": {"qwarm-ptq": 0.985, "qwarm-search": 0.99},
    "over_fastest_peer": 1.05,
    "search_over_plain": 1.05,
    "top1_difference": 0.0035,
    "noise_power": 0.7,
    "calibration_s": 90.0,
    "peak_rss_mb": 1126.4,
}


def prepare(work: Path, images: Path) -> None:
    """What every child reads: the export, 256 calibration rows, the other 94, and the pictures that judge with their labels."""
    ranges_benchmark.prepare(work, images)
    with (images / "labels.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    names = {split: [row["file"] for row in rows if row["split"] == split] for split in ("calib", "eval")}
    for file, chosen in (("search", names["calib"][ROWS:]), ("eval", names["eval"])):
        with (work / f"{file}.f32").open("wb") as stream:
            for name in chosen:
                stream.write(pixels(images / name).tobytes())
    np.save(work / "labels.npy", [int(row["class_index"]) for row in rows if row["split"] == "eval"])


def quantized(name: str, work: Path) -> dict[str, Any]:
    """Run one quantizer in a new process, unless `work` holds its model already."""
    out = work / name
    if not (out / "figures.json").is_file():
        out.mkdir(exist_ok=True)
        command = [sys.executable, str(Path(__file__).with_name("quantizers.py")), name, str(work), str(out)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{name} ended with {done.returncode}: {done.stderr[-3000:]}")
        (out / "figures.json").write_text(done.stdout.splitlines()[-1], encoding="utf-8")
    figures: dict[str, Any] = json.loads((out / "figures.json").read_text(encoding="utf-8"))
    print(f"{name:<24} {json.dumps(figures)}", flush=True)
    return figures


def opened_openvino(folder: Path) -> Callable[[np.ndarray], np.ndarray]:
    from engines import ov

    module = ov._openvino("openvino-cpu")
    model = folder / ("model.xml" if (folder / "model.xml").is_file() else "model.onnx")
    request = module.Core().compile_model(str(model), "CPU", ov.SETTINGS).create_infer_request()
    return lambda picture: request.infer([picture], share_inputs=True, share_outputs=False)[0]


def opened_onnxruntime(folder: Path) -> Callable[[np.ndarray], np.ndarray]:
    import onnxruntime

    from engines import ort

    options = ort.session_options(onnxruntime, ort.SETTINGS["graph_optimization_level"])
    disabled = ort.DISABLED["float32" if folder.name == "float" else "int8"]
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=ort.PROVIDERS, disabled_optimizers=disabled)
    return lambda picture: session.run(None, {"image": picture})[0]


OPENED = {"openvino": opened_openvino, "onnxruntime": opened_onnxruntime}


def judge(runtime: str, work: Path, names: list[str]) -> None:
    """Child: every picture through every model, taking turns; writes WORK/RUNTIME.npz with scores (models, pictures, classes) and ms."""
    models = [OPENED[runtime](work / name) for name in names]
    pictures = np.memmap(work / "eval.f32", np.float32, "r").reshape(-1, 1, *SHAPE)
    for model in models:
        for _ in range(WARM):
            model(np.ascontiguousarray(pictures[0]))
    scores, spent = np.zeros((len(models), len(pictures), 1000), np.float32), np.zeros((len(models), len(pictures)))
    for place, picture in enumerate(pictures):
        batch = np.ascontiguousarray(picture)
        for turn in range(len(models)):
            index = (turn + place) % len(models)
            started = time.perf_counter()
            result = models[index](batch)
            spent[index, place] = (time.perf_counter() - started) * 1000
            scores[index, place] = result[0]
    np.savez(work / f"{runtime}.npz", scores=scores, ms=spent)


def compared(reference: np.ndarray, scores: np.ndarray, labels: np.ndarray, ms: np.ndarray) -> dict[str, Any]:
    """One row's figures in one runtime."""
    from release.paired import compare

    right, still = reference.argmax(1) == labels, scores.argmax(1) == labels
    drop = compare(int((right & ~still).sum()), int((~right & still).sum()), len(labels))
    noise = float(np.square(scores.astype(np.float64) - reference).sum())
    return {
        "top1": float(still.mean()),
        "top1_difference": float(still.mean() - right.mean()),
        "difference_interval": [-drop.high, -drop.low],
        "agreement": float((reference.argmax(1) == scores.argmax(1)).mean()),
        "sqnr_db": 10 * math.log10(float(np.square(reference, dtype=np.float64).sum()) / noise) if noise else None,
        "p50_ms": statistics.median(ms),
    }


def judged(runtime: str, work: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    """Figures of each named row in one runtime, from one new process."""
    command = [sys.executable, str(Path(__file__).resolve()), "--judge", runtime, str(work), *names]
    subprocess.run(command, cwd=ROOT, check=True)
    labels = np.load(work / "labels.npy")
    with np.load(work / f"{runtime}.npz") as found:
        return {name: compared(found["scores"][0], found["scores"][i], labels, found["ms"][i]) for i, name in enumerate(names)}


def coarse(work: Path, name: str) -> list[str]:
    """Layers of a rejected model, the worst first, whose weights 8 bits hold too coarsely."""
    import onnx

    from calibration.rounding.check import coarse_layers

    found = coarse_layers(onnx.load(work / "export/model.onnx"), onnx.load(work / name / "model.onnx"))
    return [f"{layer} {db:.1f} dB" for layer, db in found]


def held(rows: dict[str, Any], figures: dict[str, Any]) -> list[str]:
    """Claims that do not hold, in words."""
    wrong = []
    for key in ("sqnr_db", "agreement"):
        for name, least in LIMITS[key].items():  # type: ignore[attr-defined]
            wrong += [f"{name}: {key} {run[key]:.4g} on {runtime}" for runtime, run in rows.get(name, {}).items() if run[key] < least]
    for name in ("qwarm-ptq", "qwarm-tensorrt-scheme"):
        for runtime, run in rows.get(name, {}).items():
            peers = [rows[peer][runtime]["p50_ms"] for peer in PEERS if runtime in rows.get(peer, {})]
            if peers and run["p50_ms"] > LIMITS["over_fastest_peer"] * min(peers):  # type: ignore[operator]
                wrong.append(f"{name}: p50 {run['p50_ms']:.2f} ms on {runtime}, the fastest peer's is {min(peers):.2f}")
        if name in figures:
            wrong += [f"{name}: {key} {figures[name][key]:.0f}" for key in ("calibration_s", "peak_rss_mb") if figures[name][key] > LIMITS[key]]  # type: ignore[operator]
    for runtime, run in rows.get("qwarm-search", {}).items():
        plain = rows.get("qwarm-ptq", {}).get(runtime)
        if plain and run["p50_ms"] > LIMITS["search_over_plain"] * plain["p50_ms"]:  # type: ignore[operator]
            wrong.append(f"qwarm-search: p50 {run['p50_ms']:.2f} ms on {runtime}, plain INT8's is {plain['p50_ms']:.2f}")
    for runtime, run in rows.get("qwarm-ptq", {}).items():
        if abs(run["top1_difference"]) > LIMITS["top1_difference"]:  # type: ignore[operator]
            wrong.append(f"qwarm-ptq: top-1 differs by {run['top1_difference']:.4f} on {runtime}")
        random = rows.get("random-noise-max", {}).get(runtime)
        if random and 10 ** ((random["sqnr_db"] - run["sqnr_db"]) / 10) > LIMITS["noise_power"]:  # type: ignore[operator]
            wrong.append(f"qwarm-ptq: error power on {runtime} is not 30 % below that of random-noise-max")
    return wrong


def not_repeated(second: dict[str, Any]) -> list[str]:
    """Networks and runtimes on which fitted weights are not closer to float than plain ones."""
    return [
        f"{network}: fitting gains nothing on {runtime}"
        for network, found in second.items()
        for runtime, run in found["fitted"]["runtimes"].items()
        if run["sqnr_db"] <= found["plain"]["runtimes"][runtime]["sqnr_db"]
    ]


def table(rows: dict[str, Any], figures: dict[str, Any]) -> str:
    """One line a row and runtime."""
    lines = [f"{'row':<24}{'runtime':<13}{'top-1':>7}{'diff':>8}{'90 %':>18}{'agree':>8}{'SQNR':>7}{'p50 ms':>8}{'s':>7}{'MB':>7}"]
    for name, runtimes in rows.items():
        spent, memory = (figures[name].get(key) for key in ("calibration_s", "peak_rss_mb"))
        for runtime, run in runtimes.items():
            low, high = run["difference_interval"]
            sqnr = "-" if run["sqnr_db"] is None else f"{run['sqnr_db']:.2f}"
            lines.append(
                f"{name:<24}{runtime:<13}{run['top1']:7.4f}{run['top1_difference']:8.4f}{f'{low:.4f} {high:.4f}':>18}{run['agreement']:8.4f}{sqnr:>7}"
                f"{run['p50_ms']:8.2f}{'-' if spent is None else f'{spent:.0f}':>7}{memory:7.0f}"
            )
    return "\n".join(lines)


def measure(work: Path, names: list[str]) -> dict[str, Any]:
    """Every figure of the named rows."""
    figures = {name: quantized(name, work) for name in names}
    rows: dict[str, dict[str, Any]] = {name: {} for name in names}
    for runtime in BOTH:
        for name, run in judged(runtime, work, [name for name in names if runtime in RUNTIMES.get(name, BOTH)]).items():
            rows[name][runtime] = run
    print(table(rows, figures), flush=True)
    result = [
        {"name": name, "runtimes": rows[name], **{key: figures[name].get(key) for key in ("ranges_s", "calibration_s", "peak_rss_mb")}}
        for name in names
    ]
    if "ort-per-tensor" in names:
        result[names.index("ort-per-tensor")]["rejected_for"] = coarse(work, "ort-per-tensor")
    return {"rows": result, "wrong": held(rows, figures)}


def main() -> int:
    if sys.argv[1:2] == ["--judge"]:
        judge(sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="file to write")
    parser.add_argument("--images", type=Path, default=ROOT.parent / "shared/data/images", help="folder with labels.csv (default: %(default)s)")
    parser.add_argument("--rows", default=",".join(QUANTIZERS_BY_NAME), help="names, separated by commas; the first must be `float`")
    parser.add_argument("--work", type=Path, help="a folder that keeps what was made")
    parser.add_argument("--no-memory", action="store_true", help="leave out the collector's memory")
    parser.add_argument("--second", action="store_true", help="also the networks of second_network.py")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qwarm-quantization-") as temporary:
        work = (arguments.work or Path(temporary)).resolve()
        if not (work / "labels.npy").is_file():
            work.mkdir(parents=True, exist_ok=True)
            prepare(work, arguments.images)
        result = measure(work, arguments.rows.split(","))
        if arguments.second:
            command = [sys.executable, str(Path(__file__).with_name("second_network.py"))]
            result["second"] = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
            result["wrong"] += not_repeated(result["second"])
        if not arguments.no_memory:
            result["memory"] = {str(count): ranges_benchmark.fresh(work, "mse", count)["peak_rss_mb"] for count in (ROWS, MANY_ROWS)}
    for line in result["wrong"]:
        print(f"does not hold: {line}")
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
