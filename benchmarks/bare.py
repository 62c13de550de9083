"""The runtimes alone, as a process of benchmarks/warmup.py: nothing is imported but numpy and the runtime.

    python benchmarks/bare.py usual MODEL.onnx openvino-cpu|onnxruntime-cpu 1,2,4,8 4 STARTED
    python benchmarks/bare.py floor ENGINE_FOLDER openvino-cpu|onnxruntime-cpu 1,2,4,8 4 STARTED
    python benchmarks/bare.py changes ENGINE_FOLDER openvino-cpu|onnxruntime-cpu 1,2,4,8 4 4,2,8
    python benchmarks/bare.py steady ENGINE_FOLDER openvino-cpu|onnxruntime-cpu 1 1 100

`usual` is what is commonly done to be ready: read and compile the ONNX file, random inputs five times a shape. `floor` is the least that reaches
every shape and slot: load the stored engine without a check, one inference a shape in each of 4 slots. Prints `{"ready_ms": ...}` since STARTED
(CLOCK_MONOTONIC, ns). `changes` goes on behind the floor as `warmup.visit` does: batch 1, then each of these sizes twice in a row, round
by round; `{"first_over_row": [...]}` is each size's first time over its later ones in a row, which is what a change of size costs the runtime.
`steady` asks batch 1 so many times behind 70 more, with the engine's settings: `{"p99_over_p50": ...}` is the runtime's own.
"""

import itertools
import json
import statistics
import sys
import time

import numpy as np

RUNS, WARM = 5, 70
ROUNDS, SETTLING = 5, 2
"""As in warmup/visit.py."""


def settings(path):
    with open(f"{path}/engine.json", "rb") as engine:
        return json.load(engine)["recipe"]["settings"]


def timed(run, inputs):
    begun = time.perf_counter_ns()
    run(inputs)
    return time.perf_counter_ns() - begun


def openvino_runs(kind, path, slots):
    import openvino

    core = openvino.Core()
    if kind == "usual":
        compiled = core.compile_model(path, "CPU")
        requests = [compiled.create_infer_request()] * RUNS
    else:
        with open(f"{path}/model.blob", "rb") as blob:
            compiled = core.import_model(blob.read(), "CPU", settings(path) if kind == "steady" else {})
        requests = [compiled.create_infer_request() for _ in range(slots)]
    shape = [axis.get_length() if axis.is_static else 0 for axis in compiled.input(0).partial_shape]
    if kind == "steady":  # as an engine is asked: `infer` itself has the longer tail

        def infer(inputs):
            requests[0].set_tensor(compiled.input(0).any_name, openvino.Tensor(inputs[compiled.input(0).any_name], shared_memory=True))
            requests[0].start_async()
            requests[0].wait()

        return compiled.input(0).any_name, shape, [infer]
    return compiled.input(0).any_name, shape, [request.infer for request in requests]


def onnxruntime_runs(kind, path, slots):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if kind != "usual":
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        if kind == "steady":
            told = settings(path)
            options.intra_op_num_threads = told.get("threads", 0)
            options.add_session_config_entry("session.intra_op.allow_spinning", told["session.intra_op.allow_spinning"])
        path = f"{path}/model.onnx"
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    found = session.get_inputs()[0]
    return found.name, found.shape, [lambda inputs: session.run(None, inputs)] * (RUNS if kind == "usual" else slots)


def changes(run, inputs, sizes):
    places, times = [1, *sizes], [[] for _ in range(1 + len(sizes))]
    for _, place, _ in itertools.product(range(ROUNDS), range(len(places)), range(2)):
        times[place].append(timed(run, inputs[places[place]]))
    return [mine[0] / statistics.median(mine[2 * SETTLING + 1 :: 2]) for mine in times[1:]]


def main(kind, path, target, batches, slots, last):
    random = np.random.default_rng(0)
    name, shape, runs = (openvino_runs if target == "openvino-cpu" else onnxruntime_runs)(kind, path, int(slots))
    for batch in map(int, batches.split(",")):
        for run in runs:
            run({name: random.uniform(-1, 1, (batch, *shape[1:])).astype(np.float32)})
    if kind == "steady":
        one = {name: random.uniform(-1, 1, (1, *shape[1:])).astype(np.float32)}
        taken = [timed(runs[0], one) for _ in range(WARM + int(last))][WARM:]
        print(json.dumps({"p99_over_p50": float(np.quantile(taken, 0.99) / statistics.median(taken))}))
        return
    if kind != "changes":
        print(json.dumps({"ready_ms": (time.monotonic_ns() - int(last)) / 1e6}))
        return
    sizes = list(map(int, last.split(",")))
    inputs = {size: {name: random.uniform(-1, 1, (size, *shape[1:])).astype(np.float32)} for size in {1, *sizes}}
    print(json.dumps({"first_over_row": changes(runs[-1], inputs, sizes)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
