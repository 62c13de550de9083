"""Waivers: signed by who may grant them, for one check of one target of one release, for a while."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from cli.main import run
from cli.waive import entry
from pipeline.errors import USAGE, ConfigError, Refused
from pipeline.loading import load_object
from pipeline.records import Check, Evidence, Validation, Verdict
from pipeline.release_config import GatesConfig, ReleaseConfig, WaiversConfig
from release import gates, signing, waivers

ROOT = Path(__file__).resolve().parents[2]
validation: Callable[..., Validation] = load_object("tests/release/measured.py:validation", ROOT)
LIMITS: GatesConfig = load_object("tests/release/measured.py:LIMITS", ROOT)
TARGET, CHECK, DAY = "openvino-cpu", "int8_share", datetime.date(2026, 12, 1)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    signing.open_key(tmp_path / "granter.pem", development=True).write_public(tmp_path / "granter.pub")
    return tmp_path / "granter.pem"


def config(key: Path, **changes: Any) -> ReleaseConfig:
    made = entry("digits", TARGET, CHECK, "the head stays in float until 0.2", "Ada", "2026-12-31", key, DAY)
    return ReleaseConfig(name="digits", version="0.1.0", waivers=WaiversConfig(key=str(key.with_suffix(".pub")), entries=[{**made, **changes}]))


def judged(release: ReleaseConfig, day: datetime.date, share: float = 0.5) -> Evidence:
    return gates.judge_target(
        validation(share=share), LIMITS, required=True, undecided="leave-out", machine={}, measured_at="2026-12-01T00:00:00+00:00",
        waive=lambda checks: waivers.apply(checks, TARGET, release, day),
    )  # fmt: skip


def check(evidence: Evidence) -> Check:
    return next(found for found in evidence.checks if found.name == CHECK)


@pytest.mark.parametrize("day", [DAY, datetime.date(2026, 12, 31)])
def test_a_waived_check_ships_and_says_so(key: Path, day: datetime.date) -> None:
    evidence = judged(config(key), day)
    assert (check(evidence).verdict, evidence.verdict, evidence.ships) == (Verdict.FAIL, Verdict.PASS, True)
    assert check(evidence).waived == "by Ada on 2026-12-01 until 2026-12-31: the head stays in float until 0.2"
    assert evidence.reason.startswith("ships on a waiver: int8_share (FAIL, waived by Ada")
    waivers.refuse_outdated([evidence], config(key), day)
    assert Evidence.from_json(evidence.to_json()) == evidence


@pytest.mark.parametrize(
    ("day", "says"), [(datetime.date(2027, 1, 1), "expired on 2026-12-31"), (datetime.date(2026, 11, 30), "begins on 2026-12-01")]
)
def test_outside_its_days_it_waives_nothing(key: Path, day: datetime.date, says: str) -> None:
    evidence = judged(config(key), day)
    assert evidence.refuses
    assert f"the waiver of Ada {says}" in check(evidence).evidence


def test_a_check_that_passes_needs_no_waiver(key: Path) -> None:
    assert check(judged(config(key), DAY, share=0.95)).waived == ""


@pytest.mark.parametrize(
    "changes", [{"expires": "2027-02-01"}, {"by": "Eve"}, {"why": "because I can do it"}, {"signature": "AAAA"}, {"signature": "!"}]
)
def test_what_was_changed_after_it_was_signed_waives_nothing_and_is_refused_by_the_release(key: Path, changes: dict[str, str]) -> None:
    forged = config(key, **changes)
    evidence = judged(forged, DAY)  # a stage that judges says what it found, and exits 0
    assert (evidence.verdict, evidence.refuses, check(evidence).waived) == (Verdict.FAIL, True, "")
    assert f"is not signed by {key.with_suffix('.pub')}" in check(evidence).evidence
    for found in (forged, forged.model_copy(update={"name": "letters"})):
        with pytest.raises(Refused, match=r"(?s)not signed by who may grant it.*openvino-cpu, int8_share"):
            waivers.refuse_forged(found)
    waivers.refuse_forged(config(key))


def test_a_waiver_of_another_release_or_key_waives_nothing(key: Path, tmp_path: Path) -> None:
    release = config(key)
    other = signing.open_key(tmp_path / "other.pem", development=True).write_public(tmp_path / "other.pub")
    for changes in ({"name": "letters"}, {"waivers": release.waivers.model_copy(update={"key": str(other)})}):
        changed = release.model_copy(update=changes)
        assert judged(changed, DAY).refuses
        with pytest.raises(Refused, match="not signed"):
            waivers.refuse_forged(changed)
    with pytest.raises(ConfigError, match="cannot be read"):
        judged(release.model_copy(update={"waivers": release.waivers.model_copy(update={"key": str(tmp_path / "none.pub")})}), DAY)


def test_an_unknown_check_names_the_nearest(key: Path) -> None:
    release = config(key)
    entries = [release.waivers.entries[0].model_copy(update={"check": "int8_shares"})]
    with pytest.raises(ConfigError, match="did you mean 'int8_share'"):
        judged(release.model_copy(update={"waivers": release.waivers.model_copy(update={"entries": entries})}), DAY)


def test_a_release_refuses_a_waiver_that_expired_since_or_is_gone(key: Path) -> None:
    evidence = judged(config(key), DAY)
    for release, day in ((config(key), datetime.date(2027, 1, 1)), (ReleaseConfig(name="digits", version="0.1.0"), DAY)):
        with pytest.raises(Refused, match=r"(?s)no longer holds.*int8_share: by Ada"):
            waivers.refuse_outdated([evidence], release, day)
    waivers.refuse_outdated([dataclasses.replace(evidence, ships=False)], ReleaseConfig(name="digits", version="0.1.0"), DAY)


def test_what_was_not_measured_cannot_be_waived(key: Path) -> None:
    unknown = Check(CHECK, Verdict.NOT_MEASURED, None, None, 0.9, "min", "fraction", "", "")
    assert waivers.apply((unknown,), TARGET, config(key), DAY) == (unknown,)


def test_a_waiver_ends_within_a_quarter_and_needs_a_key(key: Path) -> None:
    with pytest.raises(ValidationError, match="at most 92 days"):
        config(key, expires="2027-12-01")
    with pytest.raises(ValidationError, match="need release.waivers.key"):
        WaiversConfig(entries=config(key).waivers.entries)


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize(
    ("option", "given", "says"),
    [
        ("--target", "openvino-cpx", "did you mean 'openvino-cpu'"),
        ("--check", "int8_shar", "did you mean 'int8_share'"),
        ("--check", "metric_drip", "did you mean 'metric_drop'"),
        ("--check", "abacus", "one of accuracy_drop, worst_slice"),
    ],
)
def test_the_command_signs_nothing_that_would_do_nothing(
    key: Path, here: bool, option: str, given: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT if here else tmp_path)
    until = (waivers.today() + datetime.timedelta(days=30)).isoformat()
    options = {"--target": TARGET, "--check": CHECK, "--why": "the head stays in float", "--by": "Ada", "--until": until, "--key": str(key)}
    options[option] = given
    with pytest.raises(ConfigError, match=f"(?s)would do nothing in {'the project here' if here else 'any project'}.*{option}.*{says}") as caught:
        run(["waive", "digits", *(text for pair in options.items() for text in pair)])
    assert caught.value.exit_code == USAGE
    assert capsys.readouterr().out == ""


def test_the_command_knows_what_the_project_here_judges(key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    until = (waivers.today() + datetime.timedelta(days=30)).isoformat()
    rest = ["--why", "the host is a small one", "--by", "Ada", "--until", until, "--key", str(key)]
    monkeypatch.chdir(tmp_path)
    for command in (["digits", "--target", TARGET, "--check", "peak_rss"], ["digits", "--target", "tensorrt", "--check", "int8_share"]):
        assert run(["waive", *command, *rest]) == 0
    monkeypatch.chdir(ROOT)
    for command, option in (
        (["digits", "--target", TARGET, "--check", "peak_rss"], "--check"),
        (["digit", "--target", TARGET, "--check", CHECK], "NAME"),
    ):
        with pytest.raises(ConfigError, match=f"(?s)the project here.*{option}"):
            run(["waive", *command, *rest])


def test_the_command_prints_an_entry_that_params_yaml_takes(key: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    until = (waivers.today() + datetime.timedelta(days=30)).isoformat()
    command = ["waive", "digits", "--target", TARGET, "--check", CHECK, "--why", "the head stays in float", "--by", "Ada", "--until", until]
    assert run([*command, "--key", str(key)]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    release = ReleaseConfig(name="digits", version="0.1.0", waivers=WaiversConfig(key=str(key.with_suffix(".pub")), entries=printed))
    assert check(judged(release, waivers.today())).waived.startswith("by Ada")
    assert run([*command, "--key", str(key), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["expires"] == until
    with pytest.raises(ConfigError, match="at most 92 days"):
        run([*command[:-1], "2099-01-01", "--key", str(key)])
