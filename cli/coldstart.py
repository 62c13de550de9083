"""`qwarm coldstart ENGINE|MODEL.onnx|BUNDLE`: the first requests of fresh processes, with and without a plan, and what behind it is still cold."""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.coldstart_report import describe
from cli.options import existing, known_target, sizes_of
from pipeline.errors import ConfigError, Refused
from pipeline.records import AxisRange, Trial
from pipeline.verdicts import Verdict

if TYPE_CHECKING:
    from pipeline.tensors import Batch, TensorSpec
    from warmup.misses import Misses

BATCH = AxisRange(1, 1, 16)
"""Sizes that an ONNX file is built for where its batch axis is open."""
FEWEST = 5
"""Fewer processes bound nothing: `warmup.latency.trials_needed`."""
RUNS, REQUESTS, DRAWS = 11, 60, 5
OWN, ONLY_BUNDLES = "a bundle brings its own plan and rows", "only a bundle is signed"
IDLE = {
    "bundle": {
        **dict.fromkeys(("plan", "data", "batch", "callers", "out"), OWN),
        "size": "a bundle is built already",
        "cold_pages": "a host reads every byte of a bundle before it loads it",
        "layers": "only an engine folder or an ONNX file is profiled",
    },
    "engine": {**dict.fromkeys(("target", "size"), "an engine is built already"), **dict.fromkeys(("key", "allow_unsigned"), ONLY_BUNDLES)},
    "model": dict.fromkeys(("key", "allow_unsigned"), ONLY_BUNDLES),
    "plan": dict.fromkeys(("batch", "callers", "out"), "--plan says it, and none is searched"),
}
"""Options that have no meaning, and why, by what is measured."""
MAX_SECONDS = 120.0


def of_engine(
    folder: Path,
    *,
    rows: Batch,
    said: str,
    plan: Path | None,
    batches: Sequence[int],
    callers: int,
    runs: int,
    out: Path | None,
    cold_pages: bool = False,
    layers: bool = False,
) -> dict[str, Any]:
    """Measure the engine in `folder`; without `plan` the shortest one is found first, and written to `out` when that is given.

    `rows` are those of `rows_for`, and `said` is where they come from. Raises ConfigError, RecordError, Refused (a plan of another engine or of
    other rows, before any process is started), TargetError and TrialError.
    """
    import numpy as np

    from engines.stored import read_engine
    from pipeline.digests import sha256_arrays
    from pipeline.progress import bar
    from pipeline.records import WarmupPlan
    from warmup.attribution import attribute
    from warmup.coldstart import engine_command, measure
    from warmup.find import find_plan
    from warmup.misses import look, misses
    from warmup.plan import Maker, batch_axis

    engine = read_engine(folder)
    with tempfile.TemporaryDirectory(prefix="qwarm-coldstart-") as scratch:
        rows_file = Path(scratch) / "rows.npz"
        np.savez(rows_file, allow_pickle=False, **dict(rows))
        if plan is None:
            allowed = engine.shapes[batch_axis(engine.inputs)]
            maker = Maker(engine, rows, batches or _ladder(allowed), sorted({1, callers}), MAX_SECONDS, "")
            with bar("coldstart: find the shortest plan in fresh processes") as report:
                chosen = find_plan(folder, rows_file, maker, progress=report)
            plan = out or Path(scratch) / "plan.json"
            chosen.save(plan)
        else:
            chosen = WarmupPlan.load(plan, next="correct --plan")
            for what, wanted, found in (("engine", engine.digest(), chosen.engine_sha256), ("set of rows", sha256_arrays(rows), chosen.rows_sha256)):
                if wanted != found:
                    raise Refused(
                        f"The warm-up plan is of another {what}", where=f"--plan {plan}", expected=f"sha256 {wanted}", got=f"sha256 {found}",
                        next="give the engine and the --data that it was found with, or leave out --plan: one is found then",
                    )  # fmt: skip
        commands = {
            "cold": engine_command(folder, "cold", rows=rows_file, requests=REQUESTS, concurrency=chosen.concurrency),
            "warm": engine_command(folder, "warm", rows=rows_file, plan=plan, requests=REQUESTS),
        }
        with bar("coldstart: fresh processes with and without the plan") as report:
            trials = measure(commands, runs, report, curves=True, cold_files=[folder / name for name in engine.files] if cold_pages else ())
        with bar("coldstart: sizes and callers that the plan never ran") as report:
            seen = look(folder, plan, rows_file, shapes=engine.shapes, draws=DRAWS, processes=runs, progress=report)
        excess = None
        if layers:
            with bar("coldstart: the runtime's own profiler") as report:
                excess = attribute(folder, rows_file)
                report(1, 1, "")
    facts = {"target": engine.target, "rows": said, "plan": f"{len(chosen.steps)} steps, {chosen.found_by}"}
    result = _result(facts, trials, misses(seen))
    return {**result, "excess": excess.to_json()} if excess else result


