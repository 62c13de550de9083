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

from cli.options import sizes_of
from pipeline.errors import ConfigError
from pipeline.records import AxisRange, Trial
from pipeline.verdicts import Verdict

if TYPE_CHECKING:
    from warmup.misses import Misses

BATCH = AxisRange(1, 1, 16)
"""Sizes that an ONNX file is built for where its batch axis is open."""
RUNS, REQUESTS, DRAWS = 11, 60, 5
MAX_SECONDS = 120.0
SHOWN_WIDTH, LAYERS = 32, 5


def of_engine(
    folder: Path,
    *,
    plan: Path | None,
    data: Path | None,
    batches: Sequence[int],
    callers: int,
    runs: int,
    out: Path | None,
    cold_pages: bool = False,
    layers: bool = False,
) -> dict[str, Any]:
    """Measure the engine in `folder`; without `plan` the shortest one is found first, and written to `out` when that is given.

    `data`: rows `{input: (N, ...)}` (.npz); without it they are made up. Raises ConfigError, RecordError, Refused, TargetError and TrialError.
    """
    import numpy as np

    from engines.onnx_file import probe
    from engines.stored import read_engine
    from pipeline.arrays import read_arrays
    from pipeline.progress import bar
    from pipeline.records import WarmupPlan
    from warmup.attribution import attribute
    from warmup.coldstart import engine_command, measure
    from warmup.find import find_plan
    from warmup.misses import look, misses
    from warmup.plan import Maker, batch_axis

    engine = read_engine(folder)
    with tempfile.TemporaryDirectory(prefix="qwarm-coldstart-") as scratch:
        rows = read_arrays(data, what="Rows") if data else probe(engine.inputs, engine.shapes)
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
    facts = {"target": engine.target, "rows": str(data) if data else "made up", "plan": f"{len(chosen.steps)} steps, {chosen.found_by}"}
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


@contextlib.contextmanager
def built(model: Path, target: str, sizes: Mapping[str, int]) -> Iterator[Path]:
    """A folder with the engine of an ONNX file, built as `target` would deploy it. Raises as `qwarm lint` and the backend do."""
    from calibration.onnx_model import axis_ranges, describe, read_model
    from engines.once import build_once

    graph = read_model(model)
    found = describe(graph)
    precision = "int8" if any(node.op_type == "QuantizeLinear" for node in graph.graph.node) else "float32"
    with tempfile.TemporaryDirectory(prefix="qwarm-coldstart-") as scratch:
        build_once(
            graph.SerializeToString(), target, inputs=found.inputs, outputs=found.outputs, shapes=axis_ranges(found, sizes, batch=BATCH),
            folder=Path(scratch), precision=precision,
        )  # fmt: skip
        yield Path(scratch) / "engine"


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


def describe(result: Mapping[str, Any]) -> str:
    """The result in lines for a person."""
    lines = [f"{result['verdict']}: {result['target']}, plan: {result['plan']}; rows: {result['rows']}"]
    for name in ("cold", "warm"):
        found = result[name]
        lines.append(
            f"{name} ({found['processes']} fresh processes): steady p50 {found['steady_p50_ms']:.2f} ms, after {found['settles_after']} requests"
        )
        for request in found["leading"]:
            interval = request["interval"]
            bounds = f"{interval['low']:.2f} to {interval['high']:.2f}" if interval else f"no interval: {found['decide']}"
            said = {"FAIL": "slow", "PASS": "not slow", "UNDECIDED": "undecided"}[request["verdict"]]
            lines.append(f"  request {request['number']}: {request['ratio']:.2f} of the next ones ({bounds}), {request['excess_ms']:+.1f} ms: {said}")
        lines += _waterfall(found["phase_ms"])
        peak, cpu = found["peak_rss_mb"], found["cpu_ms"]
        lines.append(f"  {peak:.0f} MB resident at most" + (f", {cpu:.0f} ms of processor time up to the last request" if cpu else ""))
    for one in result["misses"]:
        if one["ratio"] is None:
            lines.append(f"{one['kind']}: not measured: {one['why']}")
            continue
        worst = f"; slowest: {', '.join(f'{axis} {size}' for axis, size in one['worst_sizes'].items())}" if one["worst_sizes"] else ""
        lines.append(
            f"{one['kind']}: {one['verdict']}: first over steady {one['ratio']:.2f}, {one['limit']:g} allowed, {one['requests']} requests{worst}"
        )
    if excess := result.get("excess"):
        lines.append(f"inside the layers a cold first request takes {_more(excess['all_layers'])}, by the runtime's profiler:")
        lines += [f"  {layer['layer'][:60]}: {_more(layer)}" for layer in excess["layers"][:LAYERS]]
    return "\n".join(lines)


