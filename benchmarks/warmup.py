"""Is the first request hot? INT8 EfficientNet-Lite0 and the embedded example, on each CPU target, in fresh processes.

    python benchmarks/warmup.py --json build/bench/warmup.json --work build/bench/warmup --images ../shared/data/images

For each model and target the product's finder makes a plan (`warmup/find.py`); then kinds of processes take turns: `cold` (no plan), `warm`
(plan), `met` (plan, then four callers at once, then sizes off its ladder), `ready` (benchmarks/opened.py: a host that opens the plan in a signed
bundle), and with the bare runtime (benchmarks/bare.py) `usual` and `floor`, what is commonly done and the least that reaches every shape and slot,
`changes`, the sizes of `met` in its order, and `steady`, its own p99. Times count from before the process was started.

`plan_iterations` and `shortest_iterations` are runs in all steps together; the shortest is that of an exhaustive search over iterations, of every
situation or of the typical request alone, shortest first, each judged as the finder judges its own. A first request of an unseen size is held to
requests of that size in a row (`unseen_batch_over_p50`), which the bare runtime cannot keep either (`bare_change_over_p50`), and to later ones that
came behind the same other size (`unseen_batch_over_like`).

Every process's raw sample is added to --work/MODEL-TARGET/raw.json at once: a run that ends (`--seconds`, or killed) goes on where it was. The
figures are written when all is there. Needs `make repro` for the example's model, and the pictures for EfficientNet-Lite0; `--variants` chooses.

`gate` is benchmarks/latency_gate.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import folder_last  # noqa: F401
import numpy as np
import signed
from latency_gate import gate

from engines.once import build_once
from pipeline.config import load_config
from pipeline.files import replacing
from pipeline.progress import bar
from pipeline.records import AxisRange, Engine, Situation, TensorSpec, Trial, WarmupPlan
from warmup import latency
from warmup.coldstart import child_environment, engine_command, fresh, visit_command
from warmup.find import CONFIRMING, OPENING, PROCESSES, Seen, Steps, find_plan
from warmup.misses import draw
from warmup.plan import Maker
from warmup.visit import Visit

ROOT = Path(__file__).resolve().parents[1]
TARGETS = ("openvino-cpu", "onnxruntime-cpu")
CALLERS, DRAWS, REQUESTS = 4, 4, 125
"""100 steady requests: a process's first fifth does not count as steady."""
FIRSTS = {"digits": 100}
"""Processes of the kind `warm` where others are fewer: a start is short, and of 30 the 95th percentile is one process."""
UNIFORM, TYPICAL = (1, 2, 3, 4, 5, 7, 10), (1, 2, 4, 8, 16, 32, 64)

Model = tuple[Path, str, tuple[int, ...], AxisRange]
"""File, input name, shape of a row and batch range."""


def example(work: Path, images: Path) -> Model:  # noqa: ARG001
    """The embedded example's model, copied once: what is measured must not change between two runs."""
    kept = work / "digits.onnx"
    if not kept.is_file():
        kept.write_bytes((ROOT / "build/chosen/cpu/model.onnx").read_bytes())
    return kept, "image", (1, 32, 32), AxisRange(1, 8, 16)


def efficientnet(work: Path, images: Path) -> Model:
    """EfficientNet-Lite0, quantized as `benchmarks/quantization.py` does for its row `qwarm-ptq`, once."""
    kept = work / "qwarm-ptq/model.onnx"
    if not kept.is_file():
        import quantization

        quantization.prepare(work, images)
        quantization.quantized("qwarm-ptq", work)
    return kept, "image", (3, 224, 224), AxisRange(1, 4, 8)


MODELS = {"efficientnet-lite0": efficientnet, "digits": example}


def settings(label: str, target: str) -> dict[str, Any]:
    """What the target is told: for the example what its params.yaml says."""
    return load_config(ROOT / "params.yaml").targets[target].settings() if label == "digits" else {}


def built(model: Model, target: str, folder: Path, settings: Mapping[str, Any]) -> Engine:
    """The engine in `folder`/engine, and rows beside it; once."""
    if (folder / "rows.npz").is_file():
        return Engine.load(folder / "engine/engine.json")
    import onnx

    file, name, shape, batch = model
    graph = onnx.load(file).graph
    inputs = (TensorSpec(name, "float32", ("batch", *shape)),)
    outputs = tuple(TensorSpec(value.name, "float32", ("batch", value.type.tensor_type.shape.dim[1].dim_value)) for value in graph.output)
    folder.mkdir(parents=True, exist_ok=True)
    engine = build_once(file.read_bytes(), target, inputs=inputs, outputs=outputs, shapes={"batch": batch}, folder=folder, settings=settings)
    np.savez(folder / "rows.npz", **{name: np.random.default_rng(0).uniform(-1, 1, (batch.max, *shape)).astype(np.float32)})
    return engine


def printed(script: str, *arguments: object) -> dict[str, Any]:
    """What a child of this folder prints."""
    command = [sys.executable, "-P", str(Path(__file__).with_name(script)), *map(str, arguments)]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


