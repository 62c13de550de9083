"""Biases that undo what rounding does to means, before training: most of the error of a plain INT8 network is a shift of every channel."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from pipeline.tensors import Batch

if TYPE_CHECKING:
    import torch
    from torch import nn

FEWEST = 8
"""Rows: the difference of means is between the same rows, so few will do."""


def corrected(
    student: nn.Module, teacher: nn.Module, layers: Collection[str], ask: Callable[[Batch], Any], run: Callable[[Batch], Any], rows: Batch
) -> dict[str, torch.Tensor]:
    """Shift the biases of the named `layers` and of every BatchNorm so that each channel's mean over `rows` is the teacher's; the biases before.

    Empirical bias correction (Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", ICCV 2019), in one pass: each
    layer is corrected on what the corrected ones before it give. Does nothing with fewer than `FEWEST` rows.
    """
    import torch
    from torch.nn.modules.batchnorm import _BatchNorm

    if len(next(iter(rows.values()))) < FEWEST:
        return {}
    chosen = {
        name for name, part in teacher.named_modules() if getattr(part, "bias", None) is not None and (name in layers or isinstance(part, _BatchNorm))
    }
    means: dict[str, list[torch.Tensor]] = {}
    before: dict[str, torch.Tensor] = {}

    def keep(part: nn.Module, _: Any, output: torch.Tensor, name: str) -> None:
        means.setdefault(name, []).append(_mean(part, output))

    def correct(part: nn.Module, _: Any, output: torch.Tensor, name: str) -> torch.Tensor:
        if len(means.get(name, ())) != 1 or name in before:  # called more than once a pass: one bias cannot be right for all
            return output
        before[name] = part.bias.detach().clone()
        shift = _mean(part, output) - means[name][0]
        part.bias.sub_(shift)
        return output - shift.reshape([-1 if axis == _axis(part, output) else 1 for axis in range(output.dim())])

    with torch.no_grad():
        for module, hook, call in ((teacher, keep, ask), (student, correct, run)):
            parts = dict(module.named_modules())
            handles = [parts[name].register_forward_hook(_named(hook, name)) for name in sorted(chosen)]
            try:
                call(rows)
            finally:
                for handle in handles:
                    handle.remove()
    return before


def _named(hook: Callable[..., Any], name: str) -> Callable[..., Any]:
    return lambda part, inputs, output: hook(part, inputs, output, name)


def _axis(part: nn.Module, output: torch.Tensor) -> int:
    from torch import nn

    return output.dim() - 1 if isinstance(part, nn.Linear) else 1


def _mean(part: nn.Module, output: torch.Tensor) -> torch.Tensor:
    axis = _axis(part, output)
    return output.detach().mean([place for place in range(output.dim()) if place != axis])
