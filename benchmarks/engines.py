"""Engines and their cache, measured on EfficientNet-Lite0 in one run: ratios, each from fresh processes that take turns.

    python benchmarks/engines.py --json build/bench/engines.json

- `load_over_build`: opening the stored engine, every byte hashed, over reading and compiling the ONNX with the target's own options: the median of
  the rounds' ratios, runtimes imported before the clock starts. `load_over_whole_build` is over our build, which also stores, compares and counts.
  `bare_load_over_build` is the floor of it: the runtime's own call on the stored files, nothing hashed, and ONNX Runtime not even packing weights
  (which makes its answers wrong, see `engines/ort.py`).
- `int8_share` of multiply-accumulates, from each engine's census; `int8_speedup`, the float engine's p50 over the INT8 engine's, at batch 1.
- `session_overhead_us`: a session's call less the bare runtime's call, in blocks that take turns, on a network of a few thousand products.
- `kill_trials`, `wrong_reads`: a writer to the cache killed at a random moment, a thousand times, and reads that gave other bytes than were written.
- `builders`: four processes that want one key at once; how often it was built, and how many got the right bytes.

Exit code 1 where a limit is missed; each is named. Rows are made up: neither speed nor the census depends on ranges. `--work FOLDER` keeps models.
"""

from __future__ import annotations

import argparse
import io
import json
import os
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
from cache_store import BUILDERS, builders, kills
from ranges import FACTORY, SHAPE

ROOT = Path(__file__).resolve().parents[1]


TARGETS = ("openvino-cpu", "onnxruntime-cpu")
ROUNDS, WHOLE_BUILDS, CALLS, KILLS = 7, 3, 40, 1000
LIMITS = {
    "load_over_build": {"openvino-cpu": 0.35, "onnxruntime-cpu": 0.15},
    "int8_speedup": {"openvino-cpu": 1.5, "onnxruntime-cpu": 1.3},
}
INT8_SHARE, OVERHEAD_US, OVERHEAD_SHARE, PAUSE_S = 0.90, 20.0, 0.01, 50e-6
Figures = dict[str, Any]


def prepare(work: Path) -> None:
    """Write `work`/float.onnx and `work`/int8.onnx, and tiny.onnx for the overhead."""
    import safetensors.torch
    from tiny_onnx import conv_net

    from calibration.export import export
    from cli.quantize import Asked, quantize_file
    from pipeline.config import ModelConfig
    from pipeline.loading import load_object

    rows = np.random.default_rng(0).uniform(-1, 1, (32, *SHAPE)).astype(np.float32)
    (work / "model.py").write_text(FACTORY, encoding="utf-8")
    os.chdir(work)
    safetensors.torch.save_file(load_object("model.py:build", work)().state_dict(), work / "checkpoint.safetensors")
    model = {
        "factory": "model.py:build", "checkpoint": "checkpoint.safetensors", "inputs": {"image": {"shape": ["batch", *SHAPE]}}, "outputs": ["logits"],
        "shapes": {"batch": {"min": 1, "opt": 1, "max": 8}},
    }  # fmt: skip
    export(ModelConfig.model_validate(model), work, work / "export", {"image": rows[:8]})
    np.savez(work / "rows.npz", image=rows)
    quantize_file(work / "export/model.onnx", work / "rows.npz", work / "int8.onnx", Asked("cpu", method="max", min_sqnr_db=-100.0))
    (work / "export/model.onnx").rename(work / "float32.onnx")
    conv_net(work / "tiny.onnx", scheme="cpu")


def build(work: Path, name: str, target: str, folder: Path) -> Figures:
    """Our build of `work`/`name`.onnx, in this process."""
    from cli.build import build_file
    from pipeline.records import AxisRange

    report = build_file(work / f"{name}.onnx", target, folder, batch=AxisRange(1, 1, 8), store=None)
    return {"int8_share": report["int8_share"], "bytes": sum(file["bytes"] for file in report["files"].values())}


def compiled(model: Path, target: str, precision: str) -> Callable[[dict[str, np.ndarray]], object]:
    """The bare runtime's call on an ONNX file, read and compiled with the target's options."""
    if target == "openvino-cpu":
        from engines import ov
        from engines.ov_import import openvino_module

        core = openvino_module().Core()
        request = core.compile_model(core.read_model(str(model)), "CPU", ov.SETTINGS).create_infer_request()
        return lambda rows: request.infer(rows, share_inputs=True, share_outputs=False)
    import onnxruntime

    from engines import ort

    options = ort.session_options(onnxruntime, ort.SETTINGS["graph_optimization_level"])
    session = onnxruntime.InferenceSession(str(model), options, providers=ort.PROVIDERS, disabled_optimizers=ort.DISABLED[precision])
    return lambda rows: session.run(None, rows)


