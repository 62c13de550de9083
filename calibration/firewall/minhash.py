"""MinHash signatures of sequences: how alike two sets of shingles are, from 256 bytes each.

Source: Broder, On the resemblance and containment of documents (1997); b-bit values as in Li and Koenig (2010).
"""

from __future__ import annotations

import functools
import hashlib

import numpy as np

from calibration.firewall.bands import candidate_pairs

VALUES = 128
"""Permutations; of each minimum the low 16 bits are kept."""
SIGNATURE_BYTES = VALUES * 2
ROWS_PER_BAND = 3
LEAST_ALIKE = 0.3
"""Estimated Jaccard similarity (standard error 0.04) below which a collision is no candidate."""
FACTOR = np.uint64(0x9E3779B97F4A7C15)
SHINGLES_AT_ONCE = 16_384
VERSION = f"minhash-1-datasketch-affine32-{VALUES}x16-{ROWS_PER_BAND}"


def shingle_hashes(codes: np.ndarray, length: int) -> np.ndarray:
    """uint32 hashes (n - length + 1,) of every run of `length` codes (n,), n >= length: a polynomial, then a mix of its bits."""
    values = np.asarray(codes).astype(np.uint64)
    count = len(values) - length + 1
    hashes = values[:count] + np.uint64(1)
    for offset in range(1, length):
        hashes = hashes * FACTOR + values[offset : offset + count]
    hashes = (hashes ^ (hashes >> np.uint64(31))) * FACTOR
    return (hashes >> np.uint64(32)).astype(np.uint32)


def whole_hash(codes: np.ndarray) -> np.ndarray:
    """(1,) uint32 hash of all codes (n,): for sequences that are only near to equal ones."""
    content = np.asarray(codes).astype("<u8").tobytes()
    return np.frombuffer(hashlib.blake2b(content, digest_size=4).digest(), "<u4")


@functools.cache
def _permutations() -> np.ndarray:
    from datasketch import MinHash

    return np.asarray(MinHash(num_perm=VALUES, seed=1, scheme="affine32").permutations)


def signature(hashes: np.ndarray) -> np.ndarray:
    """(256,) uint8: the low 16 bits of the minimum of each permutation of `hashes` (n,) uint32, little-endian."""
    from datasketch import MinHash

    sketch = MinHash(num_perm=VALUES, permutations=_permutations(), scheme="affine32", hashfunc=int)
    for start in range(0, len(hashes), SHINGLES_AT_ONCE):
        sketch.update_batch(hashes[start : start + SHINGLES_AT_ONCE].tolist())
    return (sketch.hashvalues & 0xFFFF).astype("<u2").view(np.uint8)


def _values(signatures: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(signatures).view("<u2")


def _keys(signatures: np.ndarray) -> np.ndarray:
    """(n, 256) uint8 to (n, bands) uint64: three 16-bit values side by side are a band's key."""
    values = _values(signatures).astype(np.uint64)
    bands = values[:, : VALUES // ROWS_PER_BAND * ROWS_PER_BAND].reshape(len(values), -1, ROWS_PER_BAND)
    shifts = np.arange(ROWS_PER_BAND, dtype=np.uint64) * np.uint64(16)
    return np.bitwise_or.reduce(bands << shifts, axis=2)


def _alike(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.count_nonzero(_values(left) == _values(right), axis=1) / VALUES


def alike_pairs(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Pairs (k, 2) of rows whose shingle sets are probably alike: 99.6 % of those with a Jaccard similarity of 0.5, 99.99 % at 0.6."""
    return candidate_pairs(left, right, _keys, _alike, LEAST_ALIKE)
