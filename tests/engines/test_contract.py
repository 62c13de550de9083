"""The same tests on every backend: what `engines.targets()` lists is what runs here."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny_onnx
from onnx.reference import ReferenceEvaluator

import engines
from engines.stored import read_engine
from pipeline.digests import sha256_file, sha256_json
from pipeline.errors import ConfigError, InputError, ModelError, RecordError, Refused, TargetError
from pipeline.padding import cut
from warmup.plan import pad_to_plan

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("target", engines.targets())
def test_backend_declares_what_the_contract_asks(target):
    backend = engines.backend(target)
    assert target in backend.TARGETS
    assert backend.SCHEMES[target]
    assert backend.HOST_PACKAGES[target]
    key = backend.platform_key(target)
    assert key == backend.platform_key(target)
    assert all(isinstance(name, str) and isinstance(value, str) for name, value in key.items())
    assert {"os", "architecture"} < set(key)
    assert not any(private in json.dumps(key) for private in (os.uname().nodename, str(Path.home())))
    reasons = [backend.unavailable(target), backend.unrunnable(target)]
    assert all(reason is None or "install" in reason or "machine" in reason for reason in reasons)
    assert reasons[0] is None or reasons[1] is not None  # what cannot be built here cannot be run here


def test_build_writes_a_folder_that_describes_itself(built):
    for precision, folder in built.folders.items():
        engine = read_engine(folder)
        assert engine == built.engines[precision]
        assert {path.name for path in folder.iterdir()} == {"engine.json", *engine.files}
        assert all(sha256_file(folder / name) == file.sha256 and (folder / name).stat().st_size == file.bytes for name, file in engine.files.items())
        assert engine.model_sha256 == sha256_file(built.models[precision])
        assert engine.recipe_sha256 == sha256_json(engine.recipe)
        assert (engine.target, engine.precision, engine.platform_key) == (built.target, precision, built.platform.key)
        assert str(folder.parent) not in (folder / "engine.json").read_text()


@pytest.mark.parametrize("precision", ["int8", "float32"])
@pytest.mark.parametrize("rows", [1, 4, 8, 3])
def test_min_opt_max_and_other_shapes_give_the_models_outputs(running, precision, rows):
    inputs = tiny_onnx.images(rows, seed=rows)
    (wanted,) = ReferenceEvaluator(onnx.load(running.models[precision])).run(None, inputs)
    with engines.open_engine(running.folders[precision]) as session:
        got = session.run(inputs)
    assert set(got) == {"logits"}
    assert got["logits"].shape == (rows, 5)
    assert got["logits"].dtype == np.float32
    np.testing.assert_allclose(got["logits"], wanted, atol=2e-2 if precision == "int8" else 1e-4)


def test_a_fresh_process_gives_the_same_outputs(running):
    inputs = tiny_onnx.images(3)
    with engines.open_engine(running.folders["int8"]) as session:
        wanted = session.run(inputs)["logits"]
    code = f"""
