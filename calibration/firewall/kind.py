"""What a kind of content (pictures, texts, tokens, numbers) offers so that near rows are found without comparing all pairs."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np


class Kind(Protocol):
    """Signatures find candidates through an index; each candidate is then confirmed by a direct comparison of the two rows.

    What merely looks alike is a candidate and no finding: `distance` decides, and it sees the content itself.
    """

    @property
    def name(self) -> str:
        """`picture`, `text`, `tokens` or `numbers`."""

    @property
    def version(self) -> str:
        """Changes when a signature or a decision would: part of every cache key. Parameters are in it."""

    @property
    def signature_bytes(self) -> int:
        """Length of a signature."""

    def sign(self, content: np.ndarray) -> np.ndarray:
        """(signature_bytes,) uint8 of one row's content: deterministic, on any machine."""

    def candidates(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """(n, signature_bytes) and (m, signature_bytes) to pairs (k, 2) int64 of left and right index, distinct and sorted.

        `right` may be much longer than `left`; time grows linearly with it, memory with the candidates.
        """

    def evidence(self, content: np.ndarray) -> Any:
        """What `distance` compares of one row, as small as it can be: it is held for every candidate at once."""

    def distance(self, left: Any, right: Any) -> float | None:
        """How far two rows are apart, 0 (equal) to 1, when they come from one original; None when they do not."""
