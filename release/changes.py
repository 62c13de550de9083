"""What differs between two releases: verdicts, figures, size, parameters, data and versions; each with a verdict where one can be given."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.records import Check, Evidence, ReleaseManifest, Verdict
from pipeline.strict import Record
from release.texts import figure_text, interval_text

BETTER, WORSE, UNSHOWN, OTHER = "better", "worse", "no difference shown", "changed"


@dataclasses.dataclass(frozen=True)
class Side:
    """One target of a release."""

    verdict: Verdict
    checks: tuple[Check, ...]
    machine: str
    """Digest of the machine that measured, "" where the release does not say."""


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A release, or the state of a revision, as far as two can be compared. `parameters` are by dotted key."""

    label: str
    targets: Mapping[str, Side]
    parameters: Mapping[str, str]
    data: Mapping[str, str]
    versions: Mapping[str, str]
    size_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class Change(Record):
    """`kind`: target, figure, size, parameter, data or version. `verdict`: better, worse, no difference shown, or changed."""

    kind: str
    name: str
    before: str
    after: str
    verdict: str


def of_manifest(manifest: ReleaseManifest, label: str = "") -> Snapshot:
    """The snapshot of a bundle."""
    made = manifest.provenance
    return Snapshot(
        label=label or f"{manifest.name} {manifest.version}",
        targets={target.target: Side(target.verdict, target.checks, made.get("machines", {}).get(target.target, "")) for target in manifest.targets},
        parameters=flat(made.get("parameters", {})),
        data=manifest.roles,
        versions={**made.get("versions", {}), **made.get("host_packages", {}), "qwarm code": str(made.get("code_sha256", ""))[:16]},
        size_bytes=sum(file.bytes for file in manifest.files.values()),
    )


def of_evidence(
    label: str, evidences: Sequence[Evidence], parameters: Mapping[str, Any], data: Mapping[str, str], versions: Mapping[str, str]
) -> Snapshot:
    """The snapshot of a state that is not packed."""
    targets = {evidence.target: Side(evidence.verdict, evidence.checks, evidence.bound_to.get("machine_id", "")) for evidence in evidences}
    return Snapshot(label, targets, flat(parameters), data, versions)


def flat(data: Any, prefix: str = "") -> dict[str, str]:
    """Nested mappings by dotted key; what is no mapping is written as JSON."""
    if not isinstance(data, Mapping) or (prefix and not data):
        return {prefix: json.dumps(data, sort_keys=True, default=str)} if prefix else {}
    return {key: value for name, item in data.items() for key, value in flat(item, f"{prefix}.{name}" if prefix else str(name)).items()}


def changes(before: Snapshot, after: Snapshot) -> list[Change]:
    """Everything that differs, figures first; empty when nothing does.

    A figure is better or worse where the two intervals are apart (each holds at its own confidence, so that this errs rarely), and where a
    count without an interval differs. Two machines are no reason to call a time better or worse.
    """
    found = list(_targets(before, after))
    if before.size_bytes is not None and after.size_bytes is not None and before.size_bytes != after.size_bytes:
        verdict = WORSE if after.size_bytes > before.size_bytes else BETTER
        found.append(Change("size", "bundle", f"{before.size_bytes / 1e6:.2f} MB", f"{after.size_bytes / 1e6:.2f} MB", verdict))
    for kind, old, new in (
        ("parameter", before.parameters, after.parameters),
        ("data", before.data, after.data),
        ("version", before.versions, after.versions),
    ):
        for name in sorted({**old, **new}):
            if (one := old.get(name, "-")) != (other := new.get(name, "-")):
                found.append(Change(kind, name, one[:64], other[:64], OTHER))
    return found


def _targets(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    for target in sorted({**before.targets, **after.targets}):
        old, new = before.targets.get(target), after.targets.get(target)
        if old is None or new is None:
            sides = [side.verdict.name if side else "not in it" for side in (old, new)]
            yield Change("target", target, sides[0], sides[1], OTHER)
            continue
        if old.verdict is not new.verdict:
            verdict = BETTER if new.verdict is Verdict.PASS else WORSE if old.verdict is Verdict.PASS else OTHER
            yield Change("target", target, old.verdict.name, new.verdict.name, verdict)
        same_machine = not old.machine or not new.machine or old.machine == new.machine
        checks = {check.name: check for check in old.checks}
        for check in new.checks:
            if (earlier := checks.get(check.name)) is None or earlier.figure == check.figure:
                continue
            verdict = compared(earlier, check) if same_machine or check.unit == "fraction" else f"{OTHER} (another machine)"
            yield Change("figure", f"{target} {check.name}", _text(earlier), _text(check), verdict)


def compared(before: Check, after: Check) -> str:
    """Better, worse, or no difference shown."""
    if before.figure is None or after.figure is None:
        return OTHER
    lower_is_better = after.limit_is == "max"
    if before.interval is None or after.interval is None:
        return BETTER if (after.figure < before.figure) == lower_is_better else WORSE
    if after.interval.high < before.interval.low:
        return BETTER if lower_is_better else WORSE
    if after.interval.low > before.interval.high:
        return WORSE if lower_is_better else BETTER
    return UNSHOWN


def _text(check: Check) -> str:
    return figure_text(check) + (f" ({interval_text(check)})" if check.interval else "")
