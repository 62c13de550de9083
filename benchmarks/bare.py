"""The runtimes alone, as a process of benchmarks/warmup.py: nothing is imported but numpy and the runtime.

    python benchmarks/bare.py usual MODEL.onnx openvino-cpu|onnxruntime-cpu 1,2,4,8 4 STARTED
    python benchmarks/bare.py floor ENGINE_FOLDER openvino-cpu|onnxruntime-cpu 1,2,4,8 4 STARTED

`usual` is what is commonly done to be ready: read and compile the ONNX file, random inputs five times a shape. `floor` is the least that reaches
every shape and slot: load the stored engine without a check, one inference a shape in each of 4 slots. Prints `{"ready_ms": ...}` since STARTED
(CLOCK_MONOTONIC, ns).
"""

import json
import sys
import time

import numpy as np

RUNS = 5


def openvino_runs(kind, path, slots):
    import openvino

    core = openvino.Core()
    if kind == "usual":
        compiled = core.compile_model(path, "CPU")
        requests = [compiled.create_infer_request()] * RUNS
    else:
        with open(f"{path}/model.blob", "rb") as blob:
            compiled = core.import_model(blob.read(), "CPU")
        requests = [compiled.create_infer_request() for _ in range(slots)]
    shape = [axis.get_length() if axis.is_static else 0 for axis in compiled.input(0).partial_shape]
    return compiled.input(0).any_name, shape, [request.infer for request in requests]


def onnxruntime_runs(kind, path, slots):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if kind == "floor":
        path = f"{path}/model.onnx"
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    found = session.get_inputs()[0]
    return found.name, found.shape, [lambda inputs: session.run(None, inputs)] * (RUNS if kind == "usual" else slots)


def main(kind, path, target, batches, slots, started):
    random = np.random.default_rng(0)
    name, shape, runs = (openvino_runs if target == "openvino-cpu" else onnxruntime_runs)(kind, path, int(slots))
    for batch in map(int, batches.split(",")):
        for run in runs:
            run({name: random.uniform(-1, 1, (batch, *shape[1:])).astype(np.float32)})
    print(json.dumps({"ready_ms": (time.monotonic_ns() - int(started)) / 1e6}))


if __name__ == "__main__":
    main(*sys.argv[1:])
