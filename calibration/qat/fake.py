"""Fake quantization in a torch module, by nvidia-modelopt: what multiplies by a weight sees INT8 values, everything else stays in float."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from calibration.histograms import NOTHING, Tally
from calibration.observe import Seen
from calibration.range_methods import Chosen, choose
from pipeline.errors import ModelError
from pipeline.tensors import Batch

if TYPE_CHECKING:
    import torch
    from torch import nn

LEVELS = 127
PEAK, LEAST = 4.0, 0.01
"""A channel's largest weight over its root mean square, roughly; and the least root mean square of a tensor that is no quantized weight."""
AFFINE = {"type": "static", "method": "max_min", -1: None}
WAY_OUT = "set quantize.qat: never, or use torch's own Conv and Linear modules (or subclasses that read self.weight) in the factory"


@dataclasses.dataclass(frozen=True)
class Student:
    """A module with fake quantization in it. `state`: the tensors of its state before that, by name, which are those that training changes.

    `quantized` names the layers that see INT8; `in_float` those that could and do not, with the reason.
    """

    module: nn.Module
    state: dict[str, torch.Tensor]
    quantized: tuple[str, ...]
    in_float: dict[str, str]

    def weights(self) -> dict[str, torch.Tensor]:
        """What training changes: the floating-point parameters, tied ones once, under their first name."""
        import torch

        found: dict[int, str] = {}
        for name, tensor in self.state.items():
            if isinstance(tensor, torch.nn.Parameter) and tensor.is_floating_point():
                found.setdefault(id(tensor), name)
        return {name: self.state[name] for name in found.values()}

    def units(self) -> dict[str, torch.Tensor]:
        """By weight, the step of its grid in each output channel over the square root of the channel's inputs, broadcast to it.

        All weights of a channel moved by one unit, with the signs of their inputs, move the output by about as much as rounding all of them does.
        For other tensors: the grid step that a channel of their mean square would have.
        """
        import torch

        grids = {}
        for name in self.quantized:
            layer = self.module.get_submodule(name)
            axis = layer.weight_quantizer.axis
            others = [place for place in range(layer.weight.dim()) if place != axis]
            largest = layer.weight.detach().abs().amax(others, keepdim=True)
            grids[id(layer.weight)] = largest / LEVELS * math.sqrt(largest.numel() / layer.weight.numel())
        found = {}
        for name, weight in self.weights().items():
            magnitude = max(float(weight.detach().square().mean().sqrt()), LEAST)
            found[name] = grids.get(id(weight), torch.tensor(PEAK * magnitude / LEVELS, device=weight.device))
        return found


def insert(module: nn.Module, run: Callable[[Batch], Any], batches: Iterable[Batch], *, affine: bool, method: str, factory: str) -> Student:
    """Convert `module`, in evaluation mode, in place; `run` calls it with prepared rows, `batches` are the calibration rows.

    Weights: symmetric and per output channel, the scale always that of the largest weight, as both schemes round to the nearest. Inputs: per
    tensor, the range by `method` over all rows; `affine` with a zero point (the scheme `cpu`), else symmetric (`tensorrt`). The gradient passes
    straight through the rounding, and not where a value is clipped (Jacob et al., CVPR 2018). A BatchNorm is not folded: in evaluation mode it is
    one factor an output channel, and with that a symmetric grid per channel commutes, so that the folded graph that is exported has the same codes.
    Raises ModelError for a module that modelopt cannot convert, or that has no layer to quantize.
    """
    state = dict(module.state_dict(keep_vars=True))
    if not any(isinstance(part, _weighing()) for part in module.modules()):
        raise _nothing(factory, f"modules {', '.join(sorted({type(part).__name__ for part in module.modules()}))}")
    try:
        with _registered(module), contextlib.redirect_stdout(io.StringIO()):  # it prints how many quantizers it inserted
            import modelopt.torch.quantization as mtq

            mtq.quantize(module, {"quant_cfg": _configuration(affine), "algorithm": None})
    except Exception as error:  # modelopt's assertions, and whatever a module's own code raises
        got = f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"
        raise ModelError(
            "modelopt cannot convert the model", where=f"model.factory {factory}", expected="fake quantization", got=got, next=WAY_OUT
        ) from error
    layers = {name: part for name, part in module.named_modules() if hasattr(part, "weight_quantizer") and part.weight_quantizer.is_enabled}
    ranges, weighed = _ranges(layers, run, batches, method)
    quantized, in_float = [], {}
    for name, layer in layers.items():
        if name not in ranges or name not in weighed:
            layer.input_quantizer.disable()
            layer.weight_quantizer.disable()
            in_float[name] = "its forward is not called" if name not in ranges else "its forward does not read self.weight"
            continue
        _set(layer.input_quantizer, ranges[name], affine)
        quantized.append(name)
    if not quantized:
        raise _nothing(factory, "; ".join(f"{name}: {reason}" for name, reason in in_float.items()))
    return Student(module, state, tuple(quantized), in_float)


