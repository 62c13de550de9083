"""Real modelopt on tiny networks: what is trained, what stays in float, and a run that is killed and ends as if it had not been."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from tiny_sources import pictures, prepare

from calibration.checkpoint import load_module
from calibration.qat.fake import insert
from calibration.qat.machines import Alone, machine
from calibration.qat.means import corrected
from calibration.qat.saved import Saved
from calibration.qat.teacher import outputs, worst_db
from calibration.qat.train import Data, Trained, train
from calibration.tracing import bind, call
from pipeline.config import ModelConfig, TrainingConfig
from pipeline.errors import ModelError
from pipeline.loading import load_object
from pipeline.tensors import AxisRange

FACTORY = '''
import torch
from torch import nn
from torch.nn import functional


class Padded(nn.Conv2d):
    """With a forward of its own, as in many published networks."""

    def forward(self, x):
        return functional.conv2d(functional.pad(x, (1, 1, 1, 1)), self.weight, self.bias)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = Padded(1, 16, 3), nn.BatchNorm2d(16)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.layer_norm = nn.LayerNorm(8)
        self.unused, self.table = nn.Linear(8, 8), nn.Embedding(4, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, image):
        x = torch.relu(self.norm(self.stem(image)))
        x = self.layer_norm(torch.relu(self.up(x)).mean((2, 3)))
        x = functional.linear(x, self.unused.weight)
        return self.head(x), x.argmax(1)


class Dropping(Net):
    def forward(self, image):
        scores, best = super().forward(image)
        return functional.dropout(scores), best


class Sums(nn.Module):
    """Nothing that multiplies by a weight."""

    def __init__(self):
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(3))

    def forward(self, image):
        x = image.mean((2, 3)) + self.offset
        return x, x.argmax(1)


class Steep(Net):
    def forward(self, image):
        scores, best = super().forward(image)
        return scores + torch.sqrt(scores - scores), best  # whose gradient is no number


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.second.weight = self.first.weight

    def forward(self, image):
        x = self.second(torch.relu(self.first(image.flatten(1))))
        return x, x.argmax(1)


def seeded(kind):
    torch.manual_seed(0)
    module = kind()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.3)
            part.running_var.uniform_(0.5, 2)
            part.weight.data.normal_(0, 1)  # negative factors too
    return module


def build(): return seeded(Net)
def build_dropping(): return seeded(Dropping)
def build_steep(): return seeded(Steep)
def build_sums(): return seeded(Sums)
def build_tied(): return seeded(Tied)
'''
SIZE = AxisRange(1, 4, 8)
SETTINGS = TrainingConfig(epochs=3, learning_rate=0.2, batch_rows=8, patience=3)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("qat")
    (root / "model.py").write_text(FACTORY, encoding="utf-8")
    return root


def model_of(root: Path, factory: str = "build") -> ModelConfig:
    state = {name: tensor.clone() for name, tensor in load_object(f"model.py:{factory}", root)().state_dict().items()}
    safetensors.torch.save_file(state, root / f"{factory}.safetensors")
    return ModelConfig.model_validate(
        {
            "factory": f"model.py:{factory}", "checkpoint": f"{factory}.safetensors", "inputs": {"image": {"shape": ["batch", 1, 8, 8]}},
            "outputs": ["scores", "best"], "shapes": {"batch": {"min": 1, "opt": 4, "max": 8}},
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def data() -> Data:
    images = np.stack([prepare({"image": picture})["image"] for picture in pictures(40)])
    rows = [{"image": images[start:end]} for start, end in ((0, 20), (20, 32), (32, 40))]
    return Data(rows[0], rows[1], lambda: iter([rows[2]]))


def run(model: ModelConfig, root: Path, data: Data, folder: Path, settings: TrainingConfig = SETTINGS, **options: Any) -> Trained:
    return train(model, root, data, settings, Saved(folder, "key"), **{"affine": True, "method": "max", "machine": Alone(), **options})


def inserted(root: Path, data: Data, factory: str = "build", **options: Any) -> tuple[Any, Any, Any]:
    """A converted module with how it is called, and the float outputs before."""
    model = model_of(root, factory)
    module = load_module(model, root)
    bound = bind(module, model.input_specs())

    def caller(batch: Any) -> Any:
        return call(module, bound, model.outputs, {name: torch.from_numpy(array) for name, array in batch.items()})

    before = outputs(caller, data.search, SIZE)
    student = insert(module, caller, data.calibration(), factory=factory, **{"affine": True, "method": "max", **options})
    return student, caller, before


@pytest.mark.parametrize(("affine", "method"), [(True, "max"), (False, "max"), (True, "mse"), (False, "percentile")])
def test_every_layer_with_a_weight_is_fake_quantized_and_nothing_else(root: Path, data: Data, affine: bool, method: str) -> None:
    student, caller, before = inserted(root, data, affine=affine, method=method)
    assert student.quantized == ("stem", "up", "head")
    assert student.in_float == {"unused": "its forward is not called"}
    assert set(student.state) == set(load_object("model.py:build", root)().state_dict())
    found = worst_db(before, outputs(caller, data.search, SIZE))
    assert found is not None
    assert 20 < found < 60
    enabled = {name for name, part in student.module.named_modules() if getattr(part, "is_enabled", False)}
    assert enabled == {f"{layer}.{which}_quantizer" for layer in student.quantized for which in ("input", "weight")}


def test_zero_and_both_ends_are_on_the_grid_and_channels_are_those_of_the_output(root: Path, data: Data) -> None:
    student, _, _ = inserted(root, data)
    quantizer = student.module.up.input_quantizer  # behind a relu: from 0
    steps = quantizer(torch.tensor([0.0, 1e9, -1e9]))
    assert steps[0] == steps[2] == 0
    assert steps[1] == pytest.approx(2 * float(quantizer.amax), rel=1e-5)
    signed = student.module.stem.input_quantizer
    assert signed(torch.zeros(1)) == 0
    weight = student.state["up.weight"].detach()
    rounded = student.module.up.weight_quantizer(weight)
    scale = weight.abs().amax((0, 2, 3), keepdim=True) / 127  # (inputs, outputs, height, width)
    torch.testing.assert_close(rounded, torch.round(weight / scale) * scale)


def test_a_batchnorm_behind_a_convolution_commutes_with_the_grid_of_its_weights(root: Path, data: Data) -> None:
    """Why BatchNorm is not folded before training: rounding the folded weight gives the folded rounded one, to the last code."""
    student, _, _ = inserted(root, data)
    norm, weight = student.module.norm, student.state["stem.weight"].detach().double()
    factor = (norm.weight / torch.sqrt(norm.running_var + norm.eps)).detach().double()[:, None, None, None]
    assert (factor < 0).any()

    def codes(values: torch.Tensor) -> torch.Tensor:
        return torch.round(values / (values.abs().amax((1, 2, 3), keepdim=True) / 127))

    assert torch.equal(codes(weight * factor), codes(weight) * factor.sign())


def test_means_are_corrected_in_one_pass_of_the_first_layers_first(root: Path, data: Data) -> None:
    student, caller, _ = inserted(root, data)
    model = model_of(root)
    teacher = load_module(model, root)
    bound = bind(teacher, model.input_specs())

    def ask(batch: Any) -> Any:
        return call(teacher, bound, model.outputs, {name: torch.from_numpy(array) for name, array in batch.items()})

    def shifts() -> dict[str, float]:
        found: dict[str, list[torch.Tensor]] = {}
        for module, run_on in ((teacher, ask), (student.module, caller)):
            parts = dict(module.named_modules())
            hooks = [
                parts[name].register_forward_hook(lambda _, __, output, name=name: found.setdefault(name, []).append(output.detach()))
                for name in ("norm", "up", "head")
            ]
            with torch.no_grad():
                run_on(data.search)
            for hook in hooks:
                hook.remove()
        places = {"norm": (0, 2, 3), "up": (0, 2, 3), "head": (0,)}
        return {name: float((mine - its).mean(places[name]).abs().max()) for name, (its, mine) in found.items()}

    first = shifts()
    before = corrected(student.module, teacher, student.quantized, ask, caller, data.search)
    assert set(before) == {"stem", "norm", "up", "head"}
    assert not torch.equal(before["head"], student.module.head.bias)
    after = shifts()
    assert all(after[name] < 1e-5 < first[name] for name in after)


def test_a_row_or_two_correct_no_means(root: Path, data: Data) -> None:
    student, caller, _ = inserted(root, data)
    assert corrected(student.module, student.module, student.quantized, caller, caller, {"image": data.search["image"][:2]}) == {}


def test_training_brings_the_student_nearer_and_its_float_weights_fit_the_factory(root: Path, data: Data, tmp_path: Path) -> None:
    model, seen = model_of(root), list[tuple[int, int, str]]()
    result = run(
        model,
        root,
        data,
        tmp_path,
        TrainingConfig(epochs=20, learning_rate=0.1, batch_rows=8, patience=20),
        progress=lambda *entry: seen.append(entry),
    )
    assert result.start_db is not None
    best = result.epochs[result.best_epoch - 1].search_sqnr_db
    assert best is not None
    assert best > result.start_db + 1
    assert best == max(epoch.search_sqnr_db or 0 for epoch in result.epochs)
    assert result.epochs[-1].loss < result.epochs[0].loss
    assert seen[-1][:2] == (60, 60)  # three steps of at most eight of twenty rows, twenty epochs
    assert "loss" in seen[-1][2]
    safetensors.torch.save_file(result.state, tmp_path / "after.safetensors")
    after = load_module(model.model_copy(update={"checkpoint": str(tmp_path / "after.safetensors")}), root)
    before = load_module(model, root)
    moved = {name for name, tensor in after.state_dict().items() if not torch.equal(tensor, before.state_dict()[name])}
    assert {"stem.weight", "norm.weight", "up.weight", "head.bias"} <= moved
    assert not moved & {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked", "table.weight"}


def test_equal_runs_give_equal_weights_and_another_seed_others(root: Path, data: Data, tmp_path: Path) -> None:
    model = model_of(root)
    first, second = (run(model, root, data, tmp_path / name) for name in "ab")
    third = run(model, root, data, tmp_path / "c", SETTINGS.model_copy(update={"seed": 1}))
    assert all(torch.equal(first.state[name], second.state[name]) for name in first.state)
    assert not all(torch.equal(first.state[name], third.state[name]) for name in first.state)


def test_tied_weights_stay_tied(root: Path, data: Data, tmp_path: Path) -> None:
    result = run(model_of(root, "build_tied"), root, data, tmp_path)
    assert torch.equal(result.state["first.weight"], result.state["second.weight"])
    assert not torch.equal(result.state["first.bias"], result.state["second.bias"])


def test_patience_ends_it_and_the_best_epoch_is_given(root: Path, data: Data, tmp_path: Path) -> None:
    """At a rate that only makes it worse, the corrected means before it are the best for good."""
    settings = TrainingConfig(epochs=30, learning_rate=50, batch_rows=8, patience=2)
    result = run(model_of(root), root, data, tmp_path, settings)
    assert (result.best_epoch, len(result.epochs)) == (0, 2)
    assert torch.equal(result.state["head.weight"], load_module(model_of(root), root).state_dict()["head.weight"])


CHILD = """
import sys, time
sys.path[:0] = {paths!r}
import torch
torch.set_num_threads(1)
from pathlib import Path
import test_qat
root, folder = Path({root!r}), Path({folder!r})

