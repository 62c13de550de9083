"""What every GPU target does on this machine: built, run, counted and timed, INT8 against FP16 and FP32, cold and warm. `make gpu-check`.

    python benchmarks/gpu_check.py --json build/bench/gpu.json

On the example's models, where `make repro` has made them, and on a network of ResNet-50's shape with made-up weights. Each engine is opened in fresh
processes: the first request after opening, and the median of those after `WARM` iterations. A target that is missing says what to install.
Exit code 0 when every target that could be built ran, 1 when one failed, 4 when there was none. `--targets` may name any other target.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [str(ROOT), *(path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent)]

from benchmarks.networks import STAGES, resnet50  # noqa: E402

TARGETS = ("tensorrt-rtx", "tensorrt", "onnxruntime-cuda", "onnxruntime-tensorrt")
PROCESSES, WARM, CALLS = 3, 20, 100
EXAMPLE = {"int8": ROOT / "build/quantized/tensorrt/model.onnx", "float32": ROOT / "build/export/model.onnx"}
Row = dict[str, Any]


def models(work: Path, *, small: bool) -> dict[str, dict[str, Path]]:
    """By network and precision. `small`: a narrow network, for a machine that only checks this script."""
    options: Row = {"side": 64, "stages": tuple((width // 8, 1) for width, _ in STAGES)} if small else {}
    found = {"resnet50": {name: resnet50(work / f"{name}.onnx", name, **options) for name in ("int8", "float16", "float32")}}
    if not small and all(path.is_file() for path in EXAMPLE.values()):
        found["example"] = EXAMPLE
    return found


def measure(target: str, network: str, precision: str, model: Path, work: Path) -> Row:
    """One line of the table; what goes wrong is its `fault`."""
    from cli.build import build_file
    from pipeline.errors import QwarmError
    from pipeline.records import AxisRange

    row: Row = {"target": target, "network": network, "precision": precision}
    folder = work / f"{target}-{network}-{precision}"
    started = time.perf_counter()
    try:
        report = build_file(model, target, folder, batch=AxisRange(1, 1, 8), store=None)
    except QwarmError as error:
        return row | {"fault": " ".join(str(error).split())}
    row |= {"build_s": time.perf_counter() - started, "int8_share": report["int8_share"], "in_float": report["in_float"]}
    row["mb"] = sum(file["bytes"] for file in report["files"].values()) / 1e6
    runs = []
    for _ in range(PROCESSES):
        command = [sys.executable, str(Path(__file__).resolve()), "--child", str(folder)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            return row | {"fault": " ".join(ran.stderr.split())[-500:]}
        runs.append(json.loads(ran.stdout.splitlines()[-1]))
    return (
        row | {name: statistics.median(run[name] for run in runs) for name in ("open_ms", "first_ms", "p50_ms")} | {"settings": runs[0]["settings"]}
    )


def child(folder: Path) -> Row:
    """One fresh process: open, first request, steady state."""
    import engines
    from engines.onnx_file import probe
    from engines.stored import read_engine

    engine = read_engine(folder)
    engines.backend(engine.target).preload(engine.target)
    rows = {name: array[:1] for name, array in probe(engine.inputs, engine.shapes).items()}
    times = [time.perf_counter()]
    with engines.open_engine(folder) as session:
        times.append(time.perf_counter())
        for _ in range(1 + WARM + CALLS):
            outputs = session.run(rows)
            times.append(time.perf_counter())
        if not all(np.isfinite(array).all() for array in outputs.values()):
            raise SystemExit("an output is not finite")
        spans = np.diff(times) * 1e3
        return {"open_ms": spans[0], "first_ms": spans[1], "p50_ms": float(np.median(spans[2 + WARM :])), "settings": session.settings}


def table(rows: list[Row], absent: dict[str, str]) -> str:
    lines = [f"{'target':<22}{'network':<10}{'precision':<10}{'build s':>9}{'MB':>8}{'INT8':>8}{'open ms':>9}{'first ms':>10}{'p50 ms':>9}"]
    for row in rows:
        head = f"{row['target']:<22}{row['network']:<10}{row['precision']:<10}"
        if "fault" in row:
            lines.append(f"{head}  {row['fault'][:200]}")
            continue
        share = "unknown" if row["int8_share"] is None else f"{row['int8_share']:.1%}"
        lines.append(f"{head}{row['build_s']:>9.1f}{row['mb']:>8.2f}{share:>8}{row['open_ms']:>9.1f}{row['first_ms']:>10.2f}{row['p50_ms']:>9.3f}")
    return "\n".join([*lines, *(f"{target}: not here, {reason}" for target, reason in absent.items())])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write every figure there")
    parser.add_argument("--targets", nargs="+", default=TARGETS)
    parser.add_argument("--small", action="store_true", help="a narrow network: does this script run?")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child)))
        return 0
    import engines
    from pipeline.files import write_json
    from pipeline.gpus import first_gpu
    from pipeline.platforms import library_versions, machine_facts

    absent = {target: reason for target in options.targets if (reason := engines.backend(target).unrunnable(target))}
    rows = []
    with tempfile.TemporaryDirectory(prefix="qwarm-gpu-") as scratch:
        work = Path(scratch)
        present = [target for target in options.targets if target not in absent]
        for network, files in models(work, small=options.small).items() if present else ():
            rows += [measure(target, network, precision, model, work) for target in present for precision, model in files.items()]
    print(table(rows, absent))
    if options.json:
        write_json(options.json, {"machine": machine_facts(first_gpu()), "libraries": library_versions(), "rows": rows, "absent": absent})
    if not rows:
        return 4
    return int(any("fault" in row for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
