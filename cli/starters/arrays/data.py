"""The data source: one parquet file with the columns that data.columns in params.yaml names."""

from __future__ import annotations

from pathlib import Path

import numpy as np

ROWS, CHANNELS, LENGTH, FACTS = 1400, 4, 64, 3


def write(path: Path) -> None:
    """EDIT: read your own arrays here, for example from .npz or CSV. Now: tiny made-up waves whose amplitude is to be found."""
    from datasets import Dataset

    random = np.random.default_rng(0)
    time = np.arange(LENGTH) / LENGTH
    rows = []
    for _ in range(ROWS):
        amplitude, facts = random.uniform(0.5, 2.0), random.uniform(-1, 1, FACTS)
        cycles, phase = random.uniform(2, 6, (CHANNELS, 1)), random.uniform(0, 2 * np.pi, (CHANNELS, 1))
        signal = amplitude * np.sin(2 * np.pi * cycles * time + phase) + 0.05 * random.standard_normal((CHANNELS, LENGTH))
        rows.append({"signal": signal.astype(np.float32).tolist(), "facts": facts.astype(np.float32).tolist(), "label": amplitude + 0.5 * facts[0]})
    Dataset.from_list(rows).to_parquet(str(path))
