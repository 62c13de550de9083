"""A training that is killed ends as if it had not been; several processes train as one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from tiny_qat import SETTINGS, model_of, run

from calibration.qat.machines import Alone, machine
from calibration.qat.saved import Saved
from calibration.qat.train import Data, train

CHILD = """
import sys, time
sys.path[:0] = {paths!r}
import torch
torch.set_num_threads(1)
from pathlib import Path
import tiny_qat
root, folder = Path({root!r}), Path({folder!r})

def stop_after_the_first_epoch(done, total, note):
    if list(folder.rglob("epoch-*.safetensors")):
        print("saved", flush=True)
        time.sleep(600)

data = tiny_qat.teaching()
tiny_qat.run(tiny_qat.model_of(root), root, data, folder, progress=stop_after_the_first_epoch)
"""


def test_a_killed_run_goes_on_and_ends_with_the_weights_of_one_that_was_not(root: Path, data: Data, tmp_path: Path) -> None:
    model, here = model_of(root), Path(__file__).parents
    code = CHILD.format(paths=[str(here[place]) for place in (0, 1, 3)], root=str(root), folder=str(tmp_path / "killed"))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "saved\n"
        child.send_signal(signal.SIGKILL)
    went_on = run(model, root, data, tmp_path / "killed")
    whole = run(model, root, data, tmp_path / "whole")
    assert (went_on.resumed_after, whole.resumed_after) == (1, None)
    assert went_on.epochs == whole.epochs
    assert all(torch.equal(went_on.state[name], whole.state[name]) for name in whole.state)


def test_a_torn_checkpoint_is_named_and_the_one_before_it_taken(root: Path, data: Data, tmp_path: Path) -> None:
    model, said = model_of(root), list[str]()
    whole = run(model, root, data, tmp_path)
    newest = sorted((tmp_path / "key").iterdir())[-1]
    assert "epoch-000003" in newest.name
    newest.write_bytes(newest.read_bytes()[:-100])
    saved = Saved(tmp_path, "key", say=said.append)
    again = train(model, root, data, SETTINGS, saved, affine=True, method="max", machine=Alone())
    assert again.resumed_after == 2
    assert len(said) == 1
    assert str(newest) in said[0]
    assert all(torch.equal(again.state[name], whole.state[name]) for name in whole.state)


def test_a_saved_state_of_another_key_is_not_met_and_two_are_kept(tmp_path: Path) -> None:
    saved = Saved(tmp_path, "one")
    for epoch in (1, 2, 3):
        saved.save(epoch, {"w": torch.full((2,), float(epoch))}, {"epoch": epoch})
    assert [path.name[:12] for path in sorted((tmp_path / "one").iterdir())] == ["epoch-000002", "epoch-000003"]
    found = saved.newest()
    assert found is not None
    assert found[1] == {"epoch": 3}
    assert found[0]["w"].tolist() == [3.0, 3.0]
    assert Saved(tmp_path, "other").newest() is None
    saved.clear()
    assert saved.newest() is None


SEVERAL = """
import sys
sys.path[:0] = {paths!r}
import torch
torch.set_num_threads(1)
from pathlib import Path
import safetensors.torch
import tiny_qat
from calibration.qat.machines import machine
root, folder, here = Path({root!r}), Path({folder!r}), machine()
result = tiny_qat.run(tiny_qat.model_of(root), root, tiny_qat.teaching(), folder / "saved", machine=here)
safetensors.torch.save_file(result.state, folder / f"{{here.main}}-of-{{here.parts}}.safetensors")
"""


def test_two_processes_of_accelerate_train_as_one(root: Path, data: Data, tmp_path: Path) -> None:
    """On the processor, where `accelerate` talks through gloo: a double for two GPUs, which this has never run on."""
    pytest.importorskip("accelerate")
    code = SEVERAL.format(paths=[str(Path(__file__).parents[place]) for place in (0, 1, 3)], root=str(root), folder=str(tmp_path))
    (tmp_path / "child.py").write_text(code, encoding="utf-8")
    alone = run(model_of(root), root, data, tmp_path / "alone")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(tmp_path / "child.py")]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (safetensors.torch.load_file(tmp_path / f"{main}-of-2.safetensors") for main in (True, False))
    for name, tensor in alone.state.items():
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], tensor, rtol=1e-3, atol=1e-4)  # sums in another order
    assert len(list((tmp_path / "saved" / "key").iterdir())) == 2  # written once


def test_without_a_gpu_or_a_launcher_training_is_one_process_on_the_processor() -> None:
    assert type(machine()) is Alone or torch.cuda.is_available()
    assert Alone().share(np.arange(5)).tolist() == [0, 1, 2, 3, 4]
