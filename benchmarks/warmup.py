"""Is the first request hot? INT8 EfficientNet-Lite0 and the embedded example, on each CPU target, in fresh processes.

    python benchmarks/warmup.py --json build/bench/warmup.json --images ../shared/data/images

For each model and target the product's finder makes a plan (`warmup/find.py`); then six kinds of processes take turns: `cold` (no plan), `warm`
(plan), `unseen` (plan, then sizes it never ran, and four callers at once), `usual` (read and compile the ONNX file, five random runs a shape: what
is commonly done), `floor` (open the engine, one run a shape and slot: the least that reaches every shape), and `iterations-N` (the same plan with
N iterations a step: the exhaustive search that the finder is held to). Times count from before the process was started. Needs `make repro` for the
example's model, and the pictures for EfficientNet-Lite0; `--models` chooses.

`gate` is the latency gate on simulated processes whose true ratio is known: 50 repeats at 0.8, 1 and 1.25 times the limit, extended as in `validate`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import folder_last  # noqa: F401
import numpy as np

import engines
from engines.once import build_once
from pipeline.progress import bar
from pipeline.records import AxisRange, Engine, TensorSpec, Trial, WarmupPlan
from pipeline.verdicts import Verdict
from warmup import latency
from warmup.coldstart import child_environment, engine_command, fresh
from warmup.find import ITERATIONS, find_iterations
from warmup.misses import probe_command
from warmup.plan import ladder_plan
from warmup.unseen import Probe

ROOT = Path(__file__).resolve().parents[1]
TARGETS = ("openvino-cpu", "onnxruntime-cpu")
CALLERS, DRAWS, REQUESTS, USUAL_RUNS = 4, 4, 125, 5
"""100 steady requests: a process's first fifth does not count as steady."""
GATE_LIMIT, GATE_REPEATS, GATE_SPREAD, GATE_TRIALS, GATE_MAX = 1.5, 50, 0.12, 15, 45
SIDE_CONFIDENCE = 0.999


def example() -> tuple[Path, str, tuple[int, ...], AxisRange]:
    """Model file, input name, shape of a row and batch range of the embedded example."""
    return ROOT / "build/quantized/cpu/model.onnx", "image", (1, 32, 32), AxisRange(1, 8, 16)


def efficientnet(work: Path, images: Path) -> tuple[Path, str, tuple[int, ...], AxisRange]:
    """The same of EfficientNet-Lite0, quantized as `benchmarks/quantization.py` does for its row `qwarm-ptq`, once."""
    import quantization

    if not (work / "labels.npy").is_file():
        work.mkdir(parents=True, exist_ok=True)
        quantization.prepare(work, images)
    quantization.quantized("qwarm-ptq", work)
    return work / "qwarm-ptq/model.onnx", "image", (3, 224, 224), AxisRange(1, 4, 8)


def built(model: Path, name: str, shape: tuple[int, ...], batch: AxisRange, target: str, folder: Path) -> Engine:
    """The engine of an INT8 model in `folder`/engine, and rows beside it."""
    import onnx

    graph = onnx.load(model).graph
    inputs = (TensorSpec(name, "float32", ("batch", *shape)),)
    outputs = tuple(TensorSpec(value.name, "float32", ("batch", value.type.tensor_type.shape.dim[1].dim_value)) for value in graph.output)
    folder.mkdir(parents=True, exist_ok=True)
    engine = build_once(model.read_bytes(), target, inputs=inputs, outputs=outputs, shapes={"batch": batch}, folder=folder)
    np.savez(folder / "rows.npz", **{name: np.random.default_rng(0).uniform(-1, 1, (batch.max, *shape)).astype(np.float32)})
    return engine


def usual(model: Path, target: str, batches: list[int], started: int) -> None:
    """Child: what is commonly done, then the time since it was started."""
    feeds = lambda name, shape, batch: {name: np.random.default_rng(0).uniform(-1, 1, (batch, *shape[1:])).astype(np.float32)}  # noqa: E731
    if target == "openvino-cpu":
        import openvino

        compiled = openvino.Core().compile_model(str(model), "CPU")
        name, shape = compiled.input(0).any_name, [axis.get_length() if axis.is_static else 0 for axis in compiled.input(0).partial_shape]
        run: Callable[[Mapping[str, np.ndarray]], object] = compiled.create_infer_request().infer
    else:
        import onnxruntime

        session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        name, shape = session.get_inputs()[0].name, session.get_inputs()[0].shape
        run = partial(session.run, None)
    for batch in batches:
        for _ in range(USUAL_RUNS):
            run(feeds(name, shape, batch))
    print(json.dumps({"ready_ms": (time.monotonic_ns() - started) / 1e6}))


