"""`fleet.open`: verified, loaded and warm in the calling process, with the shipped preprocessing."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from test_verify import reseal

import fleet
from fleet import host, state
from fleet.parts import read_parts
from fleet.verify import verify
from pipeline.errors import ConfigError, InputError, Refused, TargetError, TrialError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def served(bundle: Path, public_key: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[fleet.Served]:
    with fleet.open(bundle, state=tmp_path_factory.mktemp("state"), key=public_key) as opened:
        yield opened


def rows_of(bundle: Path) -> np.ndarray:
    return np.load(bundle / "warmup/rows.npz")["image"]


def test_first_infer_equals_the_recorded_output_in_a_fresh_process(bundle: Path, public_key: Path, tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np, fleet\n"
        "served = fleet.open(sys.argv[1], state=sys.argv[2], key=sys.argv[3])\n"
        "rows = np.load(sys.argv[1] + '/warmup/rows.npz')['image']\n"
        "recorded = np.load(sys.argv[1] + '/targets/openvino-cpu/expected.npz')['logits']\n"
        "for index in range(len(rows)):\n"
        "    assert np.array_equal(served.infer({'image': rows[index:index + 1]})['logits'], recorded[index:index + 1]), index\n"
        "print(sorted(served.timings_ms))"
    )
    run = subprocess.run([sys.executable, "-c", code, str(bundle), str(tmp_path), str(public_key)], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "['load', 'ready', 'verify', 'warm']"


def test_off_ladder_batches_are_padded_and_cut_back(served: fleet.Served, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(bundle)
    seen: list[int] = []
    run = served.session.run
    monkeypatch.setattr(served.session, "run", lambda inputs: seen.append(len(inputs["image"])) or run(inputs))
    for count in (1, 2, 3, 4):
        answer = served.infer({"image": rows[:count]})["logits"]
        assert answer.shape == (count, 3)
        np.testing.assert_allclose(answer, run({"image": rows[:count]})["logits"], rtol=1e-5, atol=1e-6)
    assert seen == [1, 4, 4, 4]


def test_bad_inputs_are_refused_as_the_caller_gave_them(served: fleet.Served, bundle: Path) -> None:
    rows = rows_of(bundle)
    for inputs in ({"image": rows[:0]}, {"image": rows}, {"image": rows[:1].astype(np.float64)}, {"picture": rows[:1]}, {}):
        with pytest.raises(InputError):
            served.infer(inputs)
    with pytest.raises(InputError, match="got: *5"):
        served.infer({"image": rows})


def test_prepare(served: fleet.Served) -> None:
    picture = np.full((8, 8), 255, np.uint8)
    one, many = served.prepare({"picture": picture}), served.prepare([{"picture": picture}, {"picture": picture // 2}, {"picture": picture}])
    assert one["image"].shape == (1, 1, 8, 8)
    assert many["image"].shape == (3, 1, 8, 8)
    assert served.infer(many)["logits"].shape == (3, 3)
    for raw, name in (([{"picture": picture}, {}], "row 1"), ([{"picture": picture.astype(float)}], "row 0"), ([], "no row")):
        with pytest.raises(InputError, match=name):
            served.prepare(raw)
    with pytest.raises(InputError, match="have different shapes"):
        served.prepare([{"picture": picture}, {"picture": picture[:4]}])
    with pytest.raises(InputError):
        served.prepare({"picture": picture[:4]})


def test_a_bundle_that_nobody_vouches_for_is_not_opened(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="integrity only, origin unknown"):
        fleet.open(bundle, state=tmp_path / "state")
    with pytest.raises(ConfigError, match="cannot be read"):
        fleet.open(bundle, state=tmp_path / "state", key=tmp_path / "none.pub")
    assert not (tmp_path / "state").exists()


def test_labels_and_state(bundle: Path, tmp_path: Path) -> None:
    with fleet.open(bundle, state=tmp_path, allow_unsigned=True) as opened:
        assert opened.labels == ("cat", "dog", "eel")
        found, _ = state.readiness(tmp_path, bundle)
        assert found is not None
        assert (found.pid, found.address, found.target) == (os.getpid(), None, "openvino-cpu")
    assert state.readiness(tmp_path, bundle)[0] is None
    with pytest.raises(TargetError):
        opened.infer({"image": rows_of(bundle)[:1]})


def test_nothing_is_written_into_the_bundle(served: fleet.Served, bundle: Path) -> None:
    served.prepare({"picture": np.zeros((8, 8), np.uint8)})
    assert verify(bundle, allow_unsigned=True).manifest == served.manifest


def test_targets_that_do_not_fit_are_named_with_what_differs(bundle: Path, copy: Callable[[], Path], tmp_path: Path) -> None:
    def foreign(manifest: dict[str, Any]) -> None:
        manifest["targets"][0]["key_fields"].update(isa="avx2", openvino="2026.3.0")

    changed = copy()
    reseal(changed, foreign)
    with pytest.raises(TargetError, match=r"openvino-cpu: .*isa: built for avx2.*openvino: built for 2026\.3\.0"):
        fleet.open(changed, state=tmp_path / "state", allow_unsigned=True)
    assert not (tmp_path / "state").exists()
    with pytest.raises(TargetError, match=r"no such target(?s:.)*tensorrt-rtx"):
        host.choose(verify(bundle, allow_unsigned=True).manifest, "tensorrt-rtx")
    reseal(changed, lambda manifest: manifest["targets"][0].update(target="vax-11"))
    with pytest.raises(TargetError, match="vax-11"):
        fleet.open(changed, state=tmp_path / "state", allow_unsigned=True)


def test_concurrency_is_what_was_warmed(bundle: Path, tmp_path: Path, served: fleet.Served) -> None:
    assert served.session.concurrency == 2
    for concurrency in (0, 3):
        with pytest.raises(ConfigError, match="concurrent"):
            fleet.open(bundle, state=tmp_path, concurrency=concurrency, allow_unsigned=True)


def test_an_output_that_is_not_the_recorded_one_never_gets_ready(parts: dict[str, Any], tmp_path: Path) -> None:
    warm = tmp_path / "warm"
    warm.mkdir()
    source = parts["warm"][tiny.TARGET]
    for name in ("plan.json", "rows.npz"):
        (warm / name).write_bytes((source / name).read_bytes())
    np.savez(warm / "expected.npz", logits=np.load(source / "expected.npz")["logits"] + 1.0)
    wrong = tiny.pack(parts, tmp_path / "release", warm={tiny.TARGET: warm})
    with pytest.raises(TrialError, match="not what was recorded"):
        fleet.open(wrong, state=tmp_path / "state", allow_unsigned=True)
    assert not (tmp_path / "state").exists()


def test_records_that_do_not_belong_together(copy: Callable[[], Path], tmp_path: Path) -> None:
    changed = copy()
    reseal(changed, lambda manifest: manifest["targets"][0].update(plan_sha256="0" * 64))
    with pytest.raises(Refused, match="plan_sha256"):
        fleet.open(changed, state=tmp_path, allow_unsigned=True)


def test_what_runs_is_what_was_verified(copy: Callable[[], Path]) -> None:
    """Files swapped between the check and the load are refused: no bytes but the verified ones are executed or deserialized."""
    for name in ("preprocess.py", "warmup/rows.npz", "targets/openvino-cpu/plan.json", "targets/openvino-cpu/engine.json", "labels.json"):
        changing = copy()
        verified = verify(changing, allow_unsigned=True)
        (changing / name).write_text("raise SystemExit('executed')")
        with pytest.raises(Refused, match=Path(name).name):
            read_parts(verified, verified.manifest.targets[0])
    changing = copy()
    read = read_parts(verify(changing, allow_unsigned=True), verify(changing, allow_unsigned=True).manifest.targets[0])
    blob = changing / "targets/openvino-cpu/model.blob"
    content = bytearray(blob.read_bytes())
    content[len(content) // 2] ^= 1
    blob.write_bytes(content)
    with pytest.raises(Refused, match=r"model\.blob"):
        read.open_session()


def test_pickles_are_refused(copy: Callable[[], Path], tmp_path: Path) -> None:
    changed = copy()
    np.savez(changed / "warmup/rows.npz", image=np.array([{"a": 1}], dtype=object))
    content = (changed / "warmup/rows.npz").read_bytes()
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    reseal(changed, lambda manifest: manifest["files"].update({"warmup/rows.npz": entry}))
    with pytest.raises(Exception, match=r"rows\.npz") as caught:
        fleet.open(changed, state=tmp_path, allow_unsigned=True)
    assert "pickle" in str(caught.value)


def test_importing_fleet_loads_no_numpy() -> None:
    code = "import sys, fleet; assert 'numpy' not in sys.modules; fleet.open; assert 'numpy' in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_a_host_makes_no_record_classes_of_what_was_measured() -> None:
    """Half a millisecond each, before the first request."""
    code = (
        "import sys, fleet.host; assert 'pipeline.manifest_records' in sys.modules\n"
        "assert not {'pipeline.model_records', 'pipeline.release_records'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_version_is_the_projects() -> None:
    import tomllib

    assert fleet.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_a_runtime_that_hangs_gives_way_too(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verified = verify(bundle, allow_unsigned=True)
    good = verified.manifest.targets[0]
    monkeypatch.setattr(host, "fitting", lambda _manifest, _target: [dataclasses.replace(good, target="first"), good])
    released, opened = threading.Event(), host.Parts.open_session

    def hanging_first(parts: Any, concurrency: Any) -> Any:
        session = opened(parts, concurrency)
        if parts.released.target == "first":
            parts.plan = dataclasses.replace(parts.plan, max_seconds=0.3)
            session._infer = lambda *_: released.wait(60)
        return session

    monkeypatch.setattr(host.Parts, "open_session", hanging_first)
    with host.load(verified) as served:
        assert "too long" in served.fell_back["first"]
    released.set()


def test_a_target_that_cannot_be_made_hot_gives_way_to_the_next_that_fits(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verified = verify(bundle, allow_unsigned=True)
    good = verified.manifest.targets[0]
    monkeypatch.setattr(host, "fitting", lambda _manifest, _target: [dataclasses.replace(good, target="first"), good])
    run_plan, failures = host.run_plan, iter([TrialError("it stays cold"), None])

    def failing_first(*arguments: Any) -> Any:
        if (failure := next(failures, None)) is not None:
            raise failure
        return run_plan(*arguments)

    monkeypatch.setattr(host, "run_plan", failing_first)
    with host.load(verified) as served:
        assert served.target == good.target
        assert served.fell_back == {"first": "it stays cold"}
        assert served.infer({"image": rows_of(bundle)[:1]})["logits"].shape == (1, 3)
    failures = iter([TrialError("cold"), TrialError("cold too")])
    with pytest.raises(TrialError, match="cold too"):
        host.load(verified)
    failures = iter([Refused("not as signed")])
    with pytest.raises(Refused):
        host.load(verified)
