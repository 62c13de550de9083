"""Requests since the last save live again, once; torn lines are left out."""

from __future__ import annotations

import shutil
from pathlib import Path

from fleet.control import Control
from fleet.controller import Controller
from fleet.drivers import Shadow
from fleet.journal import Journal, read_journal
from fleet.logs import Log
from fleet.models import ModelSpec


def seen(state: Path) -> dict[str, int]:
    """By a new controller; the state folder stays as it is."""
    copy = Path(shutil.copytree(state, state.parent / f"copy of {state.name}", dirs_exist_ok=True))
    control = Control(Controller([ModelSpec("a"), ModelSpec("b")]), Shadow(), state=copy, log=Log(stream=open(state.parent / "log", "w")))  # noqa: SIM115
    found = {name: facts["seen"] for name, facts in control.status()["models"].items()}
    control.close()
    return found


def test_a_controller_that_is_killed_has_learnt_from_every_request(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    with open(tmp_path / "log", "w") as stream:
        control = Control(Controller([ModelSpec("a"), ModelSpec("b")]), Shadow(), state=state, log=Log(stream=stream))
        control.saw("a", 3)
        assert seen(state) == {"a": 3, "b": 0}  # never saved
        control.save()
        assert seen(state) == {"a": 3, "b": 0}
        control.saw("b", 2)
        control.saw("a", 1)
        assert seen(state) == {"a": 4, "b": 2}
        control.close()
    assert seen(state) == {"a": 4, "b": 2}
    assert not (state / "requests.before").exists()


def test_what_is_torn_or_saved_already_is_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.add("a", 1.0)
    journal.turn()
    journal.add("a b", 2.0)
    journal.turn()  # the save before did not end well
    journal.add("a", 3.0)
    journal.close()
    with open(tmp_path / "requests.log", "ab") as stream:
        stream.write(b"inf a\nnan a\n\n4.0")
    assert list(read_journal(tmp_path, 0.0)) == [(1.0, "a"), (2.0, "a b"), (3.0, "a"), (4.0, "")]
    assert list(read_journal(tmp_path, 2.0)) == [(3.0, "a"), (4.0, "")]
    assert list(read_journal(tmp_path / "absent", 0.0)) == []
