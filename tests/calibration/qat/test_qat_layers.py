"""Where real modelopt puts fake quantization in tiny networks, and what it rounds to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_qat import SIZE, inserted, model_of

from calibration.checkpoint import load_module
from calibration.qat.means import corrected
from calibration.qat.teacher import outputs, worst_db
from calibration.qat.train import Data
from calibration.tracing import bind, call
from pipeline.loading import load_object


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