def bare_load(folder: Path, target: str) -> object:
    """The runtime's own call on stored files, nothing hashed; see above."""
    if target == "openvino-cpu":
        from engines import ov
        from engines.ov_import import openvino_module

        return openvino_module().Core().import_model(io.BytesIO(next(folder.glob("*.blob")).read_bytes()), "CPU", ov.SETTINGS)
    import onnxruntime

    from engines import ort

    options = ort.session_options(onnxruntime, "ORT_DISABLE_ALL")
    options.add_session_config_entry("session.disable_prepacking", "1")
    return onnxruntime.InferenceSession(str(folder / ort.GRAPH), options, providers=ort.PROVIDERS)


def child(mode: str, target: str, name: str, work: Path) -> Figures:
    """One measured process."""
    import engines

    engines.backend(target).preload(target)
    folder, precision = work / f"{target}-{name}", "float32" if name == "float32" else "int8"
    started = time.perf_counter()
    if mode == "compile":
        compiled(work / f"{name}.onnx", target, precision)
        return {"seconds": time.perf_counter() - started}
    if mode == "bare":
        bare_load(folder, target)
        return {"seconds": time.perf_counter() - started}
    if mode == "build":
        with tempfile.TemporaryDirectory(dir=work) as scratch:
            build(work, name, target, Path(scratch) / "engine")
        return {"seconds": time.perf_counter() - started}
    with engines.open_engine(folder) as session:
        opened = time.perf_counter() - started
        spec = session.engine.inputs[0]
        rows = {spec.name: np.random.default_rng(0).standard_normal((1, *spec.shape[1:])).astype(np.float32)}
        if mode == "overhead":
            return overhead(session.run, bare(session), rows)
        times = timed(lambda: session.run(rows), 10 + CALLS)[10:]
        return {"seconds": opened, "p50": statistics.median(times)}


def bare(session: Any) -> Callable[[dict[str, np.ndarray]], object]:
    """What the session itself calls, on its own request slot."""
    slot = session._free.get()
    session._free.put(slot)
    if session.engine.target == "openvino-cpu":
        port = next(iter(session._ports.values()))
        return lambda rows: slot.infer(rows, share_inputs=True, share_outputs=False)[port]
    names = [spec.name for spec in session.engine.outputs]
    return lambda rows: slot.run(names, rows)


def timed(call: Callable[[], object], count: int) -> list[float]:
    """Seconds of each call, after a pause in which nothing is done: a call within a few microseconds of the last finds the runtime's threads still
    awake (ONNX Runtime: 24 instead of 44 us), which no served request does."""
    times = []
    for _ in range(count):
        pause = time.perf_counter() + PAUSE_S
        while time.perf_counter() < pause:
            pass
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return times


def overhead(ours: Callable[..., object], theirs: Callable[..., object], rows: dict[str, np.ndarray]) -> Figures:
    """Blocks of either call take turns; of each the quickest twentieth of the blocks' medians, because other processes only ever add time."""
    blocks: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(200):
        for name, call in (("ours", ours), ("theirs", theirs)):
            blocks[name].append(statistics.median(timed(lambda call=call: call(rows), 20)[5:]))
    low = {name: statistics.quantiles(values, n=20)[0] for name, values in blocks.items()}
    return {"overhead_us": 1e6 * (low["ours"] - low["theirs"]), "overhead_share": low["ours"] / low["theirs"] - 1}


def fresh(work: Path, mode: str, target: str, name: str) -> Figures:
    command = [sys.executable, str(Path(__file__).resolve()), "--child", mode, target, name, "--work", str(work)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"{mode} of {name} for {target} ended with {ran.returncode}: {ran.stderr[-2000:]}")
    figures: Figures = json.loads(ran.stdout.splitlines()[-1])
    return figures


