"""Evidence that travels is signed by the runner that measured it: a digest says what it is of, a signature who says so."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.errors import Refused
from pipeline.records import Evidence
from release import keys

VARIABLE = "QWARM_RUNNER_KEY"
"""Environment variable of a runner: the path of its private key, which its CI holds as a secret."""


def message(evidence: Evidence) -> bytes:
    """What is signed: the whole evidence, its signature apart."""
    return dataclasses.replace(evidence, signature="").to_text().encode()


def by_this_runner(evidence: Evidence) -> Evidence:
    """The evidence signed by this runner's key; as it is where the runner has none. Raises ConfigError for a key that cannot be used."""
    key = os.environ.get(VARIABLE)
    return dataclasses.replace(evidence, signature=keys.sign(Path(key), message(evidence))) if key else evidence


def runner_of(evidence: Evidence, runners: Mapping[str, str]) -> str | None:
    """Which of `runners` (name to public key) signed it; None for none of them."""
    if not evidence.signature:
        return None
    text = message(evidence)
    return next((name for name, key in runners.items() if keys.signed(Path(key), text, evidence.signature, where=f"release.runners.{name}")), None)


def refuse_unsigned(evidences: Sequence[Evidence], runners: Mapping[str, str]) -> None:
    """Raise Refused where `runners` are named and none of them signed the evidence of a shipping target."""
    unknown = [evidence for evidence in evidences if evidence.ships and runner_of(evidence, runners) is None] if runners else []
    if unknown:
        raise Refused(
            "No runner that is known vouches for the evidence",
            where=", ".join(f"evidence/{evidence.target}.json" for evidence in unknown),
            expected=f"a signature by one of {', '.join(runners)} (release.runners)",
            got="; ".join(
                f"{evidence.target}: {'a signature of another key, or a change since' if evidence.signature else 'none'}" for evidence in unknown
            ),
            next=f"set {VARIABLE} where it is measured and run `dvc repro --force --single-item gate@T` there",
        )
