"""Real child processes: what they measure, and how their failures are told."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import TrialError
from pipeline.records import Trial
from warmup.coldstart import child_environment, engine_command, measure

ROOT = Path(__file__).resolve().parents[2]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def trial_line(variant: str) -> str:
    return json.dumps(Trial(variant, {"ready": 1.0}, (1.0,), (1.0,), 1.0).to_json())


def test_trials_are_new_processes_that_keep_their_first_request(warmable, tmp_path):
    warmable.plan().save(tmp_path / "plan.json")
    command = {"rows": warmable.rows_file, "requests": 33}
    seen = []
    begun = time.monotonic()
    trials = measure(
        {
            "cold": engine_command(warmable.folder, "cold", **command),
            "warm": engine_command(warmable.folder, "warm", plan=tmp_path / "plan.json", **command),
        },
        2,
        lambda done, total, note: seen.append((done, total, note)),
    )
    elapsed_ms = (time.monotonic() - begun) * 1e3
    assert [trial.variant for trial in trials] == ["cold", "warm", "warm", "cold"]
    assert seen == [(1, 4, "cold"), (2, 4, "warm"), (3, 4, "warm"), (4, 4, "cold")]
    for trial in trials:
        marks = [trial.phases_ms[name] for name in ("interpreter", "imports", "load", "warm", "ready")]
        assert 0 < marks[0] < marks[1] < marks[2] <= marks[3] <= marks[4] < elapsed_ms
        assert len(trial.requests_ms) == 33
        assert len(trial.control_ms) == 30  # 11 requests, then three blocks
        assert all(sample > 0 for sample in trial.requests_ms + trial.control_ms)
        assert 20 < trial.peak_rss_mb < 2000
    for trial in (trials[0], trials[3]):
        assert trial.requests_ms[0] > statistics.median(trial.requests_ms), "an unwarmed engine's first request compiles its kernels"
    for trial in (trials[1], trials[2]):
        assert trial.phases_ms["warm"] > trial.phases_ms["load"]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import sys; print('first', file=sys.stderr); print('the reason', file=sys.stderr); sys.exit(5)", r"exit code 5\n    first\n    the reason"),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("raise RuntimeError('in the child')", "RuntimeError: in the child"),
        ("print('no json')", "not a trial: 'no json"),
        ("print('{}')", "not a trial"),
        ("pass", "not a trial: ''"),
        ("import os; print(os.nosuch)", "AttributeError"),
    ],
)
def test_a_process_that_dies_or_talks_nonsense_is_an_error_with_its_last_words(code, told):
    with pytest.raises(TrialError, match=told):
        measure({"broken": python(code)}, 1)


def test_a_process_that_hangs_is_killed_and_told():
    code = "import sys, time; print('waiting for godot', file=sys.stderr, flush=True); time.sleep(60)"
    begun = time.monotonic()
    with pytest.raises(TrialError, match=r"no answer in 2 s\n    waiting for godot"):
        measure({"stuck": python(code)}, 1, timeout_seconds=2)
    assert time.monotonic() - begun < 30


def test_a_command_that_does_not_exist_is_told():
    with pytest.raises(TrialError, match="could not be started"):
        measure({"absent": ["/nonexistent/python"]}, 1)


def test_only_the_last_line_counts_and_the_start_time_is_given():
    started = "int(sys.argv[sys.argv.index('--started') + 1])"
    code = f"import sys, time; assert 0 < time.monotonic_ns() - {started} < 60e9; print('noise'); print('''{trial_line('x')}''')"
    (trial,) = measure({"x": python(code)}, 1)
    assert trial.variant == "x"


def test_a_child_whose_engine_is_missing_says_so(warmable, tmp_path):
    with pytest.raises(TrialError, match=r"(?s)A record is missing.*engine\.json"):
        measure({"cold": engine_command(tmp_path / "nothing", "cold", rows=warmable.rows_file)}, 1)


def test_a_plan_of_another_engine_fails_in_the_child(warmable, overflowing, tmp_path):
    overflowing.plan().save(tmp_path / "plan.json")
    with pytest.raises(TrialError, match="plan is of another engine"):
        measure({"warm": engine_command(warmable.folder, "warm", plan=tmp_path / "plan.json", rows=warmable.rows_file)}, 1)


def test_it_works_from_inside_a_zip(warmable, tmp_path):
    archive = tmp_path / "host.pyz"
    with zipfile.ZipFile(archive, "w") as packed:
        for package in ("pipeline", "engines", "warmup"):
            for path in (ROOT / package).rglob("*.py"):
                packed.write(path, path.relative_to(ROOT).as_posix())
    code = f"""
import sys
sys.path.insert(0, {str(archive)!r})
from pathlib import Path
import warmup.coldstart as coldstart
assert {str(archive)!r} in coldstart.__file__, coldstart.__file__
assert coldstart.child_environment()["PYTHONPATH"].split(":")[0] == {str(archive)!r}
command = coldstart.engine_command(Path({str(warmable.folder)!r}), "cold", rows=Path({str(warmable.rows_file)!r}), requests=5)
print(coldstart.measure({{"cold": command}}, 1))
"""
    ran = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert "Trial(variant='cold'" in ran.stdout


def test_the_childs_environment_keeps_ours_and_holds_the_matrix_library_to_one_thread(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("QWARM_TEST", "kept")
    environment = child_environment()
    assert environment["PYTHONPATH"] == os.pathsep.join([str(ROOT), "/somewhere"])
    assert (environment["QWARM_TEST"], environment["OPENBLAS_NUM_THREADS"]) == ("kept", "1")


def test_rows_that_cannot_be_read_are_told(warmable, tmp_path):
    torn = tmp_path / "rows.npz"
    torn.write_bytes(warmable.rows_file.read_bytes()[:100])
    with pytest.raises(TrialError, match=r"rows\.npz"):
        measure({"cold": engine_command(warmable.folder, "cold", rows=torn)}, 1)
    np.savez(torn, other=np.zeros(3, np.float32))
    with pytest.raises(TrialError, match="Wrong input names"):
        measure({"cold": engine_command(warmable.folder, "cold", rows=torn)}, 1)
