"""Blobs for lesser CPUs: exported by real children under oneDNN's limit, and taken by a process that believes it has such a CPU.

The lesser CPU is a double: its flags are fewer than this machine's. That kernels of a level run on a real CPU of that level is not shown here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_onnx

import engines
from engines import ov, ov_levels
from pipeline.errors import ConfigError, TargetError

ROOT = Path(__file__).resolve().parents[2]
TARGET = "openvino-cpu"
HERE = [level for level in ("AVX2", "AVX512_CORE_VNNI") if ov_levels.best_level((level,), ov_levels.flags_here(), "")]
pytestmark = pytest.mark.skipif(
    ov.unavailable(TARGET) is not None or "AVX2" not in HERE or os.environ.get(ov_levels.LIMIT) is not None,
    reason=str(ov.unavailable(TARGET) or "no x86-64 CPU with AVX2, or a limit that is set already"),
)
OPEN = f"""
import json, sys
import numpy as np
from engines import ov_levels
import engines, pipeline.platforms
facts = {{"flags": sys.argv[3]}}
pipeline.platforms.cpu_facts = ov_levels.cpu_facts = lambda: facts
if sys.argv[4:]:
    engines.open_engine(sys.argv[4]).close()
with engines.open_engine(sys.argv[1]) as session:
    result = session.run(dict(np.load(sys.argv[2])))["logits"].tolist()
import os
print(json.dumps([os.environ.get({ov_levels.LIMIT!r}), engines.backend({TARGET!r}).misfit({TARGET!r}, session.engine.key_fields), result]))
"""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("levels")
    model = tiny_onnx.conv_net(folder / "model.onnx", scheme="cpu")
    engine = engines.backend(TARGET).build(
        model, folder / "engine", target=TARGET, precision="int8", inputs=tiny_onnx.INPUTS, outputs=tiny_onnx.OUTPUTS, shapes=tiny_onnx.SHAPES,
        platform=engines.platform_here(TARGET), settings={"isa_levels": HERE[::-1]},
    )  # fmt: skip
    return folder / "engine", engine


def opened(folder: Path, tmp_path: Path, flags: str, *first: str) -> subprocess.CompletedProcess[str]:
    np.savez(tmp_path / "rows.npz", **tiny_onnx.images(3))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", OPEN, str(folder), str(tmp_path / "rows.npz"), flags, *first]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_one_build_exports_a_blob_a_level_and_says_what_each_is(mixed):
    folder, engine = mixed
    assert set(engine.files) == {ov.BLOB, ov_levels.SEEN, *map(ov_levels.blob_name, HERE)}
    assert engine.recipe["settings"] == {**ov.SETTINGS, "isa_levels": HERE}
    assert engine.key_fields["isa_levels"] == " ".join(HERE)
    assert engine.platform_key == engines.platform_here(TARGET).key
    seen = json.loads((folder / ov_levels.SEEN).read_text())
    assert list(seen) == sorted(HERE)
    assert all(level["int8_share"] >= 0.9 and level["largest_difference"] <= 0.02 * level["largest_value"] for level in seen.values())
    headers = [(folder / name).read_bytes()[:200].split(b"isa=")[1].split(b"\0")[0] for name in engine.files if name.endswith(".blob")]
    assert len(set(headers)) >= len(HERE)


@pytest.mark.parametrize("level", HERE)
def test_a_lesser_cpu_takes_the_highest_blob_that_it_can_run(mixed, tmp_path, level):
    folder, _ = mixed
    with engines.open_engine(folder) as session:  # here the native blob
        wanted = session.run(tiny_onnx.images(3))["logits"]
        assert os.environ.get(ov_levels.LIMIT) is None
    ran = opened(folder, tmp_path, " ".join(ov_levels.LEVELS[level]))
    assert ran.returncode == 0, ran.stderr
    limit, misfit, got = json.loads(ran.stdout)
    assert (limit, misfit) == (level, [])
    np.testing.assert_allclose(got, wanted, atol=2e-2)


def test_a_cpu_below_every_level_is_refused_by_name(mixed, tmp_path):
    ran = opened(mixed[0], tmp_path, "sse4_1")
    assert ran.returncode != 0
    assert "isa: built for" in ran.stderr
    assert "TargetError" in ran.stderr


def test_another_version_is_no_matter_of_the_instruction_set(mixed):
    lines = ov.misfit(TARGET, {**mixed[1].key_fields, "openvino": "1.0", "isa": "another"})
    assert [line.partition(":")[0] for line in lines] == ["openvino"]
    assert [line.partition(":")[0] for line in ov.misfit(TARGET, {**mixed[1].key_fields, "isa": "another", "isa_levels": ""})] == ["isa"]


def test_a_process_whose_limit_came_too_late_says_so(mixed, built, tmp_path):
    if built.target != TARGET:
        pytest.skip("another backend")
    lesser = opened(mixed[0], tmp_path, " ".join(ov_levels.LEVELS["AVX2"]), str(built.folders["float32"]))
    assert lesser.returncode != 0
    assert "TargetError" in lesser.stderr


@pytest.mark.parametrize("wrong", ["AVX2", ["AVX1"], ["AVX2", 512], {"AVX2": 1}])
def test_a_level_that_is_none_is_refused(tmp_path, wrong):
    model = tiny_onnx.conv_net(tmp_path / "model.onnx", scheme="cpu")
    with pytest.raises(ConfigError, match="AVX2"):
        ov.build(
            model, tmp_path / "engine", target=TARGET, precision="int8", inputs=tiny_onnx.INPUTS, outputs=tiny_onnx.OUTPUTS, shapes=tiny_onnx.SHAPES,
            platform=engines.platform_here(TARGET), settings={"isa_levels": wrong},
        )  # fmt: skip
    assert not (tmp_path / "engine").exists()


def test_levels_are_chosen_by_flags_and_by_the_limit_that_holds():
    every = set(ov_levels.LEVELS)
    flags = set(ov_levels.LEVELS["AVX512_CORE_VNNI"]) | set(ov_levels.LEVELS["AVX2_VNNI"])
    assert ov_levels.best_level(every, flags, "") == "AVX512_CORE_VNNI"
    assert ov_levels.best_level(every - {"AVX512_CORE_VNNI"}, flags, "ALL") == "AVX512_CORE"
    assert ov_levels.best_level(every, flags, "AVX2") == "AVX2"
    assert ov_levels.best_level(every, flags, "AVX10_2_512") is None
    assert ov_levels.best_level({"AVX512_CORE_BF16"}, flags, "") is None
    assert ov_levels.best_level((), flags, "") is None


def test_the_target_error_of_a_missing_level_is_ours(mixed, monkeypatch):
    monkeypatch.setattr(ov_levels, "cpu_facts", lambda: {"flags": "sse4_1"})
    with pytest.raises(TargetError, match="isa_flags"):
        engines.open_engine(mixed[0])