def stop_after_the_first_epoch(done, total, note):
    if list(folder.rglob("epoch-*.safetensors")):
        print("saved", flush=True)
        time.sleep(600)

data = test_qat.data.__wrapped__()
test_qat.run(test_qat.model_of(root), root, data, folder, progress=stop_after_the_first_epoch)
"""


def test_a_killed_run_goes_on_and_ends_with_the_weights_of_one_that_was_not(root: Path, data: Data, tmp_path: Path) -> None:
    model, repository = model_of(root), Path(__file__).parents[2]
    code = CHILD.format(paths=[str(Path(__file__).parent), str(repository)], root=str(root), folder=str(tmp_path / "killed"))
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


def test_a_loss_that_is_no_number_ends_it_and_the_last_good_state_stays(root: Path, data: Data, tmp_path: Path) -> None:
    run(model_of(root), root, data, tmp_path, SETTINGS.model_copy(update={"epochs": 1}))
    says = r"(?s)diverged.*step 5 of 9, learning rate 0.2\n.*last good state: epoch 1.*lower quantize.training.learning_rate"
    with pytest.raises(ModelError, match=says):
        run(model_of(root, "build_steep"), root, data, tmp_path)
    kept = Saved(tmp_path, "key").newest()
    assert kept is not None
    assert len(kept[1]["epochs"]) == 1
    assert all(bool(tensor.isfinite().all()) for tensor in kept[0].values())


def test_rows_on_which_the_float_model_is_not_finite_are_not_taken_for_a_wrong_rate(root: Path, data: Data, tmp_path: Path) -> None:
    broken = Data({"image": data.train["image"].copy()}, data.search, data.calibration)
    broken.train["image"][3] = np.inf
    with pytest.raises(ModelError, match=r"(?s)float model gives values that are not finite.*role train, step . of 9.*scores"):
        run(model_of(root), root, broken, tmp_path)


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        ("build_sums", r"(?s)no layer to train.*build_sums.*Conv, ConvTranspose or Linear.*quantize.qat: never"),
        ("build_dropping", r"(?s)answers the same rows in two ways.*scores.*training=self.training"),
    ],
)
def test_a_module_that_cannot_be_trained_is_refused_by_name(root: Path, data: Data, tmp_path: Path, factory: str, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        run(model_of(root, factory), root, data, tmp_path)


SEVERAL = """
import sys
sys.path[:0] = {paths!r}
import torch
torch.set_num_threads(1)
from pathlib import Path
import safetensors.torch
import test_qat
from calibration.qat.machines import machine
root, folder, here = Path({root!r}), Path({folder!r}), machine()
result = test_qat.run(test_qat.model_of(root), root, test_qat.data.__wrapped__(), folder / "saved", machine=here)
safetensors.torch.save_file(result.state, folder / f"{{here.main}}-of-{{here.parts}}.safetensors")
"""


def test_two_processes_of_accelerate_train_as_one(root: Path, data: Data, tmp_path: Path) -> None:
    """On the processor, where `accelerate` talks through gloo: a double for two GPUs, which this has never run on."""
    pytest.importorskip("accelerate")
    code = SEVERAL.format(paths=[str(Path(__file__).parent), str(Path(__file__).parents[2])], root=str(root), folder=str(tmp_path))
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
