"""Rows for benchmarks/firewall_texts.py, made by generators, and what may have happened to a copy of one. Run by nobody."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Row = Any
Change = Callable[[np.random.Generator, Row], Row]
FUNCTION_WORDS = ["the", "of", "and", "to", "a", "in", "is", "it", "that", "for", "was", "on", "with", "as", "be", "at", "by", "this", "from", "not"]
SYLLABLES = [a + b + c for a in "bcdfghklmnprstvw" for b in "aeiou" for c in ["", "n", "r", "s", "l"]]

_fixed = np.random.default_rng(0)
WORDS = ["".join(SYLLABLES[place] for place in _fixed.integers(0, len(SYLLABLES), _fixed.integers(2, 5))) for _ in range(12_000)]


class Prose:
    """Texts of function words and 12,000 words of two to four syllables in Zipf's proportion, with names, numbers and punctuation."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def content_word(self) -> str:
        rank = int(self.rng.zipf(1.15)) if self.rng.random() < 0.5 else int(self.rng.integers(len(WORDS)))
        return WORDS[min(rank, len(WORDS)) - 1]

    def word(self) -> str:
        chance = self.rng.random()
        if chance < 0.42:
            return FUNCTION_WORDS[self.rng.integers(len(FUNCTION_WORDS))]
        if chance < 0.45:
            return self.content_word().capitalize()
        return str(self.rng.integers(2, 3000)) if chance < 0.46 else self.content_word()

    def text(self, low: int, high: int) -> str:
        words = [self.word() for _ in range(int(self.rng.integers(low, high + 1)))]
        start = 0
        while start < len(words):
            words[start] = words[start].capitalize()
            stop = min(start + int(self.rng.integers(6, 18)), len(words))
            words[stop - 1] += "."
            if stop - start > 8:
                words[start + 4] += ","
            start = stop
        return " ".join(words)

    def chinese(self, low: int, high: int) -> str:
        codes = 0x4E00 + np.minimum(self.rng.zipf(1.1, int(self.rng.integers(low, high + 1))), 3000) * 7 % 20000
        text = "".join(map(chr, codes))
        return re.sub(r"(.{9})", r"\1,", text) + "。"


def some_places(rng: np.random.Generator, words: list[str], share: float, plain: bool = False) -> list[int]:
    """Places of words to change; `plain` leaves out names, numbers and the beginnings of sentences."""
    usable = [place for place, word in enumerate(words) if not plain or (word.isalpha() and word.islower())]
    count = max(1, int(share * len(words)))
    return [usable[place] for place in rng.choice(len(usable), min(count, len(usable)), replace=False)]


def replaced(share: float) -> Change:
    def change(rng: np.random.Generator, text: str) -> str:
        prose, words = Prose(rng), text.split()
        for place in some_places(rng, words, share, plain=True):
            words[place] = prose.content_word()
        return " ".join(words)

    return change


def deleted(rng: np.random.Generator, text: str) -> str:
    words = text.split()
    gone = set(some_places(rng, words, 0.1))
    return " ".join(word for place, word in enumerate(words) if place not in gone)