def _nothing(factory: str, got: str) -> ModelError:
    return ModelError(
        "The model has no layer to train under fake quantization",
        where=f"model.factory {factory}",
        expected="Conv, ConvTranspose or Linear modules",
        got=got[:600],
        next=WAY_OUT,
    )


def _configuration(affine: bool) -> list[dict[str, Any]]:
    """Every quantizer off, then weights and inputs of convolutions and matrix products on; what else modelopt knows stays in float."""
    from modelopt.torch.quantization.nn import QuantModuleRegistry
    from torch import nn

    inputs: dict[str, Any] = {"num_bits": 8, "axis": None, "narrow_range": affine, **({"bias": AFFINE} if affine else {})}
    entries: list[dict[str, Any]] = [{"quantizer_name": "*", "enable": False}]
    for kind, key in QuantModuleRegistry._key_registry.items():
        if issubclass(kind, _weighing()):
            axis = 1 if issubclass(kind, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)) else 0
            weight = {"num_bits": 8, "axis": axis, "type": "dynamic", "narrow_range": True}
            entries += [
                {"quantizer_name": "*weight_quantizer", "parent_class": key, "cfg": weight},
                {"quantizer_name": "*input_quantizer", "parent_class": key, "cfg": inputs},
            ]
    return entries


def _weighing() -> tuple[type, ...]:
    from torch import nn

    return (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@contextlib.contextmanager
def _registered(module: nn.Module) -> Iterator[None]:
    """modelopt knows torch's own layers by their `forward`: name it the subclasses that have one of their own, for the conversion."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.quantization.nn import QuantModuleRegistry
    from modelopt.torch.quantization.nn.modules.quant_module import QuantLinearConvBase

    kinds = {type(part) for part in module.modules() if isinstance(part, _weighing()) and QuantModuleRegistry.get(type(part)) is None}
    for kind in kinds:
        mtq.register(kind, type(f"_Quant{kind.__name__}", (QuantLinearConvBase,), {}))
    try:
        yield
    finally:
        for kind in kinds:
            mtq.unregister(kind)


def _ranges(layers: dict[str, Any], run: Callable[[Batch], Any], batches: Iterable[Batch], method: str) -> tuple[dict[str, Chosen], set[str]]:
    """The range of each layer's input over all rows, and the layers whose weight quantizer was called."""
    import torch

    tallies = {name: Tally(histograms=method != "max") for name in layers}
    weighed: set[str] = set()
    hooks = []
    for name, layer in layers.items():
        layer.input_quantizer.disable()
        layer.weight_quantizer.disable()

        def take(_: Any, inputs: tuple[Any, ...], name: str = name) -> None:
            values = inputs[0].detach().float().cpu().reshape(1, -1).numpy()
            tallies[name].add(0, Seen(values, values.min(1), values.max(1), ("",)))

        def weigh(*_: Any, name: str = name) -> None:
            weighed.add(name)

        hooks += [layer.input_quantizer.register_forward_pre_hook(take), layer.weight_quantizer.register_forward_pre_hook(weigh)]
    try:
        with torch.no_grad():
            for batch in batches:
                run(batch)
    finally:
        for hook in hooks:
            hook.remove()
    found = {}
    for name, tally in tallies.items():
        if tally.groups:
            layers[name].input_quantizer.enable()
            layers[name].weight_quantizer.enable()
            found[name] = _chosen(tally, method)
    return found, weighed


def _chosen(tally: Tally, method: str) -> Chosen:
    low, high = tally.extremes()
    if method == "max" or set(tally.groups) == {NOTHING} or (histogram := tally.histogram()) is None:
        return Chosen(low, high, max(-low, high))
    return choose(method, histogram)


def _set(quantizer: Any, chosen: Chosen, affine: bool) -> None:
    """Put a range into a TensorQuantizer; with `affine` zero is on the grid, and both ends are levels."""
    import torch

    device = next(iter(quantizer.buffers()), torch.zeros(())).device
    if not affine:
        quantizer.amax = torch.tensor(chosen.magnitude, device=device)
        return
    low, high = min(chosen.low, 0.0), max(chosen.high, 0.0)
    step = (high - low) / (2 * LEVELS)
    middle = step * (LEVELS - round(-low / step)) if step else 0.0
    quantizer.amax = torch.tensor(np.float32(step * LEVELS), device=device)
    quantizer.register_buffer("_bias_value", torch.tensor(np.float32(middle), device=device))
