"""Digests: the published values, and what they must not depend on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipeline.digests import merkle_root, sha256_arrays, sha256_bytes, sha256_file, sha256_files

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_sha256_of_nothing_is_the_published_value(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert sha256_file(tmp_path / "empty") == sha256_bytes(b"") == merkle_root([]) == EMPTY


def test_merkle_root_of_one_and_two_leaves_follows_rfc_6962() -> None:
    a, b = sha256_bytes(b"a"), sha256_bytes(b"b")
    leaf_a, leaf_b = (sha256_bytes(b"\x00" + bytes.fromhex(leaf)) for leaf in sorted((a, b)))
    assert merkle_root([a]) == sha256_bytes(b"\x00" + bytes.fromhex(a))
    assert merkle_root([b, a]) == merkle_root([a, b]) == sha256_bytes(b"\x01" + bytes.fromhex(leaf_a) + bytes.fromhex(leaf_b))


def test_merkle_root_names_the_set() -> None:
    leaves = [sha256_bytes(bytes([i])) for i in range(7)]
    assert merkle_root(leaves) == merkle_root(reversed(leaves))
    assert len({merkle_root(leaves[:n]) for n in range(8)}) == 8


def test_array_digest_sees_name_dtype_shape_and_values_only() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    same = sha256_arrays({"x": x, "y": x})
    assert sha256_arrays({"y": x.copy(), "x": np.asfortranarray(x)}) == same
    for other in ({"x": x, "z": x}, {"x": x, "y": x.reshape(3, 2)}, {"x": x, "y": x.astype(np.float64)}, {"x": x, "y": x + 1}):
        assert sha256_arrays(other) != same


def test_digest_of_files_is_by_relative_path_and_content(tmp_path: Path) -> None:
    for root in ("one", "two"):
        (tmp_path / root).mkdir()
        for name in ("a.py", "b.py"):
            (tmp_path / root / name).write_text(name)
    first = sha256_files([tmp_path / "one/a.py", tmp_path / "one/b.py"], tmp_path / "one")
    assert first == sha256_files([tmp_path / "two/b.py", tmp_path / "two/a.py"], tmp_path / "two")
    (tmp_path / "two/b.py").write_text("c")
    assert first != sha256_files([tmp_path / "two/a.py", tmp_path / "two/b.py"], tmp_path / "two")