def inserted(rng: np.random.Generator, text: str) -> str:
    words, prose = text.split(), Prose(rng)
    for _ in range(max(1, len(words) // 10)):
        words.insert(int(rng.integers(len(words))), prose.word())
    return " ".join(words)


def swapped(rng: np.random.Generator, text: str) -> str:
    words = text.split()
    place = int(rng.integers(len(words) - 1))
    words[place], words[place + 1] = words[place + 1], words[place]
    return " ".join(words)


def typos(rng: np.random.Generator, text: str) -> str:
    """Two letters swapped inside one word of ten."""
    words = text.split()
    for place in some_places(rng, words, 0.1):
        word = words[place]
        if len(word) > 4:
            at = int(rng.integers(1, len(word) - 2))
            words[place] = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return " ".join(words)


def mixed(rng: np.random.Generator, text: str) -> str:
    """Lower case, no punctuation, one word in twenty replaced, one deleted."""
    words = re.sub(r"[.,]", "", replaced(0.05)(rng, text)).lower().split()
    del words[int(rng.integers(len(words)))]
    return " ".join(words)


WRITING: dict[str, Change] = {
    "case": lambda _, text: text.upper(),
    "punctuation, white space": lambda _, text: re.sub(r" ", "  ", text.replace(",", "").replace(".", "!")) + "\n",
    "tokenized": lambda _, text: re.sub(r"([.,])", r" \1 ", text).lower(),
    "Unicode form": lambda _, text: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in unicodedata.normalize("NFD", text)),
}
EDITS: dict[str, Change] = {
    "5 % of words replaced": replaced(0.05),
    "10 % of words replaced": replaced(0.1),
    "10 % of words deleted": deleted,
    "10 % of words inserted": inserted,
    "two neighbours swapped": swapped,
    "typos in 10 % of words": typos,
    "case, punctuation, 5 % replaced, one deleted": mixed,
}


def another_phrase(rng: np.random.Generator, text: str) -> str:
    """Three neighbouring words replaced: boilerplate about something else."""
    words, prose = text.split(), Prose(rng)
    place = int(rng.integers(1, len(words) - 4))
    words[place : place + 3] = [prose.content_word() for _ in range(3)]
    return " ".join(words)


def with_slot(rng: np.random.Generator, text: str, fillers: Sequence[str], times: int = 1) -> tuple[str, str]:
    """The text with one word of it `times` replaced by the first filler, and by the second."""
    words = text.split()
    places = some_places(rng, words, (times + 0.5) / len(words), plain=True)[:times]
    return tuple(" ".join(filler if place in places else word for place, word in enumerate(words)) for filler in fillers)  # type: ignore[return-value]


def as_ids(rng: np.random.Generator, low: int, high: int) -> np.ndarray:
    """Ids as a tokenizer of 30,000 gives them, between a beginning and an end."""
    ids = 1000 + np.minimum(rng.zipf(1.15, int(rng.integers(low, high + 1))), 29_000)
    return np.r_[101, ids, 102].astype(np.int64)


def ids_changed(share: float, how: str) -> Change:
    def change(rng: np.random.Generator, ids: np.ndarray) -> np.ndarray:
        places = rng.choice(np.arange(1, len(ids) - 1), max(1, int(share * len(ids))), replace=False)
        fresh = 1000 + rng.integers(1, 29_000, len(places))
        if how == "replaced":
            result = ids.copy()
            result[places] = fresh
            return result
        return np.delete(ids, places) if how == "deleted" else np.insert(ids, places, fresh)

    return change


ID_CHANGES: dict[str, Change] = {
    "other padding": lambda _, ids: np.r_[ids, np.zeros(300 - len(ids), np.int64)],
    "5 % of ids replaced": ids_changed(0.05, "replaced"),
    "8 % of ids replaced": ids_changed(0.08, "replaced"),
    "10 % of ids deleted": ids_changed(0.1, "deleted"),
    "10 % of ids inserted": ids_changed(0.1, "inserted"),
}


def smooth(rng: np.random.Generator, rows: int, length: int, scale: int) -> np.ndarray:
    """(rows, length) Gaussian processes of unit variance that vary over `scale` samples."""
    kernel = np.exp(-0.5 * (np.arange(-4 * scale, 4 * scale + 1) / scale) ** 2)
    kernel /= np.sqrt((kernel**2).sum())
    return np.stack([np.convolve(row, kernel, "valid")[:length] for row in rng.normal(size=(rows, length + 8 * scale))])


def sensor(rng: np.random.Generator, rows: int) -> np.ndarray:
    return smooth(rng, rows, 256, 8)


def channels(rng: np.random.Generator, rows: int) -> np.ndarray:
    """(rows, 256, 4): pressure, temperature, acceleration and time."""
    ramp = np.broadcast_to(np.arange(256.0), (rows, 256))
    signals = [101325 + 10 * smooth(rng, rows, 256, 10), 20 + 5 * smooth(rng, rows, 256, 20), smooth(rng, rows, 256, 2), ramp]
    return np.stack(signals, axis=2)


def beats(rng: np.random.Generator, rows: int) -> np.ndarray:
    """(rows, 188): heart beats, all alike but for their waves' places and sizes and the noise of the sensor, zeros after the end."""
    time_, result = np.arange(188), []
    for _ in range(rows):
        peak, width, gain = rng.normal(60, 4), rng.normal(9, 1), rng.normal(1, 0.1)
        row = gain * np.exp(-0.5 * ((time_ - peak) / 3) ** 2) + 0.2 * np.exp(-0.5 * ((time_ - peak - 40) / width) ** 2)
        row += 0.1 * np.exp(-0.5 * ((time_ - peak + 25) / 6) ** 2) + rng.normal(0, 0.01, 188)
        row[int(rng.integers(130, 188)) :] = 0
        result.append(row)
    return np.stack(result)


def sines(rng: np.random.Generator, rows: int) -> np.ndarray:
    frequency, phase, gain = rng.uniform(1, 5, (rows, 1)), rng.uniform(0, 2 * np.pi, (rows, 1)), rng.uniform(0.5, 2, (rows, 1))
    return gain * np.sin(2 * np.pi * frequency * np.linspace(0, 1, 256) + phase)


def vectors(rng: np.random.Generator, rows: int) -> np.ndarray:
    return rng.normal(size=(rows, 384)).astype(np.float32)


def table(rng: np.random.Generator, rows: int) -> np.ndarray:
    """(rows, 10): age, classes, counts, income, measurements."""
    whole = [rng.integers(18, 80, rows), rng.integers(0, 2, rows), rng.integers(1, 17, rows), rng.poisson(0.3, rows)]
    income = rng.lognormal(10, 0.5, rows).round(2).clip(0, 60000)
    measured = [rng.normal(size=rows), rng.normal(size=rows).round(2), rng.uniform(0.01, 1, rows), rng.normal(170, 10, rows).round(1)]
    return np.stack([*whole, income, *measured, rng.uniform(1, 100, rows).round(1)], axis=1).astype(np.float64)


FAMILIES = {family.__name__: family for family in (sensor, channels, beats, vectors, sines, table)}


def noise(share: float) -> Change:
    def change(rng: np.random.Generator, row: np.ndarray) -> np.ndarray:
        return row + share * row.std(axis=0 if row.ndim > 1 else None, keepdims=True) * rng.normal(size=row.shape)

    return change


ARRAY_CHANGES: dict[str, Change] = {
    "float32": lambda _, row: row.astype(np.float32),
    "float16": lambda _, row: row.astype(np.float16),
    "scale 1.02": lambda _, row: row * 1.02,
    "noise 0.5 %": noise(0.005),
    "noise 1 %": noise(0.01),
}
