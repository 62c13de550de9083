"""Evidence signed by the runner that measured it, and a release that takes no other once a runner is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.errors import ConfigError, Refused
from pipeline.loading import load_object
from pipeline.records import Evidence
from release import runners, signing

ROOT = Path(__file__).resolve().parents[2]
evidences: Callable[[], list[Evidence]] = load_object("tests/release/test_page.py:evidences", ROOT)


@pytest.fixture
def signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Evidence, dict[str, str]]:
    for name in ("gpu-1", "other"):
        signing.open_key(tmp_path / f"{name}.pem", development=True).write_public(tmp_path / f"{name}.pub")
    monkeypatch.setenv(runners.VARIABLE, str(tmp_path / "gpu-1.pem"))
    return runners.by_this_runner(evidences()[0]), {name: str(tmp_path / f"{name}.pub") for name in ("other", "gpu-1")}


def test_the_runner_is_known_by_its_signature(signed: tuple[Evidence, dict[str, str]]) -> None:
    evidence, known = signed
    assert runners.runner_of(Evidence.from_json(evidence.to_json()), known) == "gpu-1"
    runners.refuse_unsigned([evidence], known)
    runners.refuse_unsigned([dataclasses.replace(evidence, signature="")], {})  # nobody asked


def test_changed_unsigned_or_foreign_evidence_is_refused(signed: tuple[Evidence, dict[str, str]]) -> None:
    evidence, known = signed
    changed = dataclasses.replace(evidence, figures={**evidence.figures, "speedup": 9.0})
    for bad, only, says in (
        (changed, known, "another key, or a change since"),
        (evidence, {"other": known["other"]}, "another key, or a change since"),
        (dataclasses.replace(evidence, signature=""), known, "openvino-cpu: none"),
        (dataclasses.replace(evidence, signature="!"), known, "another key"),
    ):
        with pytest.raises(Refused, match=rf"(?s)No runner that is known.*evidence/openvino-cpu.json.*{says}"):
            runners.refuse_unsigned([bad], only)
    runners.refuse_unsigned([dataclasses.replace(evidence, signature="", ships=False)], known)


def test_without_a_key_nothing_is_signed_and_a_bad_key_is_named(signed: tuple[Evidence, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    evidence, known = signed
    monkeypatch.delenv(runners.VARIABLE)
    assert runners.by_this_runner(evidences()[0]).signature == ""
    monkeypatch.setenv(runners.VARIABLE, "none.pem")
    with pytest.raises(ConfigError, match="none.pem"):
        runners.by_this_runner(evidences()[0])
    with pytest.raises(ConfigError, match="release.runners.gone"):
        runners.runner_of(evidence, {"gone": "none.pub"})
    assert runners.runner_of(evidence, known) == "gpu-1"
