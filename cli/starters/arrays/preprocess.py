"""From one raw row to what the model takes. Shipped in the bundle and run by the host: Python and numpy only, one file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

CHANNELS, LENGTH, FACTS = 4, 64, 3


def prepare(raw: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """EDIT: `signal` (4, 64) and `facts` (3,) to the model's `signal` and `context`, float32. The names of `raw` are those of data.columns."""
    signal, facts = np.asarray(raw["signal"]), np.asarray(raw["facts"])
    if signal.shape != (CHANNELS, LENGTH) or facts.shape != (FACTS,):
        raise ValueError(f"signal must be ({CHANNELS}, {LENGTH}) and facts ({FACTS},): got {signal.shape} and {facts.shape}")
    centred = signal - signal.mean(axis=1, keepdims=True)
    return {"signal": centred.astype(np.float32), "context": facts.astype(np.float32)}
