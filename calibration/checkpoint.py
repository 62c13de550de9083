"""A user's torch module with its checkpoint in it, strictly: every key, every shape, every number finite."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config import ModelConfig
from pipeline.errors import ModelError
from pipeline.loading import load_object

if TYPE_CHECKING:
    from torch import nn

SHOWN = 3
"""How many keys an error names."""


def load_module(model: ModelConfig, root: Path) -> nn.Module:
    """Build `model.factory`, load `model.checkpoint` into it and put it into evaluation mode, without gradients.

    Raises ConfigError when the factory cannot be imported, ModelError when it fails, is no module, the checkpoint does not fit, or a part of
    the module stays in training mode.
    """
    module = build_module(model.factory, root)
    load_checkpoint(module, root / model.checkpoint)
    module.eval()
    module.requires_grad_(False)
    _refuse_training(module, model.factory)
    return module


def _refuse_training(module: nn.Module, factory: str) -> None:
    """After `eval()` nothing may still train, and no BatchNorm may take its statistics from the batch, that is, from a row's neighbours."""
    from torch.nn.modules.batchnorm import _BatchNorm

    stuck = [name or "the module itself" for name, part in module.named_modules() if part.training]
    bare = [name for name, part in module.named_modules() if isinstance(part, _BatchNorm) and part.running_mean is None]
    for names, what, after in (
        (stuck, "A part of the model stays in training mode after eval()", "let its train(mode) pass the mode on to nn.Module.train"),
        (bare, "A BatchNorm has no running statistics, so it trains forever", "build it with track_running_stats=True, and train it so"),
    ):
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            raise ModelError(
                what, where=f"model.factory {factory}: {', '.join(names[:SHOWN])}{more}", expected="evaluation mode", got="training mode", next=after
            )


def build_module(factory: str, root: Path) -> nn.Module:
    """Call the factory without arguments; raises ModelError when it raises or returns anything but an `nn.Module`."""
    from torch import nn

    function = load_object(factory, root)
    try:
        module = function()
    except Exception as error:  # the user's own code
        raise ModelError(
            "The model factory failed",
            where=f"model.factory {factory}",
            expected="a function without arguments that returns a torch module",
            got=f"{type(error).__name__}: {error}",
            next="correct the factory, then run `dvc repro`",
        ) from error
    if not isinstance(module, nn.Module):
        raise ModelError(
            "The model factory does not return a torch module",
            where=f"model.factory {factory}",
            expected="torch.nn.Module",
            got=type(module).__name__,
        )
    return module


def load_checkpoint(module: nn.Module, path: Path) -> None:
    """Load a safetensors file into `module`; raises ModelError naming the first keys that are missing, unexpected or misshapen.

    Of weights that the module ties, the file may hold one (as `safetensors.torch.save_model` writes it) or several equal ones.
    """
    state = _read(path)
    expected = module.state_dict()
    tied = _tied(module)
    for names in tied:
        for name in names:
            if name not in state and (present := [other for other in names if other in state]):
                state[name] = state[present[0]]
    untied = [f"{names[0]} and {name}" for names in tied for name in names[1:] if name in state and not _equal(state.get(names[0]), state[name])]
    problems = [
        ("weights that the module ties and the checkpoint does not", untied),
        ("keys that the checkpoint lacks", sorted(set(expected) - set(state))),
        ("keys that the module does not have", sorted(set(state) - set(expected))),
        (
            "tensors of another shape or dtype",
            [
                f"{name} ({_kind(state[name])}, the module has {_kind(tensor)})"
                for name, tensor in expected.items()
                if name in state and (state[name].shape != tensor.shape or state[name].dtype != tensor.dtype)
            ],
        ),
        ("tensors that are not finite", [name for name, tensor in state.items() if tensor.is_floating_point() and not bool(tensor.isfinite().all())]),
    ]
    for kind, names in problems:
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            raise ModelError(
                "The checkpoint does not fit the model",
                where=str(path),
                expected=f"the {len(expected)} tensors of the module, finite and of its shapes",
                got=f"{kind}: {', '.join(names[:SHOWN])}{more}",
                next="train or import the checkpoint again (`dvc repro model`), or correct model.factory in params.yaml",
            )
    module.load_state_dict(state, strict=True)


def _tied(module: nn.Module) -> list[list[str]]:
    """Names of the state's tensors that are one and the same, in groups of two or more."""
    groups: dict[int, list[str]] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        groups.setdefault(id(tensor), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def _equal(first: Any, second: Any) -> bool:
    import torch

    return first is None or (first.shape == second.shape and first.dtype == second.dtype and torch.equal(first, second))


def _kind(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _read(path: Path) -> dict[str, Any]:
    import safetensors
    import safetensors.torch

    expected = "a safetensors file (a pickled checkpoint can run code while it loads)"
    if not path.is_file():
        raise ModelError("The checkpoint is missing", where=str(path), expected=expected, got="no file", next="run `dvc repro model`")
    try:
        return dict(safetensors.torch.load_file(path))
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise ModelError(
            "The checkpoint cannot be read",
            where=str(path),
            expected=expected,
            got=str(error),
            next="convert it with safetensors.torch.save_file(module.state_dict(), path)",
        ) from error