def of_bundle(folder: Path, *, target: str | None, key: Path | None, allow_unsigned: bool, runs: int) -> dict[str, Any]:
    """Measure a release bundle as a host would open it. Raises what `fleet.open` raises."""
    from fleet.warm import measure_bundle
    from pipeline.progress import bar

    with bar("coldstart: fresh processes with and without the plan") as report:
        found = measure_bundle(
            folder, target=target, key=key, allow_unsigned=allow_unsigned, runs=runs, requests=REQUESTS, log=lambda text: report(0, 0, text)
        )
    trials = [Trial.from_json(trial) for trial in found["trials"]]
    return _result({"target": found["target"], "rows": "the bundle's", "plan": "the bundle's"}, trials, ())


def rows_for(inputs: tuple[TensorSpec, ...], shapes: Mapping[str, AxisRange], data: Path | None, batches: Sequence[int]) -> Batch:
    """Rows `{input: (N, ...)}` of `data` (.npz), each of them checked, else made up.

    Raises ConfigError, also for a batch size beyond `shapes`, DataError and RecordError.
    """
    from cli.rows import read_rows
    from engines.onnx_file import probe
    from warmup.plan import batch_axis

    allowed = shapes[batch_axis(inputs)]
    if wrong := [size for size in batches if not allowed.min <= size <= allowed.max]:
        expected, got = f"{allowed.min} to {allowed.max}", ", ".join(map(str, wrong))
        raise ConfigError("The engine does not take so many rows", where="--batch", expected=expected, got=got, next="correct --batch")
    if data is None:
        return probe(inputs, shapes)
    if data.suffix != ".npz":
        after = "save one array an input: numpy.savez(path, input=array)"
        raise ConfigError("The rows are no .npz", where=f"--data {data}", expected="an .npz", got=data.name, next=after)
    rows = read_rows(data, inputs, columns={}, preprocess=None, label=None, class_names=())
    return rows.first(len(rows.ids))


@contextlib.contextmanager
def built(model: Path, target: str, sizes: Mapping[str, int], data: Path | None, batches: Sequence[int]) -> Iterator[tuple[Path, Batch]]:
    """A folder with the engine of an ONNX file, built as `target` would deploy it, and its rows.

    Raises as `rows_for`, `qwarm lint` and the backend do.
    """
    from calibration.onnx_model import axis_ranges, describe, read_model
    from engines.once import build_once

    graph = read_model(model)
    found = describe(graph)
    shapes = axis_ranges(found, sizes, batch=BATCH)
    rows = rows_for(found.inputs, shapes, data, batches)
    precision = "int8" if any(node.op_type == "QuantizeLinear" for node in graph.graph.node) else "float32"
    with tempfile.TemporaryDirectory(prefix="qwarm-coldstart-") as scratch:
        build_once(
            graph.SerializeToString(), target, inputs=found.inputs, outputs=found.outputs, shapes=shapes, folder=Path(scratch), precision=precision,
        )  # fmt: skip
        yield Path(scratch) / "engine", rows


def _ladder(allowed: AxisRange) -> list[int]:
    """1, 2, 4, ... inside the range, and its ends: every other size is padded to one of these."""
    return sorted({allowed.min, *(1 << power for power in range(allowed.max.bit_length()) if allowed.min <= 1 << power <= allowed.max), allowed.max})


def _result(facts: Mapping[str, str], trials: Sequence[Trial], found: Sequence[Misses]) -> dict[str, Any]:
    from warmup.diagnosis import diagnose

    cold, warm = diagnose(trials, "cold"), diagnose(trials, "warm")
    verdicts = [warm.warm_up_needed, *(one.verdict for one in found if one.verdict is not Verdict.NOT_MEASURED)]
    verdict = next((verdict for verdict in (Verdict.FAIL, Verdict.UNDECIDED) if verdict in verdicts), Verdict.PASS)
    return {
        **facts,
        "verdict": verdict.name,
        **{found.variant: {**found.to_json(), **_taken(trials, found.variant)} for found in (cold, warm)},
        "misses": [one.to_json() for one in found],
        "trials": [trial.to_json() for trial in trials],
    }