def floor(folder: Path, rows_file: Path, plan: Path, started: int) -> None:
    """Child: imports, load, and one run a declared shape in every slot."""
    from engines.stored import read_engine
    from warmup.runner import run_plan

    wanted, engine = WarmupPlan.load(plan), read_engine(folder)
    engines.backend(engine.target).preload(engine.target)
    with np.load(rows_file) as rows, engines.open_engine(folder, concurrency=wanted.concurrency) as session:
        run_plan(session, wanted, dict(rows))
        print(json.dumps({"ready_ms": (time.monotonic_ns() - started) / 1e6}))


def ready_ms(command: list[str]) -> float:
    """What a child of this file prints."""
    done = subprocess.run([*command, str(time.monotonic_ns())], env=child_environment(), capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["ready_ms"])


def variant(label: str, model: Path, name: str, shape: tuple[int, ...], batch: AxisRange, target: str, processes: int, work: Path) -> dict[str, Any]:
    """Every figure of one model on one target; raw samples under `raw`."""
    folder = work / f"{label}-{target}"
    engine = built(model, name, shape, batch, target, folder)
    rows_file, batches = folder / "rows.npz", [1 << power for power in range(batch.max.bit_length())]
    with np.load(rows_file) as loaded:
        rows = dict(loaded)
    ladder = partial(ladder_plan, engine, rows, batches=batches, concurrency=[1, CALLERS], max_seconds=300.0, preprocess_sha256="")
    with bar(f"{label} {target}: find a plan") as report:
        iterations, found_by = find_iterations(folder / "engine", rows_file, ladder, progress=report)
    plans = {}
    for number in sorted({*range(1, ITERATIONS[3] + 1), *ITERATIONS, iterations}):
        plans[number] = folder / f"plan-{number}.json"
        ladder(iterations=number, found_by="the exhaustive search").save(plans[number])
    rows_folder = {"rows": rows_file}
    timed = {
        "cold": engine_command(folder / "engine", "cold", requests=REQUESTS, **rows_folder),
        "warm": engine_command(folder / "engine", "warm", plan=plans[iterations], requests=REQUESTS, **rows_folder),
    }
    short = {n: engine_command(folder / "engine", f"iterations-{n}", plan=plan, requests=60, **rows_folder) for n, plan in plans.items()}
    child = [sys.executable, str(Path(__file__).resolve())]
    ready = {
        "usual": [*child, "--usual", str(model), target, ",".join(map(str, batches))],
        "floor": [*child, "--floor", str(folder / "engine"), str(rows_file), str(plans[1])],
    }
    look = probe_command(folder / "engine", rows=rows_file, plan=plans[iterations], draws=DRAWS, callers=CALLERS)
    trials: dict[str, list[Trial]] = {key: [] for key in (*timed, *map(str, short))}
    probes: list[Probe] = []
    reached: dict[str, list[float]] = {key: [] for key in ready}
    environment = child_environment()
    with bar(f"{label} {target}: {processes} processes of each kind") as report:
        for number in range(processes):
            for key, command in timed.items():
                trials[key].append(fresh(key, [*command, "--started", str(time.monotonic_ns())], Trial, environment))
            for key, command in ready.items():
                reached[key].append(ready_ms(command))
            probes.append(fresh("unseen", [*look, "--seed", str(number)], Probe, environment))
            if number < max(5, processes // 6):
                for count, command in short.items():
                    trials[str(count)].append(fresh(str(count), [*command, "--started", str(time.monotonic_ns())], Trial, environment))
            report(number + 1, processes, "")
    return {"model": label, "target": target, "processes": processes, "plan_iterations": iterations, "found_by": found_by} | figures(
        trials, probes, reached, list(plans)
    )


def figures(trials: Mapping[str, list[Trial]], probes: list[Probe], reached: Mapping[str, list[float]], iterations: list[int]) -> dict[str, Any]:
    """The acceptance's figures from raw samples: medians over processes, except `first_over_p50_p95`."""
    first = latency.per_process(trials["warm"], latency.first_over_p50)
    warm_ready = [trial.phases_ms["ready"] for trial in trials["warm"]]
    good = [n for n in iterations if statistics.median(latency.per_process(trials[str(n)], latency.first_over_p50)) <= 1.15]
    return {
        "cold_first_over_p50": statistics.median(latency.per_process(trials["cold"], latency.first_over_p50)),
        "first_over_p50_median": statistics.median(first),
        "first_over_p50_p95": float(np.quantile(first, 0.95)),
        "p99_over_p50": statistics.median(latency.per_process(trials["warm"], latency.p99_over_p50)),
        "control_p99_over_p50": statistics.median(latency.per_process(trials["warm"], latency.p99_over_p50, control=True)),
        "unseen_batch_over_p50": statistics.median(one.first_ms / one.steady_ms for probe in probes for one in probe.unseen),
        "concurrent_first_over_p50": statistics.median(ms / p.together_steady_ms for p in probes if p.together_steady_ms for ms in p.together_ms),
        "ready_over_usual": statistics.median(ours / theirs for ours, theirs in zip(warm_ready, reached["usual"], strict=True)),
        "ready_over_floor": statistics.median(ours / theirs for ours, theirs in zip(warm_ready, reached["floor"], strict=True)),
        "shortest_iterations": min(good, default=None),
        "raw": {
            "trials": {key: [trial.to_json() for trial in ran] for key, ran in trials.items()},
            "probes": [probe.to_json() for probe in probes],
            "ready_ms": dict(reached),
        },
    }


def simulated(ratio: float, random: np.random.Generator) -> Trial:
    """A process whose first request takes about `ratio` times its steady requests; its control workload is as noisy, and steady."""
    quiet = lambda count: np.exp(0.02 * random.standard_normal(count))  # noqa: E731
    first = ratio * float(np.exp(GATE_SPREAD * random.standard_normal()))
    control = quiet(60)
    return Trial("warm", {}, (first, *quiet(REQUESTS).tolist()), tuple(control.tolist()), 0.0)


def gate() -> list[dict[str, float]]:
    """How `release/gates.py` decides on `first_request_over_p50`, extended by trials as `validate` does, where the true ratio is known."""
    from release.gates import latency_checks

    limits: Any = SimpleNamespace(side_confidence=SIDE_CONFIDENCE, int8_speedup=1.0, first_request_over_p50=GATE_LIMIT, p99_over_p50=2.5)
    random, found = np.random.default_rng(0), []
    for true_ratio in (0.8, 1.0, 1.25):
        verdicts = []
        for _ in range(GATE_REPEATS):
            trials: tuple[Trial, ...] = ()
            verdict = Verdict.UNDECIDED
            while verdict is Verdict.UNDECIDED and len(trials) < GATE_MAX:
                trials += tuple(simulated(GATE_LIMIT * true_ratio, random) for _ in range(GATE_TRIALS))
                measured: Any = SimpleNamespace(coldstart=SimpleNamespace(trials=trials))
                verdict = next(check.verdict for check in latency_checks(measured, limits) if check.name == "first_request_over_p50")
            verdicts.append(verdict)
        shares = {name: verdicts.count(Verdict[name.upper()]) / len(verdicts) for name in ("pass", "fail", "undecided")}
        found.append({"true_ratio": true_ratio, **shares})
    return found


def main() -> int:
    if sys.argv[1:2] == ["--usual"]:
        usual(Path(sys.argv[2]), sys.argv[3], [int(size) for size in sys.argv[4].split(",")], int(sys.argv[5]))
        return 0
    if sys.argv[1:2] == ["--floor"]:
        floor(Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="file to write")
    parser.add_argument("--processes", type=int, default=30, help="fresh processes of each kind (default: %(default)s)")
    parser.add_argument("--models", default="efficientnet-lite0,digits", help="names, separated by commas (default: %(default)s)")
    parser.add_argument("--images", type=Path, default=ROOT.parent / "shared/data/images", help="pictures for EfficientNet (default: %(default)s)")
    parser.add_argument("--work", type=Path, help="a folder that keeps what was made")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qwarm-warmup-") as temporary:
        work = (arguments.work or Path(temporary)).resolve()
        makers = {"efficientnet-lite0": partial(efficientnet, work, arguments.images), "digits": example}
        variants = []
        for label in arguments.models.split(","):
            model, name, shape, batch = makers[label]()
            for target in TARGETS:
                variants.append(variant(label, model, name, shape, batch, target, arguments.processes, work))
                shown = {key: round(value, 3) if isinstance(value, float) else value for key, value in variants[-1].items() if key != "raw"}
                print(json.dumps(shown), flush=True)
    result = {"variants": variants, "gate": gate()}
    print(json.dumps(result["gate"]))
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(result) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
