"""Training's state on disk after each epoch: whole or not there, named by its own digest, and bound to what it is the state of."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.digests import sha256_bytes
from pipeline.files import canonical_json, write_bytes

if TYPE_CHECKING:
    import torch

KEPT = 2
"""The newest, and the one before it for when the newest turns out to be damaged."""
NAME = re.compile(r"epoch-(\d{6})-([0-9a-f]{64})\.safetensors")
FACTS = "facts"


class Saved:
    """Checkpoints of one training: the folder is named by `key`, the digest of everything that the training follows from.

    So a checkpoint of other data, weights or settings is never met. `say` is told about a damaged file.
    """

    def __init__(self, folder: Path, key: str, say: Callable[[str], None] = print) -> None:
        self.folder, self.say = folder / key, say

    def save(self, epoch: int, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
        """Write a checkpoint and drop all but the newest `KEPT`. `facts` are what JSON can hold."""
        import safetensors.torch

        copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}  # tied tensors share memory
        content = safetensors.torch.save(copies, {FACTS: canonical_json(facts)})
        write_bytes(self.folder / f"epoch-{epoch:06d}-{sha256_bytes(content)}.safetensors", content)
        for path in self._files()[KEPT:]:
            path.unlink()

    def newest(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
        """Tensors and facts of the newest checkpoint whose content is what its name says, or None."""
        import safetensors.torch

        for path in self._files():
            content = path.read_bytes()
            if sha256_bytes(content) == _parts(path)[1]:
                header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
                return safetensors.torch.load(content), json.loads(header["__metadata__"][FACTS])
            self.say(f"warning: the checkpoint {path} is damaged (its digest is not that of its name): training goes on from an earlier state")
        return None

    def clear(self) -> None:
        """Drop them all: the training's result is kept elsewhere."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _files(self) -> list[Path]:
        found = [path for path in self.folder.glob("epoch-*.safetensors") if NAME.fullmatch(path.name)] if self.folder.is_dir() else []
        return sorted(found, key=lambda path: _parts(path)[0], reverse=True)


def _parts(path: Path) -> tuple[int, str]:
    match = NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1]), match[2]
