"""Does a target's evidence still say what its own checks amount to? Asked by `release`, because a file can be edited or of other parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pipeline.errors import Refused
from pipeline.records import Check, Evidence, Verdict
from pipeline.verdicts import combine, judge
from release.check_names import EXCUSABLE, OWN_METRIC, check_names, limit_of
from release.gates import outcome
from release.texts import figure_text, limit_text

if TYPE_CHECKING:
    from pipeline.config import Config


def refuse_other_verdicts(evidences: Sequence[Evidence], config: Config) -> None:
    """Raise Refused naming each target whose evidence says otherwise than its checks under params.yaml.

    Excused and waived checks count as the evidence records them; whether a waiver holds: release/waivers.py. Who wrote the file is
    for its signature to say (release/runners.py).
    """
    faults = {evidence.target: found for evidence in evidences if (found := list(_faults(evidence, config)))}
    if faults:
        raise Refused(
            "Evidence says otherwise than its own checks: it was edited, or judged under other parameters",
            where=", ".join(f"evidence/{target}.json" for target in faults),
            expected="; ".join(f"{target}: {wanted}" for target, found in faults.items() for wanted, _ in found),
            got="; ".join(f"{target}: {got}" for target, found in faults.items() for _, got in found),
            next="; ".join(f"run `dvc repro gate@{target}` where {target} was measured" for target in faults),
        )


def _faults(evidence: Evidence, config: Config) -> Iterator[tuple[str, str]]:
    """What was expected and what the evidence says, for each way in which they part."""
    required = config.targets[evidence.target].required
    ships, refuses, _ = outcome(evidence.checks, required=required, undecided=config.release.undecided)
    wanted = _said(combine(evidence.checks), required, ships, refuses)
    if wanted != (got := _said(evidence.verdict, evidence.required, evidence.ships, evidence.refuses)):
        yield f"{wanted} (recomputed)", got
    for check in evidence.checks:
        if check.verdict is Verdict.PASS and not _within(check):
            yield f"{check.name} {limit_text(check)}", f"PASS at {figure_text(check)}"
        if check.excused and not (check.verdict is Verdict.UNDECIDED and check.name in EXCUSABLE):
            yield f"no excuse of {check.name}", f"{check.verdict.name}, excused"
    if ships:
        named = [check.name for check in evidence.checks]
        for check in evidence.checks:
            if check.limit != (limit := limit_of(check.name, config.gates)):
                yield f"{check.name} by the limit {limit}", f"by {check.limit}"
        absent = [name for name in check_names(config.gates) if not {name, OWN_METRIC.get(name, name)} & set(named)]
        if absent:
            yield f"the checks {', '.join(absent)}", ", ".join(named) or "no check"


def _said(verdict: Verdict, required: bool, ships: bool, refuses: bool) -> str:
    role = "required" if required else "not required"
    return f"{verdict.name}, {role}, {'ships' if ships else 'does not ship'}, {'refuses' if refuses else 'does not refuse'} the release"


def _within(check: Check) -> bool:
    """Whether the check's own numbers allow PASS; outputs that do not differ have no SQNR."""
    if check.limit is None or check.figure is None:
        return check.unit == "dB"
    if check.interval is not None:
        return judge(check.interval, check.limit, check.limit_is) is Verdict.PASS
    return check.figure <= check.limit if check.limit_is == "max" else check.figure >= check.limit
