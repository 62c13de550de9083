"""Digests that bind one record to another: sha256 of files, arrays, JSON and Merkle trees."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.files import canonical_json

if TYPE_CHECKING:
    import numpy as np

CHUNK_BYTES = 1 << 20


def sha256_bytes(content: bytes) -> str:
    """Hex sha256 of `content`."""
    return hashlib.sha256(content).hexdigest()


def sha256_file(path: str | Path) -> str:
    """Hex sha256 of a file, read in 1 MiB chunks."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def sha256_json(data: Any) -> str:
    """Hex sha256 of `data` in canonical JSON."""
    return sha256_bytes(canonical_json(data).encode())


def labels_sha256(labels: Iterable[int | float | str | None]) -> str:
    """Hex sha256 of the labels of rows in order; whole floats as integers, because file formats differ in that."""
    return sha256_json([int(label) if isinstance(label, float) and label.is_integer() else label for label in labels])


def sha256_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """Hex sha256 over named arrays: name, dtype, shape and C-order bytes; independent of mapping order."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(array.tobytes(order="C"))
    return digest.hexdigest()


def sha256_files(paths: Iterable[str | Path], root: str | Path) -> str:
    """Hex sha256 over files by their path relative to `root` and their content; order does not matter."""
    entries = {Path(path).resolve().relative_to(Path(root).resolve()).as_posix(): sha256_file(path) for path in paths}
    return sha256_json(entries)


def sha256_code(root: str | Path, parts: Iterable[str]) -> str:
    """`sha256_files` over every Python file of `parts` of `root`: folders with all below them, or single files."""
    found = (Path(root) / part for part in parts)
    return sha256_files((file for part in found for file in ([part] if part.suffix == ".py" else part.rglob("*.py"))), root)


def merkle_root(leaves: Iterable[str]) -> str:
    """Merkle tree hash of hex digests, as RFC 6962 section 2.1: leaf prefix 0x00, node prefix 0x01.

    Leaves are sorted first, so the root names the set of rows and not their order. No leaf gives sha256 of "".
    """
    level = [hashlib.sha256(b"\x00" + bytes.fromhex(leaf)).digest() for leaf in sorted(leaves)]
    if not level:
        return sha256_bytes(b"")

    def root(nodes: list[bytes]) -> bytes:
        if len(nodes) == 1:
            return nodes[0]
        split = 1 << ((len(nodes) - 1).bit_length() - 1)
        return hashlib.sha256(b"\x01" + root(nodes[:split]) + root(nodes[split:])).digest()

    return root(level).hex()
