"""`ready` is true only while the very process lives that wrote the state."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet import state
from fleet.main import main
from pipeline.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
WRITE = """
import sys, time
from pathlib import Path
from fleet import state
state.write(Path(sys.argv[1]), bundle=Path("/b"), bundle_sha256=sys.argv[2], name="tiny", version="1.0.0", target="t", address=None, ready_ms=5.0)
print("written", flush=True)
time.sleep(120)
"""


def start(folder: Path, digest: str = "ab" * 32) -> subprocess.Popen[str]:
    """A process that says it is warm and then sleeps."""
    process = subprocess.Popen([sys.executable, "-c", WRITE, str(folder), digest], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    return process


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = start(tmp_path)
    yield process
    process.kill()
    process.communicate()


def test_true_while_it_lives_and_false_once_it_is_a_zombie(warm: subprocess.Popen[str], tmp_path: Path) -> None:
    found, reason = state.readiness(tmp_path)
    assert found is not None, reason
    assert found.pid == warm.pid
    warm.kill()
    while Path(f"/proc/{warm.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":  # dead, and nobody has asked for its exit code
        time.sleep(0.01)
    found, reason = state.readiness(tmp_path)
    assert found is None
    assert "gone" in reason


def test_false_after_sigkill(warm: subprocess.Popen[str], tmp_path: Path) -> None:
    assert main(["ready", "--state", str(tmp_path)]) == 0
    warm.send_signal(signal.SIGKILL)
    warm.wait()
    assert main(["ready", "--state", str(tmp_path)]) == 1


@pytest.mark.usefixtures("warm")
def test_a_reused_pid_and_another_boot_do_not_count(tmp_path: Path) -> None:
    [(path, found)] = state.read_all(tmp_path)
    assert found is not None
    for change in ({"started_ticks": found.started_ticks - 1}, {"boot_id": "another"}, {"pid": os.getpid()}):
        dataclasses.replace(found, **change).save(path)
        assert state.living(tmp_path) == []
    found.save(path)
    assert state.living(tmp_path) == [found]


def test_torn_foreign_and_linked_files_do_not_count(warm: subprocess.Popen[str], tmp_path: Path) -> None:
    [(path, _)] = state.read_all(tmp_path)
    (tmp_path / "process-1.json").write_text("{")
    (tmp_path / "process-2.json").write_text('{"schema": "qwarm.state/9"}')
    (tmp_path / "process-3.json").symlink_to(path)
    assert [found.pid for found in state.living(tmp_path)] == [warm.pid]


def test_why_nothing_is_ready_tells_torn_from_gone(tmp_path: Path) -> None:
    dead = start(tmp_path)
    dead.kill()
    dead.communicate()
    (tmp_path / "process-1.json").write_text("{")
    _, reason = state.readiness(tmp_path)
    assert f"process-{dead.pid}.json is of a process that is gone; process-1.json cannot be read" in reason


def test_a_bundle_that_is_not_there_is_said_where_nothing_is_warm(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no bundle"):
        state.readiness(tmp_path, tmp_path / "no such bundle")


@pytest.mark.parametrize("module", ["fleet.main", "cli.main"])
def test_a_reader_that_has_gone_is_no_fault_to_talk_about(module: str, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", module, "status", "--state", str(tmp_path), "--json"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("options", [["--queue", "-1"], ["--drain-seconds", "nan"], ["--drain-seconds", "-1"]])
def test_a_number_that_cannot_be_is_a_usage_error(options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["serve", str(tmp_path), *options])
    assert options[0] in capsys.readouterr().err


def test_the_bundle_is_told_by_its_manifest(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle/manifest.json").write_text("{}")
    digest = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    process, other = start(tmp_path / "state", digest), start(tmp_path / "state")
    try:
        found, _ = state.readiness(tmp_path / "state", tmp_path / "bundle")
        assert found is not None
        assert found.pid == process.pid
        process.kill()
        process.wait()
        found, reason = state.readiness(tmp_path / "state", tmp_path / "bundle")
        assert found is None
        assert "abababababab" in reason
        with pytest.raises(ConfigError):
            state.readiness(tmp_path / "state", tmp_path / "no such bundle")
    finally:
        for each in (process, other):
            each.kill()
            each.communicate()


def test_a_new_process_sweeps_what_the_dead_left(tmp_path: Path) -> None:
    dead = start(tmp_path)
    dead.kill()
    dead.communicate()
    assert len(state.read_all(tmp_path)) == 1
    alive = start(tmp_path)
    assert [path.name for path, _ in state.read_all(tmp_path)] == [f"process-{alive.pid}.json"]
    alive.kill()
    alive.communicate()


def test_status_and_json(warm: subprocess.Popen[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--state", str(tmp_path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ready"]
    assert answer["processes"][0]["pid"] == warm.pid
    assert main(["ready", "--state", str(tmp_path / "nowhere"), "--json"]) == 1
    assert not json.loads(capsys.readouterr().out)["ready"]
    assert main(["status", "--state", str(tmp_path / "nowhere")]) == 0
    assert "not ready" in capsys.readouterr().out


def test_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1")
    assert state.default_folder() == Path("/run/user/1/qwarm")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert state.default_folder().name == f"qwarm-{os.getuid()}"


@pytest.mark.usefixtures("warm")
def test_the_probes_load_the_standard_library_only(tmp_path: Path) -> None:
    code = (
        "import sys; from fleet.main import main; code = main(sys.argv[1:])\n"
        "ours = {'fleet', 'pipeline'}\n"
        "tops = {name.partition('.')[0] for name in sys.modules}\n"
        "foreign = {top for top in tops if top not in sys.stdlib_module_names and top not in ours and not top.startswith('_')}\n"
        "print('foreign', sorted(foreign)); raise SystemExit(code)"
    )
    for command in ("ready", "status"):
        run = subprocess.run([sys.executable, "-S", "-c", code, command, "--state", str(tmp_path)], capture_output=True, text=True, cwd=ROOT)
        assert run.returncode == 0, run.stderr
        assert "foreign []" in run.stdout
