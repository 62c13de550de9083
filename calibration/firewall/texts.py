"""Near rows of texts and of token sequences: MinHash of shingles finds candidates, an alignment of the two decides."""

from __future__ import annotations

import functools
import unicodedata
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from rapidfuzz import fuzz

from calibration.firewall import minhash
from calibration.firewall.edits import Allowed, Pair, changed_share
from calibration.firewall.words import cached_words, has_digit, unit_weight, words_of
from pipeline.errors import DataError

SHORT_LETTERS = 75
"""About 15 words, or 30 Chinese characters."""
LETTER_SHINGLE = 5
WORD_CHANGES = Allowed()
SHORT_IDS = 24
"""About 16 words."""
ID_SHINGLE = 3
SMALL_SHINGLE = 5
SMALL_VOCABULARY = 512
"""Ids that are all below this are letters or bytes."""
ID_CHANGES = Allowed(phrase=4.0)
PADDING_RUN = 4


@dataclass(frozen=True)
class Texts:
    """Content: a string array of rank 0.

    Equal letters (case, punctuation, white space, Unicode form and hyphens aside) and equal numbers are near, at distance 0, however short. A text
    of fewer than 75 letters (about 15 words; 30 Chinese characters) is near to nothing else: one word decides what it means. A longer one is near
    when at most one word in ten has another in its place and at most 15 in 100 are changed in all, a spelling variant counting half; and when
    nothing says that the subject is another one: a number in place of a number, a capitalised name in place of a name, the same word replaced by
    the same other word twice, three neighbouring words replaced. Distance is the changed share. Half a text, or its sentences in another order, is
    not near; one lower-case noun replaced in a long template is.
    """

    @property
    def name(self) -> str:
        """`text`."""
        return "text"

    @property
    def version(self) -> str:
        """Rule, parameters, signature method, and the tables of Unicode that Python has."""
        rule = f"text-2 short={SHORT_LETTERS} shingle={LETTER_SHINGLE} {WORD_CHANGES}"
        return f"{rule} {minhash.VERSION} unicode-{unicodedata.unidata_version}"

    @property
    def signature_bytes(self) -> int:
        """256."""
        return minhash.SIGNATURE_BYTES

    def sign(self, content: np.ndarray) -> np.ndarray:
        """(256,) uint8: MinHash of all runs of five letters; of the whole when the text is short, which then meets only equal ones."""
        words = words_of(_text(content))
        codes = np.frombuffer(words.letters.encode("utf-32-le", "surrogatepass"), "<u4")
        whole = words.length < SHORT_LETTERS or len(codes) < LETTER_SHINGLE
        return minhash.signature(minhash.whole_hash(codes) if whole else minhash.shingle_hashes(codes, LETTER_SHINGLE))

    def candidates(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """See Kind; a right row has at most 32, the most alike."""
        return minhash.alike_pairs(left, right)

    def evidence(self, content: np.ndarray) -> str:
        """The text itself: its words are found again when they are compared."""
        return _text(content)

    def distance(self, left: Any, right: Any) -> float | None:
        """Changed share of the words, 0 when only the writing differs, None when the rule of this class says two originals."""
        a, b = cached_words(left), cached_words(right)
        if a.letters == b.letters:
            return 0.0 if a.digits == b.digits else None
        if min(a.length, b.length) < SHORT_LETTERS:
            return None
        ours, theirs = Counter(a.units), Counter(b.units)
        gone, come = ours - theirs, theirs - ours
        if any(map(has_digit, gone)) and any(map(has_digit, come)):
            return None
        if _others(a.names & gone.keys(), b.names & come.keys()):
            return None
        return changed_share(a.units, b.units, WORD_CHANGES, is_variant=_is_variant, weight=unit_weight)


@dataclass(frozen=True)
class Tokens:
    """Content: a 1-D integer array of token ids, with or without padding at either end.

    Padding is taken off: zeros and negative ids, or else one id four times or more, at the end, and of long rows at the beginning. Equal ids are
    then near, at distance 0. Rows with fewer than 24 telling ids (about 16 words; all of a text's ids, few of a sparse vector's or
    of long runs) are near to nothing else; longer ones as texts are, telling ids for words: at most one in ten replaced and 15 in 100
    changed, no id replaced by the same other id twice, no four neighbours replaced. What an id means is not known here, so another case or a
    replaced number is a replaced id.
    """

    @property
    def name(self) -> str:
        """`tokens`."""
        return "tokens"

    @property
    def version(self) -> str:
        """Rule, parameters and signature method."""
        shingles = f"shingle={ID_SHINGLE}/{SMALL_SHINGLE}<{SMALL_VOCABULARY}"
        return f"tokens-1 short={SHORT_IDS} {shingles} {ID_CHANGES} padding={PADDING_RUN} {minhash.VERSION}"

    @property
    def signature_bytes(self) -> int:
        """256."""
        return minhash.SIGNATURE_BYTES

    def sign(self, content: np.ndarray) -> np.ndarray:
        """(256,) uint8: MinHash of all runs of three ids (five where every id is below 512: letters or bytes); of the whole when short."""
        row = _unpadded(content)
        if row.telling < SHORT_IDS:
            return minhash.signature(minhash.whole_hash(row.ids))
        return minhash.signature(minhash.shingle_hashes(row.ids, SMALL_SHINGLE if int(row.ids.max()) < SMALL_VOCABULARY else ID_SHINGLE))

    def candidates(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """See Kind; a right row has at most 32, the most alike."""
        return minhash.alike_pairs(left, right)

    def evidence(self, content: np.ndarray) -> Ids:
        """The ids without padding, of the content's own type."""
        return _unpadded(content)

    def distance(self, left: Any, right: Any) -> float | None:
        """Changed share of the ids, 0 when they are equal, None when the rule of this class says two originals."""
        if np.array_equal(left.ids, right.ids):
            same = left.padding == right.padding or (len(left.ids) > 0 and None in (left.padding, right.padding))
            return 0.0 if same else None
        size = min(left.telling, right.telling)
        return None if size < SHORT_IDS else changed_share(left.ids.tolist(), right.ids.tolist(), ID_CHANGES, size)


@functools.lru_cache(maxsize=65536)
def _is_variant(pair: Pair) -> bool:
    """Two spellings of one word: the first letter the same (encoder is not decoder), four letters or more, three in four alike, no digit."""
    left, right = str(pair[0]), str(pair[1])
    return left[0] == right[0] and min(len(left), len(right)) >= 4 and not has_digit(left + right) and fuzz.ratio(left, right) >= 75


def _others(gone: Collection[str], come: Collection[str]) -> bool:
    """Did a name take another's place, and not just another spelling of it?"""
    new = [name for name in gone if not any(_is_variant((name, other)) for other in come)]
    return bool(new) and any(not any(_is_variant((name, other)) for other in gone) for name in come)


def _text(content: np.ndarray) -> str:
    value = np.asarray(content)
    item = value.item() if value.ndim == 0 else None
    if not isinstance(item, str):
        got = f"shape {value.shape}, type {value.dtype}"
        raise DataError("A row is no text", expected="one string", got=got, next="name the text column in data.columns")
    return item


@dataclass(frozen=True)
class Ids:
    """A token sequence without its padding (n,), the positive id that padded it at the end, if one did, and how many of its ids tell something."""

    ids: np.ndarray
    padding: int | None
    telling: int


def _unpadded(content: np.ndarray) -> Ids:
    ids = np.asarray(content)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        got = f"shape {ids.shape}, type {ids.dtype}"
        raise DataError("A row is no token sequence", expected="a 1-D integer array", got=got, next="name the column of token ids in data.columns")
    backwards, padding = _without_lead(ids[::-1])
    ids = backwards[::-1]
    core = _without_lead(ids)[0]
    if _telling(core) >= SHORT_IDS:  # in a short row the zeros before may be its content: 0 0 1 is not 0 1 0
        ids = core
    return Ids(np.ascontiguousarray(ids), padding, _telling(ids))


def _without_lead(ids: np.ndarray) -> tuple[np.ndarray, int | None]:
    """`ids` without the padding that they begin with, and the id of that where it is positive."""
    if not len(ids):
        return ids, None
    run = int(np.argmax(np.r_[ids > 0 if ids[0] <= 0 else ids != ids[0], True]))
    if ids[0] > 0 and run < PADDING_RUN:
        return ids, None
    return ids[run:], int(ids[0]) if ids[0] > 0 else None


def _telling(ids: np.ndarray) -> int:
    """How many ids tell something: those that differ from the one before and from the commonest, and a third more for that one.

    All of a text's; few of a sparse vector's or of long runs.
    """
    if not len(ids):
        return 0
    values, counts = np.unique(ids, return_counts=True)
    others = int(np.count_nonzero((ids != values[np.argmax(counts)]) & np.r_[True, ids[1:] != ids[:-1]]))
    return min(len(ids), others * 4 // 3)