import sys, threading, numpy as np, engines
sys.setswitchinterval(1e-5)
image = np.array({inputs["image"].tolist()}, np.float32)
results, gate = [], threading.Barrier(4)
with engines.open_engine({str(running.folders["int8"])!r}, concurrency=4) as session:
    def first_request():
        gate.wait()
        results.append(session.run({{"image": image}})["logits"].tolist())
    threads = [threading.Thread(target=first_request) for _ in range(4)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
assert results[1:] == results[:-1]
print(results[0])
"""  # four threads whose first requests meet: a runtime's lazy set-up must stand it
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    np.testing.assert_array_equal(np.array(json.loads(ran.stdout), np.float32), wanted)


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        ({"picture": np.zeros((1, 3, 8, 8), np.float32)}, "names"),
        ({}, "names"),
        ({"image": np.zeros((1, 3, 8, 8), np.float32), "more": np.zeros(1, np.float32)}, "names"),
        ({"image": np.zeros((1, 3, 8, 8), np.float64)}, "dtype"),
        ({"image": np.zeros((1, 3, 8, 8), np.uint8)}, "dtype"),
        ({"image": np.zeros((3, 8, 8), np.float32)}, "rank"),
        ({"image": np.zeros((1, 8, 8, 3), np.float32)}, "shape"),
        ({"image": np.zeros((0, 3, 8, 8), np.float32)}, "range"),
        ({"image": np.zeros((9, 3, 8, 8), np.float32)}, "range"),
    ],
)
def test_wrong_inputs_are_refused(running, inputs, named):
    with engines.open_engine(running.folders["float32"]) as session, pytest.raises(InputError, match=named):
        session.run(inputs)


def test_eight_threads_on_two_slots_get_their_own_rows(running):
    batches = [tiny_onnx.images(1 + index % 8, seed=index) for index in range(64)]
    with engines.open_engine(running.folders["int8"]) as session:
        alone = [session.run(batch)["logits"] for batch in batches]
    with engines.open_engine(running.folders["int8"], concurrency=2) as session, ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda batch: session.run(batch)["logits"], batches))
    for wanted, got in zip(alone, together, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_outputs_are_copies_and_inputs_may_be_views(running):
    inputs = tiny_onnx.images(4)
    with engines.open_engine(running.folders["float32"]) as session:
        first = session.run(inputs)["logits"]
        kept = first.copy()
        session.run(tiny_onnx.images(4, seed=9))
        np.testing.assert_array_equal(first, kept)
        turned = np.asfortranarray(inputs["image"])
        assert not turned.flags.c_contiguous
        np.testing.assert_allclose(session.run({"image": turned})["logits"], kept, atol=1e-6)
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize("damage", ["flip", "truncate", "grow", "remove", "link"])
def test_a_changed_file_is_refused_by_name_before_the_runtime_sees_it(built, tmp_path, monkeypatch, damage):
    for name in built.engines["int8"].files:
        folder = shutil.copytree(built.folders["int8"], tmp_path / name / "engine")
        change(folder / name, damage, tmp_path / name / "elsewhere")
        backend = engines.backend(built.target)
        with pytest.raises(Refused, match=name):
            backend.load(folder, built.engines["int8"], concurrency=1)

        def load(*_: object, **__: object) -> None:
            raise AssertionError("the backend was asked to load a changed engine")

        with monkeypatch.context() as patch, pytest.raises(Refused, match=name):
            patch.setattr(backend, "load", load)
            engines.open_engine(folder)


def change(path, damage, elsewhere):
    content = path.read_bytes()
    middle = len(content) // 2
    changed = {
        "flip": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :], "truncate": content[:-1], "grow": content + b"\0",
    }  # fmt: skip
    if damage in changed:
        path.write_bytes(changed[damage])
        return
    path.rename(elsewhere)
    if damage == "link":
        path.symlink_to(elsewhere)


def test_a_missing_or_torn_record_is_named(built, tmp_path):
    folder = shutil.copytree(built.folders["int8"], tmp_path / "engine")
    record = folder / "engine.json"
    record.write_text(record.read_text()[:100])
    with pytest.raises(RecordError, match=r"engine\.json"):
        engines.open_engine(folder)
    record.unlink()
    with pytest.raises(RecordError, match=r"engine\.json"):
        engines.open_engine(folder)


def test_an_engine_of_another_platform_says_which_key_differs(built, tmp_path):
    folder = shutil.copytree(built.folders["int8"], tmp_path / "engine")
    plain = json.loads((folder / "engine.json").read_text())
    plain["key_fields"]["architecture"] = "z80"
    (folder / "engine.json").write_text(json.dumps(plain))
    with pytest.raises(TargetError, match="architecture: built for z80, here"):
        engines.open_engine(folder)


def test_a_failed_build_leaves_what_was_there(built, tmp_path):
    garbage = tmp_path / "garbage.onnx"
    garbage.write_bytes(b"\x08\x09not a model")
    with pytest.raises(ModelError, match=r"garbage\.onnx"):
        built.build(garbage, tmp_path / "new")
    folder = shutil.copytree(built.folders["int8"], tmp_path / "engine")
    with pytest.raises(ModelError):
        built.build(garbage, folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["engine", "garbage.onnx"]
    assert read_engine(folder) == built.engines["int8"]


def test_a_build_for_a_stale_platform_record_is_refused(built, tmp_path):
    stale = dataclasses.replace(built.platform, key_fields={**built.platform.key_fields, "os": "Plan 9"})
    with pytest.raises(TargetError, match="os: built for Plan 9"):
        built.build(built.models["int8"], tmp_path / "engine", platform=stale)
    with pytest.raises(ConfigError, match="int4"):
        built.build(built.models["int8"], tmp_path / "engine", precision="int4")
    assert not (tmp_path / "engine").exists()


def test_census_counts_every_multiplying_node(built):
    int8, float32 = (built.engines[precision].census for precision in ("int8", "float32"))
    if int8 is None:
        assert float32 is None
        assert engines.backend(built.target).unrunnable(built.target)  # only what cannot run here may leave it open
        return
    macs = {"conv0": 16 * 27 * 64, "conv1": 16 * 144 * 64, "head_gemm": 80}
    for census in (int8, float32):
        assert {layer.name: layer.macs for layer in census.layers} == macs
    assert float32.int8_share == 0.0
    assert {layer.precision for layer in float32.layers} == {"FP32"}
    assert int8.int8_share == pytest.approx(sum(layer.macs for layer in int8.layers if layer.precision == "INT8") / sum(macs.values()))
    assert int8.int8_share >= 0.9


def test_census_says_why_a_node_is_in_float_and_what_only_converts(built):
    if (int8 := built.engines["int8"].census) is None:
        pytest.skip("nothing here can say what the engine executes in")
    whys = {layer.name: layer.why for layer in int8.layers}
    assert {whys["conv0"], whys["conv1"]} == {""}
    assert "DequantizeLinear" in whys["head_gemm"]
    assert all(layer.why for layer in built.engines["float32"].census.layers)
    assert sum(int8.conversions.values()) >= 1  # the image becomes INT8 somewhere
    assert all(count > 0 for count in int8.conversions.values())


@pytest.mark.parametrize("rows", [1, 3, 5])
def test_a_batch_that_no_rung_holds_is_padded_and_cut_back(running, rows):
    inputs = tiny_onnx.images(rows, seed=rows)
    with engines.open_engine(running.folders["int8"]) as session:
        padded, sizes = pad_to_plan(inputs, tiny_onnx.INPUTS, {"batch": (4, 8)})
        assert len(padded["image"]) == (4 if rows < 5 else 8)
        got = cut(session.run(padded), tiny_onnx.OUTPUTS, sizes)["logits"]
        np.testing.assert_allclose(got, session.run(inputs)["logits"], atol=1e-5)
    assert got.shape == (rows, 5)


@pytest.mark.parametrize("kind", ["inputs", "outputs"])
def test_an_engine_whose_tensors_are_not_the_records_is_refused(running, tmp_path, kind):
    folder = shutil.copytree(running.folders["int8"], tmp_path / "engine")
    plain = json.loads((folder / "engine.json").read_text())
    plain[kind][0]["name"] = "other"
    (folder / "engine.json").write_text(json.dumps(plain))
    with pytest.raises(TargetError, match=f"other {kind}"):
        engines.open_engine(folder)


def test_an_engine_that_cannot_run_here_says_why(built):
    reason = engines.backend(built.target).unrunnable(built.target)
    if reason is None:
        engines.open_engine(built.folders["int8"]).close()
        return
    with pytest.raises(TargetError) as caught:
        engines.open_engine(built.folders["int8"])
    assert reason in str(caught.value)


def test_a_setting_that_the_backend_does_not_know_is_named(built, tmp_path):
    with pytest.raises(ConfigError, match="thread_colour"):
        built.build(built.models["int8"], tmp_path / "engine", settings={"thread_colour": "red"})
    assert not (tmp_path / "engine").exists()


def test_progress_only_grows_and_ends_at_its_total(built, tmp_path):
    told = []
    built.build(built.models["float32"], tmp_path / "engine", "float32", progress=lambda *step: told.append(step))
    assert told
    assert all(first[0] <= second[0] <= second[1] for first, second in itertools.pairwise(told))
    assert told[-1][0] == told[-1][1]


OPEN_AND_CLOSE = """
import gc, os, sys
from pathlib import Path
import numpy as np
import engines
rows = {name: array for name, array in np.load(sys.argv[2]).items()}
for count in range(60):
    with engines.open_engine(sys.argv[1]) as session:
        session.run(rows)
    del session
    gc.collect()
    if count in (11, 59):
        print(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"), len(list(Path("/proc/self/task").iterdir())))
"""


def test_closing_gives_memory_and_threads_back(running, tmp_path):
    """48 sessions one after the other in a process of their own. Kept open they would take 10 to 22 MB, and a thread each."""
    np.savez(tmp_path / "rows.npz", **tiny_onnx.images(8))
    ran = subprocess.run(
        [sys.executable, "-c", OPEN_AND_CLOSE, str(running.folders["float32"]), str(tmp_path / "rows.npz")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    (first, threads), (last, threads_at_the_end) = (map(int, line.split()) for line in ran.stdout.splitlines())
    assert last - first < 5 << 20
    assert threads_at_the_end <= threads
