"""How far one array is from another, in decibels and as a share of power."""

from __future__ import annotations

import math

import numpy as np


def sqnr_db(reference: np.ndarray, other: np.ndarray) -> float | None:
    """10 log10(sum of squares of the reference / sum of squares of the difference) in dB, null for equal arrays.

    A reference of zeros with any difference gives -inf as -999 dB: records hold finite numbers only.
    """
    signal = float(np.sum(np.square(reference, dtype=np.float64)))
    noise = float(np.sum(np.square(reference.astype(np.float64) - other.astype(np.float64))))
    if noise == 0:
        return None
    return 10 * math.log10(signal / noise) if signal > 0 else -999.0


def drift(decibels: float | None) -> float:
    """Power of the error over that of the signal, from `sqnr_db`: 0.01 for 20 dB, 0 where nothing differs."""
    return 0.0 if decibels is None else 10 ** (-decibels / 10)
