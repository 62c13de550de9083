"""Texts, token ids and arrays made on the fly, and what may have happened to a copy of one."""

from __future__ import annotations

import numpy as np

LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
FUNCTION_WORDS = ["the", "of", "and", "to", "a", "in", "is", "it", "that", "for", "was", "on", "with", "as", "be", "at", "by", "this", "from", "not"]


class Prose:
    """Texts of function words and of 8,000 made-up words in Zipf's proportion; capitals, commas and full stops as in prose."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        shares = 0.9 ** np.arange(26)
        names = np.random.default_rng(1)
        self.words = ["".join(names.choice(list(LETTERS), names.integers(3, 10), p=shares / shares.sum())) for _ in range(8000)]

    def word(self) -> str:
        if self.rng.random() < 0.4:
            return FUNCTION_WORDS[self.rng.integers(len(FUNCTION_WORDS))]
        return self.words[(self.rng.zipf(1.2) - 1) % len(self.words)]

    def rare_word(self) -> str:
        return self.words[self.rng.integers(len(self.words))]

    def text(self, count: int) -> str:
        words = [self.word() for _ in range(count)]
        words[0] = words[0].capitalize()
        for place in range(7, count - 1, 9):
            words[place] += "," if place % 2 else "."
            if not place % 2:
                words[place + 1] = words[place + 1].capitalize()
        return " ".join(words) + "."

    def replaced(self, text: str, count: int) -> str:
        words = text.split()
        for place in self.rng.choice(len(words), count, replace=False):
            words[place] = self.rare_word()
        return " ".join(words)

    def deleted(self, text: str, count: int) -> str:
        words = text.split()
        gone = set(self.rng.choice(len(words), count, replace=False).tolist())
        return " ".join(word for place, word in enumerate(words) if place not in gone)

    def inserted(self, text: str, count: int) -> str:
        words = text.split()
        for _ in range(count):
            words.insert(int(self.rng.integers(len(words))), self.word())
        return " ".join(words)


def smooth(rng: np.random.Generator, rows: int, length: int, scale: int) -> np.ndarray:
    """(rows, length) Gaussian processes of unit variance that vary over `scale` samples: a sensor's family."""
    kernel = np.exp(-0.5 * (np.arange(-4 * scale, 4 * scale + 1) / scale) ** 2)
    kernel /= np.sqrt((kernel**2).sum())
    noise = rng.normal(size=(rows, length + 8 * scale))
    return np.stack([np.convolve(row, kernel, "valid")[:length] for row in noise])


def table(rng: np.random.Generator, rows: int) -> np.ndarray:
    """(rows, 10): an age, classes, counts, an income and measurements, as a table's columns stacked."""
    columns = [
        rng.integers(18, 80, rows),
        rng.integers(0, 2, rows),
        rng.integers(1, 17, rows),
        rng.poisson(0.3, rows),
        rng.lognormal(10, 0.5, rows).round(2).clip(0, 60000),
        rng.normal(size=rows),
        rng.normal(size=rows).round(2),
        rng.uniform(0.01, 1, rows),
        rng.uniform(1, 100, rows).round(1),
        rng.normal(170, 10, rows).round(1),
    ]
    return np.stack(columns, axis=1).astype(np.float64)
