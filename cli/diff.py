"""`qwarm diff A B`: what differs between two bundles or git revisions, with a verdict where one can be given."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
import yaml

from pipeline.errors import ConfigError
from pipeline.records import Evidence, ReleaseManifest
from release import changes
from release.changes import Change, Snapshot
from warmup.latency import Estimate

WORKSPACE = "."
SIDE = 0.999
"""Confidence a side of a re-measured ratio, as of the gates on latency."""


def snapshot(name: str) -> Snapshot:
    """A bundle's folder, a git revision of this project, or `.` for its working tree.

    Raises ConfigError for what is none of these, RecordError for evidence or a manifest that this qwarm does not read.
    """
    if (Path(name) / "manifest.json").is_file():
        return changes.of_manifest(ReleaseManifest.load(Path(name) / "manifest.json", next="compare bundles of this qwarm's schema"), name)
    read = _workspace if name == WORKSPACE else _revision(name)
    parameters = yaml.safe_load(read("params.yaml"))
    lock = (yaml.safe_load(read("dvc.lock")) or {}).get("stages", {})
    data = {out["path"]: str(out.get("md5", "")) for out in lock.get("roles", {}).get("outs", [])}
    evidences = []
    for target in parameters.get("targets", {}):
        if text := read(f"evidence/{target}.json"):
            evidences.append(Evidence.from_json(json.loads(text), f"{name}: evidence/{target}.json"))
    return changes.of_evidence(name, evidences, parameters, data, {})


def _workspace(path: str) -> str:
    return Path(path).read_text(encoding="utf-8") if Path(path).is_file() else ""


def _revision(name: str) -> Callable[[str], str]:
    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)

    try:
        found = git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").returncode == 0
    except OSError:
        found = False
    if not found or git("cat-file", "-e", f"{name}:params.yaml").returncode:
        expected = "a bundle's folder, a git revision with params.yaml, or . for the working tree"
        raise ConfigError("There is nothing to compare", where=name, expected=expected, got=name, next="correct the name")
    return lambda path: git("show", f"{name}:{path}").stdout


def measure(first: Path, second: Path, runs: int) -> list[Change]:
    """Steady p50 and first request of each target that both bundles have and this machine runs, in new processes that take turns.

    Raises Refused for a bundle that is not what its manifest says, TrialError for a process that dies.
    """
    from fleet.host import unfit
    from fleet.verify import verify
    from warmup import latency
    from warmup.coldstart import engine_command
    from warmup.coldstart import measure as run

    bundles = [verify(folder, allow_unsigned=True) for folder in (first, second)]
    sides = [{released.target: released for released in bundle.manifest.targets} for bundle in bundles]
    found: list[Change] = []
    for target in sorted(set(sides[0]) & set(sides[1])):
        if reason := next((reason for side in sides if (reason := unfit(side[target]))), None):
            found.append(Change("measured", target, "-", "-", f"not measured here: {reason}"))
            continue
        commands = {}
        for variant, bundle, side in zip(("before", "after"), bundles, sides, strict=True):
            folder = bundle.folder / side[target].folder
            commands[variant] = engine_command(folder, variant, rows=bundle.folder / "warmup/rows.npz", plan=folder / "plan.json")
        trials = run(commands, runs, lambda done, total, note: print(f"{done} of {total} ({note})", file=sys.stderr))
        before, after = (latency.variant(trials, variant) for variant in commands)
        for name, statistic in (("steady p50", latency.p50), ("first request", lambda samples: float(samples[0]))):
            times = [latency.per_process(side, statistic) for side in (before, after)]
            ratio = latency.estimate(latency.paired(times[1], times[0]), SIDE)
            assert ratio is not None  # `runs` is 1 or more
            texts = [f"{statistics.median(values):.3f} ms" for values in times]
            found.append(Change("measured", f"{target} {name}", texts[0], texts[1], _verdict(ratio)))
    return found


def _verdict(ratio: Estimate) -> str:
    if ratio.interval is None:
        return f"{ratio.figure:.3g}x, too few processes for a bound"
    word = changes.BETTER if ratio.interval.high < 1 else changes.WORSE if ratio.interval.low > 1 else changes.UNSHOWN
    return f"{word}: {ratio.figure:.3g}x ({ratio.interval.low:.3g} to {ratio.interval.high:.3g})"


def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="a bundle's folder, a git revision, or . for the working tree")],
    second: Annotated[str, typer.Argument(metavar="B", help="what is held to it")],
    again: Annotated[bool, typer.Option("--measure", help="also time both bundles here, in new processes that take turns")] = False,
    runs: Annotated[int, typer.Option(min=1, help="processes a side with --measure; 10 give a bound")] = 11,
    json_output: Annotated[bool, typer.Option("--json", help="one JSON object on standard output")] = False,
) -> None:
    """Say what differs: verdicts, figures, size, parameters, data and versions. Better and worse are said only where intervals are apart."""
    before, after = snapshot(first), snapshot(second)
    found = changes.changes(before, after)
    if again:
        if not all((Path(name) / "manifest.json").is_file() for name in (first, second)):
            expected, way_out = "two bundles' folders", "leave out --measure"
            raise ConfigError("Only bundles can be measured again", where="--measure", expected=expected, got=f"{first}, {second}", next=way_out)
        found += measure(Path(first), Path(second), runs)
    if json_output:
        typer.echo(json.dumps({"first": before.label, "second": after.label, "changes": [change.to_json() for change in found]}))
        return
    if not found:
        typer.echo("nothing differs")
    for change in found:
        typer.echo(f"{change.kind:<10}{change.name}: {change.before} -> {change.after}  [{change.verdict}]")