def engines_measured(work: Path) -> Figures:
    found: Figures = {
        "load_over_build": {}, "bare_load_over_build": {}, "load_over_whole_build": {}, "float_load_over_build": {}, "int8_share": {},
        "int8_speedup": {},
    }  # fmt: skip
    overheads = {}
    for target in TARGETS:
        for name in ("int8", "float32", "tiny"):
            built = build(work, name, target, work / f"{target}-{name}")
            if name == "int8":
                found["int8_share"][target] = built["int8_share"]
        rounds = []
        for number in range(ROUNDS):
            runs = {(mode, name): fresh(work, mode, target, name) for mode in ("load", "compile", "bare") for name in ("int8", "float32")}
            if number < WHOLE_BUILDS:
                runs["build", "int8"] = fresh(work, "build", target, "int8")
            rounds.append(runs)
            print(f"{target}: round {number + 1} of {ROUNDS}", file=sys.stderr)

        def ratio(top: tuple[str, str, str], bottom: tuple[str, str, str], rounds: list[Any] = rounds) -> float:
            return statistics.median(runs[top[:2]][top[2]] / runs[bottom[:2]][bottom[2]] for runs in rounds if bottom[:2] in runs)

        load = ("load", "int8", "seconds")
        found["load_over_build"][target] = ratio(load, ("compile", "int8", "seconds"))
        found["bare_load_over_build"][target] = ratio(("bare", "int8", "seconds"), ("compile", "int8", "seconds"))
        found["load_over_whole_build"][target] = ratio(load, ("build", "int8", "seconds"))
        found["float_load_over_build"][target] = ratio(("load", "float32", "seconds"), ("compile", "float32", "seconds"))
        found["int8_speedup"][target] = ratio(("load", "float32", "p50"), ("load", "int8", "p50"))
        overheads[target] = fresh(work, "overhead", target, "tiny")
        found.setdefault("raw", {})[target] = [{" ".join(key): value for key, value in runs.items()} for runs in rounds]
    found["session_overhead_us"] = {target: figures["overhead_us"] for target, figures in overheads.items()}
    found["session_overhead_share"] = {target: figures["overhead_share"] for target, figures in overheads.items()}
    return found


def missed(found: Figures) -> list[str]:
    """Each limit that is not held, in one line."""
    lines = []
    for target in found["int8_share"]:
        if found["load_over_build"][target] > LIMITS["load_over_build"][target]:
            lines.append(f"{target}: load over build is {found['load_over_build'][target]:.2f}, at most {LIMITS['load_over_build'][target]}")
        if found["int8_speedup"][target] < LIMITS["int8_speedup"][target]:
            lines.append(f"{target}: INT8 is {found['int8_speedup'][target]:.2f}x as fast, at least {LIMITS['int8_speedup'][target]}")
        if found["int8_share"][target] < INT8_SHARE:
            lines.append(f"{target}: {found['int8_share'][target]:.1%} in INT8, at least {INT8_SHARE:.0%}")
        if found["session_overhead_us"][target] > OVERHEAD_US and found["session_overhead_share"][target] > OVERHEAD_SHARE:
            lines.append(
                f"{target}: the session adds {found['session_overhead_us'][target]:.1f} us, at most {OVERHEAD_US:g} us or {OVERHEAD_SHARE:.0%}"
            )
    if found["wrong_reads"]:
        lines.append(f"{found['wrong_reads']} wrong reads after {found['kill_trials']} kills")
    if found["builders"] != {"processes": BUILDERS, "builds": 1, "right": BUILDERS}:
        lines.append(f"builders of one key: {found['builders']}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write every figure there")
    parser.add_argument("--work", type=Path, help="a folder to keep the models in, or one that has them")
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(*options.child, options.work)))
        return 0
    sys.path.insert(0, str(ROOT / "tests/engines"))  # tiny_onnx
    json_path = options.json.resolve() if options.json else None  # `prepare` changes the current folder
    with tempfile.TemporaryDirectory(prefix="qwarm-bench-") as scratch:
        work = (options.work or Path(scratch)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        found = kills(Path(scratch) / "kills", options.kills)
        (Path(scratch) / "builders").mkdir()
        found |= builders(Path(scratch) / "builders")
        if not (work / "tiny.onnx").is_file():
            prepare(work)
        found |= engines_measured(work)
    faults = missed(found)
    print(json.dumps({name: value for name, value in found.items() if name != "raw"}, indent=2))
    print("\n".join(faults) or "every limit is held")
    if json_path:
        from pipeline.files import write_json

        write_json(json_path, found | {"missed": faults})
    return int(bool(faults))


if __name__ == "__main__":
    raise SystemExit(main())
