"""A text as its words, without what two copies of it may differ in: case, punctuation, white space, Unicode form."""

from __future__ import annotations

import functools
import re
import unicodedata
from dataclasses import dataclass

POINT, MINUS, STOP = "\ue000", "\ue001", "\ue002"
"""Private characters that stand for the point of a number, its sign, and the end of a sentence."""
STOPS = frozenset(".!?…:;\n\r•。！？")
APOSTROPHES = frozenset("'’ʼ`´")
KEPT_SIGNS = frozenset("%&")
WIDE_LETTERS = 2.5
"""What a Chinese, Japanese or Korean character counts in letters: about five letters are a word, about two such characters are."""
UNSPACED = (  # scripts that are written without spaces: each character is a unit
    (0x3005, 0x3007, "wide"),
    (0x3040, 0x30FF, "wide"),
    (0x31F0, 0x31FF, "wide"),
    (0x3400, 0x4DBF, "wide"),
    (0x4E00, 0x9FFF, "wide"),
    (0xF900, 0xFAFF, "wide"),
    (0x20000, 0x3FFFF, "wide"),
    (0x0E00, 0x0EFF, "narrow"),  # Thai, Lao
    (0x1000, 0x109F, "narrow"),  # Burmese
    (0x1780, 0x17FF, "narrow"),  # Khmer
)
CONTRACTION = re.compile(r"\s+(?=(?:n['’]t|['’](?:s|m|re|ve|ll|d|t))\b)", re.IGNORECASE)
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
DECIMAL = re.compile(r"(?<=\d)[.,:'’](?=\d)")
SIGN = re.compile(r"(?<![\w)\]])[-−](?=\d)")
OPERATOR = re.compile(r"(?<=\d)\s*([-−–*^/]+)\s*(?=\d)")
OPERATOR_SIGNS = {sign: chr(0xE010 + index) for index, sign in enumerate("-*^/")}
DIGITS = re.compile(rf"{MINUS}?\d[\d{POINT}]*")


@dataclass(frozen=True)
class Words:
    """What is compared of one text.

    `units`: its words, or characters in scripts without spaces, case-folded. `letters`: the units joined, so that white space and hyphens do not
    matter. `digits`: its numbers in order. `names`: units that begin with a capital inside a sentence. `length` in letters, see WIDE_LETTERS.
    """

    units: tuple[str, ...]
    letters: str
    digits: tuple[str, ...]
    names: frozenset[str]
    length: float


def _script(code: int) -> str | None:
    return next((kind for low, high, kind in UNSPACED if low <= code <= high), None)


class _Units(dict[int, str]):
    """`str.translate` table, filled as characters are met: letters stay, unspaced characters and signs become units, the rest parts words."""

    def __missing__(self, code: int) -> str:
        char, category = chr(code), unicodedata.category(chr(code))
        if char in (POINT, MINUS):
            result = char
        elif char in STOPS:
            result = f" {STOP} "
        elif char in APOSTROPHES or category == "Cf" or 0xFE00 <= code <= 0xFE0F:
            result = ""
        elif category[0] in "LMN":
            result = f" {char} " if _script(code) else char
        elif category in ("Sm", "Sc", "So") or char in KEPT_SIGNS or char in OPERATOR_SIGNS.values():
            result = f" {char} "
        else:
            result = " "
        self[code] = result
        return result


TABLE = _Units()


def _operator(match: re.Match[str]) -> str:
    """A sign between two numbers is kept: 12 - 4 is not 12 * 4."""
    return " " + "".join(OPERATOR_SIGNS["-" if sign in "−–" else sign] for sign in match.group(1)) + " "


def words_of(text: str) -> Words:
    """Unicode NFKC, then units, then case folding. A text of punctuation alone keeps it: `:)` is not `:(`."""
    plain = unicodedata.normalize("NFKC", text)
    marked = SIGN.sub(MINUS, DECIMAL.sub(POINT, THOUSANDS.sub("", OPERATOR.sub(_operator, CONTRACTION.sub("", plain)))))
    units: list[str] = []
    names: set[str] = set()
    capitals, starting = 0, True
    for unit in marked.translate(TABLE).split():
        if unit == STOP:
            starting = True
            continue
        folded = unicodedata.normalize("NFKC", unit.casefold())
        units.append(folded)
        if len(unit) > 1 and unit[0].isupper():
            capitals += 1
            if not starting:
                names.add(folded)
        starting = False
    if not units:
        units = ["".join(char for char in plain if not char.isspace() and unicodedata.category(char) not in ("Cf", "Cc"))]
    if 2 * capitals > len(units):  # a headline, or all in capitals
        names.clear()
    letters = "".join(units)
    wide = 0 if letters.isascii() else sum(unicodedata.east_asian_width(char) in "WF" for char in letters)
    length = len(letters) + wide * (WIDE_LETTERS - 1)
    return Words(tuple(filter(None, units)), letters, tuple(DIGITS.findall(" ".join(units))), frozenset(names), length)


@functools.lru_cache(maxsize=4096)
def cached_words(text: str) -> Words:
    """`words_of`, kept for the rows that have many candidates."""
    return words_of(text)


def unit_weight(unit: object) -> float:
    """How much of a word a unit is: a Chinese character half, a Thai letter a quarter."""
    script = _script(ord(unit[0])) if isinstance(unit, str) and len(unit) == 1 else None
    return {"wide": 0.5, "narrow": 0.25, None: 1.0}[script]


def has_digit(unit: str) -> bool:
    """Is the unit a number, or has it one in it?"""
    return any(char.isdigit() for char in unit)