class Variant:
    """One model on one target, measured process by process; resumable."""

    def __init__(self, label: str, target: str, work: Path, images: Path, processes: int) -> None:
        self.label, self.target, self.processes = label, target, processes
        self.folder = work / f"{label}-{target}"
        self.model = MODELS[label](work, images)
        self.engine = built(self.model, target, self.folder, settings(label, target))
        self.rows = self.folder / "rows.npz"
        batch = self.model[3]
        self.batches = sorted({*(1 << power for power in range(batch.max.bit_length())), batch.max})
        with np.load(self.rows) as rows:
            self.maker = Maker(self.engine, dict(rows), self.batches, [1, CALLERS], 300.0, signed.PREPROCESS_SHA256)
        raw = self.folder / "raw.json"
        self.samples: dict[str, list[Any]] = json.loads(raw.read_text()) if raw.is_file() else {}

    def prepare(self) -> None:
        """The finder's plan and the bundle with it, once."""
        if not (self.folder / "plan.json").is_file():
            with bar(f"{self.label} {self.target}: find a plan") as report:
                found = find_plan(self.folder / "engine", self.rows, self.maker, progress=report)
            found.save(self.folder / "plan.json")
        self.plan = WarmupPlan.load(self.folder / "plan.json")
        self.bundle, self.key = signed.pack(self.folder / "engine", self.folder / "plan.json", self.rows, self.model[0], self.folder / "signed")

    def wanted(self) -> dict[str, int]:
        """How many processes of each kind."""
        kinds = dict.fromkeys(("cold", "warm", "ready", "usual", "floor", "met", "changes", "steady"), self.processes)
        return kinds | {"warm": max(self.processes, FIRSTS.get(self.label, 0))}

    def one(self, kind: str, number: int) -> Any:
        """The sample of one new process."""
        batches = ",".join(map(str, self.batches))
        if kind == "ready":
            return printed("opened.py", self.bundle, self.key, self.folder / "state", time.monotonic_ns())["ready_ms"]
        if kind in ("usual", "floor"):
            what = self.model[0] if kind == "usual" else self.folder / "engine"
            return printed("bare.py", kind, what, self.target, batches, CALLERS, time.monotonic_ns())["ready_ms"]
        if kind == "steady":
            return printed("bare.py", kind, self.folder / "engine", self.target, 1, 1, REQUESTS * 4 // 5)["p99_over_p50"]
        sizes = draw(self.engine.shapes, self.plan.ladder, DRAWS, number)
        if kind == "changes":
            rungs = ",".join(str(next(rung for rung in self.batches if rung >= size["batch"])) for size in sizes)
            return printed("bare.py", kind, self.folder / "engine", self.target, batches, CALLERS, rungs)["first_over_row"]
        if kind == "met":
            return self.visited([Situation({"batch": 1}, CALLERS), *(Situation(size, 1) for size in sizes)], "plan.json")
        plan = self.folder / "plan.json" if kind == "warm" else None
        command = engine_command(self.folder / "engine", kind, rows=self.rows, plan=plan, requests=REQUESTS)
        return fresh(kind, [*command, "--started", str(time.monotonic_ns())], Trial, child_environment()).to_json()

    def visited(self, situations: Sequence[Situation], plan: str) -> Any:
        command = visit_command(self.folder / "engine", rows=self.rows, situations=situations, plan=self.folder / plan, opening=OPENING)
        return fresh(plan, command, Visit, child_environment()).to_json()

    def exhaustive(self) -> dict[str, Steps]:
        """The plans of the exhaustive search, the shortest first."""
        situations = self.maker.situations()
        plans: dict[str, Steps] = {f"typical-{number}": ((situations[-1], number),) for number in TYPICAL}
        plans |= {f"uniform-{number}": tuple((situation, number) for situation in situations) for number in UNIFORM}
        return dict(sorted(plans.items(), key=lambda one: runs_in(one[1])))

    def run(self, deadline: float) -> bool:
        """Measure until all is there (True) or the time is over."""
        self.prepare()
        wanted = self.wanted()
        with bar(f"{self.label} {self.target}: fresh processes of each kind") as report:
            for number in range(max(wanted.values())):
                if not all(self.sampled(kind, number, deadline) for kind in wanted if number < wanted[kind]):
                    return False
                report(number + 1, max(wanted.values()), "")
        order = self.maker.situations()[::-1]
        with bar(f"{self.label} {self.target}: the exhaustive search") as report:
            for place, (name, steps) in enumerate(self.exhaustive().items()):
                report(place, len(self.exhaustive()), name)
                self.maker.plan(steps, "the exhaustive search").save(self.folder / f"{name}.json")
                for number in range(PROCESSES + CONFIRMING):  # the finder's own rule: a plan that may be hot by few is judged by more
                    if number == PROCESSES and not self.seen(name).may_be_hot:
                        break
                    if not self.sampled(name, number, deadline, order):
                        return False
                if self.seen(name).hot:
                    break
        return True

    def sampled(self, kind: str, number: int, deadline: float, order: Sequence[Situation] = ()) -> bool:
        """Whether process `number` of this kind is measured: now, unless it is already or the time is over."""
        mine = self.samples.setdefault(kind, [])
        if len(mine) <= number:
            if time.monotonic() > deadline:
                return False
            mine.append(self.visited(order, f"{kind}.json") if order else self.one(kind, number))
            with replacing(self.folder / "raw.json", durable=False) as temporary:
                temporary.write_text(json.dumps(self.samples), encoding="utf-8")
        return True

    def seen(self, kind: str) -> Seen:
        return Seen(tuple(Visit.from_json(sample) for sample in self.samples[kind]))

    def figures(self) -> dict[str, Any]:
        """The acceptance's figures from raw samples: medians over processes, except `first_over_p50_p95`."""
        cold, warm = ([Trial.from_json(one) for one in self.samples[kind]] for kind in ("cold", "warm"))
        visits = self.seen("met").visits
        unseen = [met for visit in visits for met in visit.met if met.situation.callers == 1]
        first, control = latency.per_process(warm, latency.first_over_p50), latency.per_process(warm, latency.first_over_p50, control=True)
        ready, usual, floor = (self.samples[kind] for kind in ("ready", "usual", "floor"))
        over = lambda ours, theirs: statistics.median(one / other for one, other in zip(ours, theirs, strict=True))  # noqa: E731
        changed = statistics.median(ratio for process in self.samples["changes"] for ratio in process)
        unseen_over_p50 = statistics.median(met.first_ms[0] / met.steady_ms for met in unseen)
        tried = [name for name in self.exhaustive() if name in self.samples]
        return {
            "model": self.label,
            "target": self.target,
            "processes": len(ready),
            "first_processes": len(first),
            "cold_first_over_p50": statistics.median(latency.per_process(cold, latency.first_over_p50)),
            "first_over_p50_median": statistics.median(first),
            "first_over_p50_p95": float(np.quantile(first, 0.95)),
            "control_first_over_p50_p95": float(np.quantile(control, 0.95)),
            "p99_over_p50": statistics.median(latency.per_process(warm, latency.p99_over_p50)),
            "control_p99_over_p50": statistics.median(latency.per_process(warm, latency.p99_over_p50, control=True)),
            "bare_p99_over_p50": statistics.median(self.samples["steady"]),
            "unseen_batch_over_p50": unseen_over_p50,
            "bare_change_over_p50": changed,
            "unseen_batch_over_bare_change": unseen_over_p50 / changed,
            "unseen_batch_over_like": statistics.median(met.ratio for met in unseen),
            "concurrent_first_over_p50": statistics.median(taken / visit.p50_ms for visit in visits for taken in visit.opening_ms[0]),
            "ready_ms": statistics.median(ready),
            "ready_over_usual": over(ready, usual),
            "ready_over_floor": over(ready, floor),
            "floor_over_usual": over(floor, usual),
            "plan_iterations": runs_in([(step, step.iterations) for step in self.plan.steps]),
            "shortest_iterations": runs_in(self.exhaustive()[tried[-1]]) if self.seen(tried[-1]).hot else None,
            "shortest_plan": tried[-1],
            "found_by": self.plan.found_by,
            "raw": self.samples,
        }


def runs_in(steps: Sequence[tuple[Any, int]]) -> int:
    return sum(number for _, number in steps)


def shown(figures: Mapping[str, Any]) -> str:
    return json.dumps({key: round(value, 3) if isinstance(value, float) else value for key, value in figures.items() if key != "raw"})


def main() -> int:
    every = [f"{label}/{target}" for label in MODELS for target in TARGETS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="file to write when every variant is measured")
    parser.add_argument("--work", type=Path, required=True, help="a folder that keeps models, plans and raw samples")
    parser.add_argument("--processes", type=int, default=30, help="fresh processes of each kind (default: %(default)s)")
    parser.add_argument("--variants", default=",".join(every), help="MODEL/TARGET, separated by commas (default: %(default)s)")
    parser.add_argument("--images", type=Path, default=ROOT.parent / "shared/data/images", help="pictures for EfficientNet (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after them; the next run goes on")
    arguments = parser.parse_args()
    work, deadline = arguments.work.resolve(), time.monotonic() + arguments.seconds
    work.mkdir(parents=True, exist_ok=True)
    variants = []
    for name in arguments.variants.split(","):
        label, _, target = name.partition("/")
        variant = Variant(label, target, work, arguments.images, arguments.processes)
        if not variant.run(deadline):
            print(f"{name}: {sum(map(len, variant.samples.values()))} of {sum(variant.wanted().values())} processes; run again to go on")
            return 0
        variants.append(variant.figures())
        print(shown(variants[-1]), flush=True)
    result = {"variants": variants, "gate": gate()}
    print(json.dumps(result["gate"]))
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(result) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
