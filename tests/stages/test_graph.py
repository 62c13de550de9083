"""What re-runs when something changes, read from dvc.yaml itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FROM_WARM = {"warm", "validate", "gate", "report", "release"}
FROM_BUILD = FROM_WARM | {"build"}
FROM_RANGES = FROM_BUILD | {"ranges", "quantize", "qat", "choose", "cost"}


def entries() -> dict[str, dict[str, Any]]:
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    return {name: entry.get("do", entry) for name, entry in stages.items()}


def paths(items: list[Any]) -> list[str]:
    return [next(iter(item)) if isinstance(item, dict) else item for item in items]


def parameters(entry: dict[str, Any]) -> list[str]:
    found: list[str] = []
    for item in entry.get("params", []):
        if isinstance(item, dict):
            found += [f"{file}:{key}" for file, keys in item.items() for key in keys]
        else:
            found.append(item)
    return found


def overlap(a: str, b: str) -> bool:
    return a == b or a.startswith(f"{b}/") or b.startswith(f"{a}/")


def affected(parameter: str = "", file: str = "") -> set[str]:
    """Stages that run again when one parameter or file changes, and everything behind them."""
    stages = entries()
    hit = {
        name
        for name, entry in stages.items()
        if (parameter and any(parameter == p or parameter.startswith(f"{p}.") for p in parameters(entry)))
        or (file and any(overlap(file, dep) for dep in entry.get("deps", [])))
    }
    while True:
        outs = {out for name in hit for key in ("outs", "metrics", "plots") for out in paths(stages[name].get(key, []))}
        behind = {
            name
            for name, entry in stages.items()
            if any(overlap(dep.replace("${item}", "*").replace("${key}", "*"), out.replace("${item}", "*").replace("${key}", "*"))
                   for dep in entry.get("deps", []) for out in outs)
        }  # fmt: skip
        if behind <= hit:
            return hit
        hit |= behind


@pytest.mark.parametrize(
    ("parameter", "stages"),
    [
        ("warmup.iterations", FROM_WARM),
        ("warmup.max_seconds", FROM_WARM),
        ("model.inputs", set(entries()) - {"platform", "data"}),
        ("quantize.batch_rows", FROM_RANGES),
        ("quantize.method", FROM_RANGES),
        ("platforms/${key}.json:key", FROM_BUILD),
        ("platforms/${key}.json:machine_id", FROM_WARM),
        ("gates.max_drop", {"validate", "gate", "report", "release"}),
        ("release.version", {"report", "release"}),
        ("release.sign", {"report", "release"}),
    ],
)
def test_a_parameter_re_runs_these_stages_and_no_other(parameter: str, stages: set[str]) -> None:
    assert affected(parameter=parameter) == stages


def test_another_number_of_calibration_rows_neither_trains_nor_exports() -> None:
    """`roles` runs; only the manifests of calibration and validation differ, so nothing behind the others does."""
    behind = affected(file="build/roles/calibration.json") | affected(file="build/roles/validation.json")
    assert not behind & {"model", "export"}


@pytest.mark.parametrize(
    ("stage", "roles"),
    [
        ("model", ["train"]),
        ("export", ["warmup"]),
        ("ranges", ["calibration"]),
        ("quantize", ["calibration", "search"]),  # calibration: weights are fitted on its rows
        ("qat", ["train", "calibration", "search"]),
        ("choose", ["calibration", "search"]),
        ("cost", ["calibration", "search", "validation"]),  # it says what a leak of validation rows would do, and chooses nothing
        ("warm", ["warmup"]),
        ("validate", ["validation"]),
    ],
)
def test_a_stage_sees_the_rows_of_its_own_role_only(stage: str, roles: list[str]) -> None:
    deps = entries()[stage]["deps"]
    assert [dep for dep in deps if dep.startswith("build/roles")] == [f"build/roles/{role}.json" for role in roles]


def test_measuring_stages_are_never_restored_and_building_ones_are() -> None:
    for name, entry in entries().items():
        outs = [out for key in ("outs", "metrics") for out in entry.get(key, [])]
        cached = [not (isinstance(out, dict) and next(iter(out.values())).get("cache") is False) for out in outs]
        assert all(cached) == (name not in {"platform", "warm", "validate", "gate", "report"}), name  # one uncached out is enough for DVC


def test_what_a_release_elsewhere_needs_of_a_target_is_pushed_with_the_cache() -> None:
    for stage, path in (("build", "build/engines/${key}"), ("warm", "build/warm/${key}")):
        assert path in entries()[stage]["outs"]


def test_every_out_is_ignored_by_a_hand_written_line() -> None:
    ignored = [line.strip("/\n") for line in (ROOT / ".gitignore").read_text().splitlines() if line and not line.startswith("#")]
    for entry in entries().values():
        for key in ("outs", "metrics"):
            for out in paths(entry.get(key, [])):
                assert any(overlap(out, line) for line in ignored), out


def test_the_private_key_is_no_dependency_and_in_no_out() -> None:
    """It would re-run the release, or go into DVC's cache and from there to a remote."""
    key = yaml.safe_load((ROOT / "params.yaml").read_text())["release"]["sign"]["key"]
    for entry in entries().values():
        for name in ("deps", "outs", "metrics"):
            for path in paths(entry.get(name, [])):
                assert not overlap(path, key), path
    assert any(overlap(key, line.strip("/\n")) for line in (ROOT / ".gitignore").read_text().splitlines() if line.startswith("/"))