def _taken(trials: Sequence[Trial], variant: str) -> dict[str, float]:
    """Peak memory and processor time of a variant's processes, medians; 0 ms where no curve was read."""
    mine = [trial for trial in trials if trial.variant == variant]
    cpu = [max((point.cpu_ms for point in trial.curve), default=0.0) for trial in mine]
    return {"peak_rss_mb": statistics.median(trial.peak_rss_mb for trial in mine), "cpu_ms": statistics.median(cpu)}


def refuse_idle(context: typer.Context, *kinds: str) -> None:
    """Raise ConfigError for an option on the command line that `IDLE` lists under one of `kinds`."""
    for name, why in (item for kind in kinds for item in IDLE[kind].items()):
        if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"An option has no meaning here: {why}", where=option, expected="none", got=option, next=f"leave out {option}")


def coldstart(
    context: typer.Context,
    what: Annotated[Path, typer.Argument(metavar="ENGINE|MODEL.onnx|BUNDLE", help="an engine folder, an ONNX file, or a release bundle")],
    runs: Annotated[int, typer.Option(min=FEWEST, help="fresh processes, each with and without the plan")] = RUNS,
    plan: Annotated[Path | None, typer.Option(help="a plan for this engine and --data (default: the shortest is found)", callback=existing)] = None,
    data: Annotated[Path | None, typer.Option(help="rows by input name (.npz); default: made up within the inputs' types", callback=existing)] = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="a batch size to warm, repeatable (default: 1, 2, 4, ... and the largest)")] = None,
    callers: Annotated[int, typer.Option(min=1, help="requests inside the engine at once")] = 1,
    target: Annotated[str | None, typer.Option(help="for an ONNX file: what it is built for (default openvino-cpu); for a bundle: which one")] = None,
    size: Annotated[list[str] | None, typer.Option(metavar="AXIS=N", help="for an ONNX file: size of a dynamic axis other than the batch")] = None,
    out: Annotated[Path | None, typer.Option(help="write the plan that was found")] = None,
    cold_pages: Annotated[bool, typer.Option("--cold-pages", help="drop the engine's files from the page cache before each process")] = False,
    layers: Annotated[bool, typer.Option("--layers", help="ask the runtime's own profiler which layers a cold request waits for")] = False,
    key: Annotated[Path | None, typer.Option(help="for a bundle: the public key that must have signed it", callback=existing)] = None,
    allow_unsigned: Annotated[bool, typer.Option("--allow-unsigned", help="for a bundle: go on without a key")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="one JSON object on standard output")] = False,
) -> None:
    """Does the first request take longer than the rest, and does a plan mend it? Exit 3 when requests behind it are slow, 4 when undecided.

    A bundle is measured with its own plan and rows: --target, --key, --allow-unsigned and --runs alone have a meaning there.
    """
    from engines.stored import RECORD, read_engine

    idle = ["plan"] if plan else []
    measured = partial(
        of_engine, said=str(data) if data else "made up", plan=plan, batches=batch or (), callers=callers, runs=runs, out=out,
        cold_pages=cold_pages, layers=layers,
    )  # fmt: skip
    if (what / "manifest.json").is_file():
        refuse_idle(context, "bundle")
        result = of_bundle(what, target=target, key=key, allow_unsigned=allow_unsigned, runs=runs)
    elif (what / RECORD).is_file():
        refuse_idle(context, "engine", *idle)
        engine = read_engine(what)
        result = measured(what, rows=rows_for(engine.inputs, engine.shapes, data, batch or ()))
    elif what.is_file():
        refuse_idle(context, "model", *idle)
        with built(what, known_target(target or "openvino-cpu"), sizes_of(size), data, batch or ()) as (folder, rows):
            result = measured(folder, rows=rows)
    else:
        expected = "a folder with engine.json or manifest.json, or an ONNX file"
        raise ConfigError("There is nothing to measure", where=str(what), expected=expected, got="neither", next="correct the path")
    typer.echo(json.dumps(result) if json_output else describe(result))
    raise typer.Exit(Verdict[result["verdict"]].exit_code)
