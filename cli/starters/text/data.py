"""The data source: one parquet file with the columns that data.columns in params.yaml names."""

from __future__ import annotations

import random
from pathlib import Path

ROWS = 1500
WORDS = {
    "billing": "invoice refund charge payment card receipt tax price subscription twice",
    "delivery": "parcel courier late address tracking package arrived damaged warehouse shipped",
    "login": "password account locked email reset code verify browser sign error",
    "praise": "great thanks love friendly helpful perfect recommend happy wonderful quick",
}
FILLER = [
    "the",
    "a",
    "my",
    "your",
    "it",
    "was",
    "is",
    "and",
    "but",
    "with",
    "please",
    "today",
    "again",
    "order",
    "number",
    "for",
    "on",
    "to",
    "i",
    "we",
    "still",
    "not",
    "very",
]


def write(path: Path) -> None:
    """EDIT: read your own texts and labels here, for example `pandas.read_csv(...)`. Now: tiny made-up support messages."""
    from datasets import Dataset

    source = random.Random(0)
    rows = []
    for index in range(ROWS):
        label = sorted(WORDS)[index % len(WORDS)]
        hints = [source.choice(WORDS[label].split()) for _ in range(source.randint(2, 6))]
        filler = [source.choice(FILLER) for _ in range(source.randint(2, 40))]
        words = hints + filler
        source.shuffle(words)
        rows.append({"text": " ".join(words), "label": label})
    Dataset.from_list(rows).to_parquet(str(path))