def _more(layer: Mapping[str, Any]) -> str:
    return f"{layer['first_ms']:.2f} ms, steady {layer['steady_ms']:.2f}"


def _waterfall(phases: Mapping[str, float]) -> list[str]:
    total, before, lines = sum(phases.values()), 0.0, []
    for name, spent in phases.items():
        start, width = (round(SHOWN_WIDTH * part / total) if total else 0 for part in (before, spent))
        lines.append(f"  {name:<12}{' ' * start}{'█' * max(1, width)} {spent:.0f} ms")
        before += spent
    return lines


def coldstart(
    what: Annotated[Path, typer.Argument(metavar="ENGINE|MODEL.onnx|BUNDLE", help="an engine folder, an ONNX file, or a release bundle")],
    runs: Annotated[int, typer.Option(min=2, help="fresh processes, each with and without the plan")] = RUNS,
    plan: Annotated[Path | None, typer.Option(help="a warm-up plan for this engine and --data (default: the shortest is searched)")] = None,
    data: Annotated[Path | None, typer.Option(help="rows by input name (.npz); default: made up within the inputs' types")] = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="a batch size to warm, repeatable (default: 1, 2, 4, ... and the largest)")] = None,
    callers: Annotated[int, typer.Option(min=1, help="requests inside the engine at once")] = 1,
    target: Annotated[str | None, typer.Option(help="for an ONNX file: what it is built for (default openvino-cpu); for a bundle: which one")] = None,
    size: Annotated[list[str] | None, typer.Option(metavar="AXIS=N", help="for an ONNX file: size of a dynamic axis other than the batch")] = None,
    out: Annotated[Path | None, typer.Option(help="write the plan that was found")] = None,
    cold_pages: Annotated[bool, typer.Option("--cold-pages", help="drop the engine's files from the page cache before each process")] = False,
    layers: Annotated[bool, typer.Option("--layers", help="ask the runtime's own profiler which layers a cold request waits for")] = False,
    key: Annotated[Path | None, typer.Option(help="for a bundle: the public key that must have signed it")] = None,
    allow_unsigned: Annotated[bool, typer.Option("--allow-unsigned", help="for a bundle: go on without a key")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="one JSON object on standard output")] = False,
) -> None:
    """Does the first request take longer than the rest, and does a plan mend it? Exit 3 when requests behind it are slow, 4 when undecided."""
    measured = partial(
        of_engine, plan=plan, data=data, batches=batch or (), callers=callers, runs=runs, out=out, cold_pages=cold_pages, layers=layers
    )
    if (what / "manifest.json").is_file():
        result = of_bundle(what, target=target, key=key, allow_unsigned=allow_unsigned, runs=runs)
    elif (what / "engine.json").is_file():
        result = measured(what)
    elif what.is_file():
        with built(what, target or "openvino-cpu", sizes_of(size)) as folder:
            result = measured(folder)
    else:
        expected = "a folder with engine.json or manifest.json, or an ONNX file"
        raise ConfigError("There is nothing to measure", where=str(what), expected=expected, got="neither", next="correct the path")
    typer.echo(json.dumps(result) if json_output else describe(result))
    raise typer.Exit(Verdict[result["verdict"]].exit_code)
