"""A check that may ship although it does not pass: by whom, why, and until when. Signed, so that editing params.yaml is not enough."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import ConfigError, Refused
from pipeline.files import canonical_json
from pipeline.nearest import nearest
from pipeline.records import Check, Evidence, Verdict
from release import keys

if TYPE_CHECKING:
    from pipeline.release_config import ReleaseConfig, WaiverConfig

WAIVABLE = (Verdict.FAIL, Verdict.UNDECIDED)
"""What was never measured cannot be waived: nobody knows what would ship."""


def today() -> datetime.date:
    """The day, in UTC."""
    return datetime.datetime.now(datetime.UTC).date()


def message(release: str, waiver: Mapping[str, Any]) -> bytes:
    """The bytes that are signed: the entry without its signature, and the release that it is for."""
    return canonical_json({"release": release, **{key: str(value) for key, value in waiver.items() if key != "signature"}}).encode()


def sign(release: str, waiver: Mapping[str, Any], private_key: Path) -> str:
    """The signature of an entry. Raises ConfigError for a key that cannot be used."""
    return keys.sign(private_key, message(release, waiver))


def apply(checks: tuple[Check, ...], target: str, config: ReleaseConfig, day: datetime.date) -> tuple[Check, ...]:
    """The checks, those that are waived on `day` marked; a waiver that is not signed, has expired or begins later marks none and is named
    in the check's evidence.

    Raises ConfigError for a waiver of a check that the target does not have, and for a public key that cannot be read.
    """
    waivers = {waiver.check: waiver for waiver in config.waivers.entries if waiver.target == target}
    names = [check.name for check in checks]
    if unknown := sorted(set(waivers) - set(names)):
        raise ConfigError(
            "A waiver is for a check that the target does not have",
            where=f"release.waivers: {target}",
            expected=nearest(unknown[0], names),
            got=unknown[0],
        )
    return tuple(_marked(check, waivers.get(check.name), config, day) for check in checks)


def _marked(check: Check, waiver: WaiverConfig | None, config: ReleaseConfig, day: datetime.date) -> Check:
    if waiver is None or check.verdict not in WAIVABLE:
        return check
    if not _signed(waiver, config):
        return dataclasses.replace(check, evidence=f"{check.evidence}; the waiver of {waiver.by} is not signed by {config.waivers.key}")
    if day > waiver.expires:
        return dataclasses.replace(check, evidence=f"{check.evidence}; the waiver of {waiver.by} expired on {waiver.expires}")
    if day < waiver.granted:
        return dataclasses.replace(check, evidence=f"{check.evidence}; the waiver of {waiver.by} begins on {waiver.granted}")
    return dataclasses.replace(check, waived=f"by {waiver.by} on {waiver.granted} until {waiver.expires}: {waiver.why}")


def _signed(waiver: WaiverConfig, config: ReleaseConfig) -> bool:
    text = message(config.name, waiver.model_dump(mode="json"))
    return keys.signed(Path(str(config.waivers.key)), text, waiver.signature, where="release.waivers.key")


def refuse_forged(config: ReleaseConfig) -> None:
    """Raise Refused for a waiver that its key did not sign, whether anything rests on it or not: a judging stage only says so."""
    for waiver in config.waivers.entries:
        if not _signed(waiver, config):
            raise Refused(
                "A waiver is not signed by who may grant it, or was changed since",
                where=f"release.waivers: {waiver.target}, {waiver.check}",
                expected=f"a signature by {config.waivers.key}",
                got=f"{waiver.by}, until {waiver.expires}",
                next="let its granter sign it: qwarm waive --help",
            )


def refuse_outdated(evidences: Sequence[Evidence], config: ReleaseConfig, day: datetime.date) -> None:
    """Raise Refused where a shipping target rests on a waiver that has expired, was changed or is gone: verdicts may be older than it."""
    for evidence in evidences:
        plain = tuple(dataclasses.replace(check, waived="") for check in evidence.checks)
        if evidence.ships and [check.waived for check in apply(plain, evidence.target, config, day)] != [check.waived for check in evidence.checks]:
            raise Refused(
                "The evidence rests on a waiver that no longer holds",
                where=f"evidence/{evidence.target}.json",
                expected="the waivers of params.yaml, not expired",
                got="; ".join(f"{check.name}: {check.waived}" for check in evidence.checks if check.waived) or "a new waiver that was not judged",
                next=f"run `dvc repro --force --single-item gate@{evidence.target}`; renew the waiver, or ship without the target",
            )
