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

    Raises ConfigError when the factory cannot be imported, ModelError when it fails, is no module, or the checkpoint does not fit.
    """
    module = build_module(model.factory, root)
    load_checkpoint(module, root / model.checkpoint)
    module.eval()
    module.requires_grad_(False)
    return module


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
    """Load a safetensors file into `module`; raises ModelError naming the first keys that are missing, unexpected or misshapen."""
    state = _read(path)
    expected = module.state_dict()
    problems = [
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
