"""A model of more than 2 GiB through `qwarm quantize`, `lint`, `build` and `compare`: seconds and memory of each, and the SQNR of each engine.

    python benchmarks/big.py WORK --gib 2.4 --json FILE

writes a network by seed (a product of 1024 features and as many products of 1024 to 65,536 as make up the size, added up), with its weights in a side
file, and 64 rows. Memory is a command's largest resident memory, with the files that it maps. `WORK` needs twice the size; TMPDIR six times.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import folder_last  # noqa: F401
import numpy as np
import onnx
from onnx import TensorProto, helper

from pipeline.side_files import save_model
from pipeline.weights import Scratch, tensor_of

FEATURES, OUTPUTS, ROWS = 1024, 65536, 64
VERDICTS = ("lint", "compare")
"""These report a refusal, with exit 3, as well."""
TARGETS = ("onnxruntime-cpu", "openvino-cpu")


def network(folder: Path, gib: float, random: np.random.Generator) -> onnx.ModelProto:
    """A graph whose weights are in `folder`, where one at a time was written."""
    layers = max(1, round(gib * 2**30 / (4 * FEATURES * OUTPUTS)))
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["first"], name="first", transB=1), helper.make_node("Relu", ["first"], ["r"], name="relu")]
    weights = {"w": (FEATURES, FEATURES), "b": (FEATURES,)}
    total = ""
    for layer in range(layers):
        nodes.append(helper.make_node("Gemm", ["r", f"w{layer}", f"b{layer}"], [f"g{layer}"], name=f"gemm{layer}", transB=1))
        weights |= {f"w{layer}": (OUTPUTS, FEATURES), f"b{layer}": (OUTPUTS,)}
        if total:
            nodes.append(helper.make_node("Add", [total, f"g{layer}"], [f"s{layer}"], name=f"add{layer}"))
        total = nodes[-1].output[0]
    stored = []
    for name, shape in weights.items():
        value = random.standard_normal(shape, np.float32)
        value *= np.float32(np.sqrt(2 / FEATURES) if len(shape) > 1 else 0.1)
        stored.append(tensor_of(value, name, folder))
    ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])] for name, size in (("x", FEATURES), (total, OUTPUTS))]
    return helper.make_model(helper.make_graph(nodes, "big", *ports, stored), opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def write(work: Path, gib: float) -> None:
    """The network and its rows."""
    random, scratch = np.random.default_rng(0), Scratch()
    save_model(network(scratch.path, gib, random), work / "float.onnx")
    np.savez(work / "rows.npz", x=random.standard_normal((ROWS, FEATURES), np.float32))


def command(*words: str | Path) -> dict[str, Any]:
    """Run `qwarm` and give what it reports, with seconds and its largest resident memory in MB."""
    started = time.monotonic()
    child = subprocess.Popen([sys.executable, "-m", "cli.main", *map(str, words), "--json"], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    said = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    if (code := os.waitstatus_to_exitcode(status)) not in {0, 3 if words[0] in VERDICTS else 0}:
        raise SystemExit(f"qwarm {words[0]}: exit {code}\n{said}")
    row = {"seconds": time.monotonic() - started, "peak_rss_mb": used.ru_maxrss / 1024}
    print(f"qwarm {words[0]} {words[1] if words[0] != 'build' else words[3]}: {row['seconds']:.0f} s, {row['peak_rss_mb']:.0f} MB", flush=True)
    return row | {"said": json.loads(said)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="folder to write into")
    parser.add_argument("--gib", type=float, default=2.4, help="size of the weights (default: %(default)s)")
    parser.add_argument("--rounding", default="compensated", help="as for `qwarm quantize` (default: %(default)s)")
    parser.add_argument("--json", type=Path, required=True, help="file to write")
    arguments = parser.parse_args()
    work: Path = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    model, rows, quantized = work / "float.onnx", work / "rows.npz", work / "int8.onnx"
    writer = multiprocessing.get_context("spawn").Process(
        target=write, args=(work, arguments.gib)
    )  # a command's memory would begin with this process's
    writer.start()
    writer.join()
    result: dict[str, Any] = {"commands": {}, "sqnr_db": {}}
    done = result["commands"]
    done["quantize"] = command("quantize", model, "--calibration", rows, "--scheme", "cpu", "--rounding", arguments.rounding, "--out", quantized)
    result["sqnr_db"]["as written"] = done["quantize"].pop("said")["sqnr_db"]
    done["lint"] = command("lint", quantized, "--scheme", "cpu")
    result["lint"] = done["lint"].pop("said")["verdict"]
    for target in TARGETS:
        done[f"build {target}"] = command("build", quantized, "--target", target, "--out", work / target, "--no-cache")
        result[f"int8_share {target}"] = done[f"build {target}"].pop("said")["int8_share"]
        done[f"compare {target}"] = command("compare", model, work / target, "--data", rows)
        result["sqnr_db"][target] = next(iter(done[f"compare {target}"].pop("said")["outputs"].values()))["sqnr_db"]
    result["files_mb"] = {str(path.relative_to(work)): path.stat().st_size / 1e6 for path in sorted(work.rglob("*")) if path.stat().st_size > 1e6}
    print(json.dumps({name: result[name] for name in ("sqnr_db", "lint", "files_mb")}, indent=1))
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
