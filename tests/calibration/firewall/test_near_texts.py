"""Which texts and token sequences come from one original, and how they are found."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_corpora import Prose

from calibration.firewall.texts import Texts, Tokens
from calibration.firewall.words import words_of
from pipeline.errors import DataError

TEXTS, TOKENS = Texts(), Tokens()
LONG = (
    "The committee met on Thursday to discuss the annual budget, and decided that more money should be spent on roads, schools and "
    "hospitals than on the new bridge across the river."
)


def near(left: str, right: str) -> float | None:
    """The verdict of two texts, after checking that it is symmetric and that the index would have proposed the pair if they are near."""
    distance = TEXTS.distance(TEXTS.evidence(np.array(left)), TEXTS.evidence(np.array(right)))
    assert distance == TEXTS.distance(right, left)
    if distance is not None:
        assert TEXTS.candidates(TEXTS.sign(np.array(left))[None], TEXTS.sign(np.array(right))[None]).tolist() == [[0, 0]]
    return distance


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("Good movie", "good  movie!"),
        ("I don't like it.", "I do n't like it ."),
        ("It's e-mail", "its email"),
        ("Straße", "STRASSE"),
        ("ＡＢＣ １２３", "abc 123"),
        (unicodedata.normalize("NFC", "naïve café"), unicodedata.normalize("NFD", "Naïve café")),
        ("1,234 rows", "1234 rows"),
        ("我喜欢这部电影。", "我 喜欢 这部 电影"),
        ("soft\u00adhyphen", "softhyphen"),
        ("", " \n\u200b"),
        ("...", "…"),
        (LONG, LONG.upper().replace(",", " ;")),
    ],
)
def test_writing_does_not_make_another_text(left: str, right: str) -> None:
    assert near(left, right) == 0


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("good movie", "bad movie"),
        ("I would recommend this movie to my best friends", "I would not recommend this movie to my best friends"),
        ("what is the best way to learn python in one month", "what is the best way to learn java in one month"),
        ("我喜欢这部电影。", "我讨厌这部电影。"),
        ("这家餐厅的服务态度非常好,下次还会再来", "这家餐厅的服务态度非常差,下次还会再来"),
        ("12 - 4", "12 * 4"),
        ("a 3.5 b", "a 35 b"),
        ("12 3", "1 23"),
        ("it is -5 today", "it is 5 today"),
        ("5%", "5"),
        (":)", ":("),
        ("great 👍", "great 👎"),
        ("", "a"),
        ("", "."),
    ],
)
def test_one_word_or_sign_makes_another_short_text(left: str, right: str) -> None:
    assert near(left, right) is None


@pytest.mark.parametrize(
    ("change", "share"),
    [
        (("annual", "yearly"), 1 / 32),
        (("annual budget", "yearly costs"), 2 / 32),
        (("met on Thursday to discuss", "met to discuss"), 2 / 32),
        (("discuss", "discus"), 0.5 / 32),
        (("Thursday", "Thrusday"), 0.5 / 32),
    ],
)
def test_a_few_words_leave_a_long_text_near(change: tuple[str, str], share: float) -> None:
    assert near(LONG, LONG.replace(*change)) == pytest.approx(share, rel=0.05)


ORDER = (
    "Dear Mr Smith, thank you for your order of 2 lamps from Berlin. The lamp will leave our store on Monday and should be with you by the "
    "end of the week; the lamp can be sent back within a month."
)


@pytest.mark.parametrize(
    "change",
    [("Smith", "Jones"), ("2", "3"), ("Berlin", "Paris"), ("lamp ", "vase "), ("by the end of the week", "as soon as we can send")],
    ids=["name", "number", "place", "word twice", "phrase"],
)
def test_boilerplate_about_another_subject_is_another_text(change: tuple[str, str]) -> None:
    changed = ORDER.replace(*change)
    assert changed != ORDER
    assert near(ORDER, changed) is None


def test_half_a_text_and_an_unrelated_one_are_not_near() -> None:
    prose = Prose(2)
    text = prose.text(60)
    assert near(text, text[: len(text) // 2]) is None
    assert near(text, prose.text(60)) is None


CHANGES = {
    "case": lambda _, text: text.swapcase(),
    "punctuation": lambda _, text: text.replace(",", "").replace(".", " !"),
    "5 % replaced": lambda prose, text: prose.replaced(text, len(text.split()) // 20),
    "10 % replaced": lambda prose, text: prose.replaced(text, len(text.split()) // 10),
    "10 % deleted": lambda prose, text: prose.deleted(text, len(text.split()) // 10),
    "10 % inserted": lambda prose, text: prose.inserted(text, len(text.split()) // 10),
}


def found_pairs(kind: Texts | Tokens, left: list[np.ndarray], right: list[np.ndarray]) -> dict[tuple[int, int], float]:
    """What the firewall would report: candidates, then decisions."""
    pairs = kind.candidates(np.stack([kind.sign(row) for row in left]), np.stack([kind.sign(row) for row in right])).tolist()
    decided = {(i, j): kind.distance(kind.evidence(left[i]), kind.evidence(right[j])) for i, j in pairs}
    return {pair: distance for pair, distance in decided.items() if distance is not None}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_copies_are_found_among_others(change: str) -> None:
    """At least 58 of 60 copies of texts of 20 to 60 words, and no pair that is none, among 400 others."""
    prose = Prose(3)
    originals = [prose.text(int(prose.rng.integers(20, 60))) for _ in range(60)]
    copies = [CHANGES[change](prose, text) for text in originals]
    others = [prose.text(int(prose.rng.integers(3, 60))) for _ in range(400)]
    found = found_pairs(TEXTS, [np.array(text) for text in originals], [np.array(text) for text in [*copies, *others]])
    assert all(i == j for i, j in found)
    assert len(found) >= 58


def test_short_texts_meet_only_equal_ones() -> None:
    prose = Prose(4)
    originals = list(dict.fromkeys(prose.text(int(prose.rng.integers(3, 9))) for _ in range(200)))
    copies = [text.upper().replace(".", " !") for text in originals]
    changed = [prose.replaced(text, 1) for text in originals]
    found = found_pairs(TEXTS, [np.array(text) for text in originals], [np.array(text) for text in copies + changed])
    assert {pair for pair in found if pair[1] < len(copies)} == {(i, i) for i in range(len(originals))}
    words = [words_of(text).letters for text in originals + changed]
    assert all(words[i] == words[j] for i, j in found if j >= len(copies))


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200), st.text(max_size=200))
def test_any_text_is_signed_and_compared(left: str, right: str) -> None:
    """Also lone surrogates, private characters and control characters; a text is near to itself, and writing twice as loud changes nothing."""
    assert TEXTS.sign(np.array(left, object)).shape == (TEXTS.signature_bytes,)
    distance = TEXTS.distance(left, right)
    assert distance is None or 0 <= distance <= 1
    assert TEXTS.distance(left, left) == 0
    assert (TEXTS.sign(np.array(left, object)) == TEXTS.sign(np.array(f"  {left}\t", object))).all()


def test_a_signature_is_the_same_on_any_machine() -> None:
    """The digest of these signatures when they were first made: a change of it needs another version."""
    import hashlib

    rows = [TEXTS.sign(np.array(text)) for text in ("", "good movie", LONG, "我喜欢这部电影" * 10)] + [TOKENS.sign(np.arange(1, 90) ** 2 % 7001)]
    assert hashlib.sha256(np.concatenate(rows).tobytes()).hexdigest()[:16] == "5ac318257f87806d"


def tokens(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.r_[101, 1000 + (rng.zipf(1.2, count) % 20000), 102].astype(np.int64)


def test_padding_type_and_width_do_not_matter() -> None:
    rng = np.random.default_rng(0)
    for count in (5, 80):
        row = tokens(rng, count)
        for copy in (np.r_[row, [0] * 9], np.r_[row, 0], np.r_[row, [-100] * 3], np.r_[row, [7] * 40], row.astype(np.int32), row.astype(np.uint16)):
            assert list(found_pairs(TOKENS, [row], [copy]).values()) == [0.0]
    assert list(found_pairs(TOKENS, [row], [np.r_[[0] * 30, row]]).values()) == [0.0]


@pytest.mark.parametrize(
    ("left", "right"),
    [([5, 6, 7], [5, 6, 8]), ([0, 0, 1], [0, 1, 0]), ([9, 5, 5, 5, 5], [9, 6, 6, 6, 6]), ([7] * 9, [8] * 9), ([], [5]), ([3, 0], [0, 3])],
)
def test_short_id_sequences_are_near_only_to_equal_ones(left: list[int], right: list[int]) -> None:
    a, b = (TOKENS.evidence(np.array(ids, np.int64)) for ids in (left, right))
    assert TOKENS.distance(a, b) is None
    assert TOKENS.distance(a, a) == 0


def test_changed_id_sequences_are_found_and_sparse_vectors_are_not() -> None:
    rng = np.random.default_rng(5)
    originals = [tokens(rng, int(rng.integers(40, 200))) for _ in range(60)]
    copies = []
    for row in originals:
        copy = row.copy()
        places = rng.choice(np.arange(1, len(row) - 1), len(row) // 12, replace=False)
        copy[places] = rng.integers(1000, 30000, len(places))
        copies.append(np.r_[np.delete(copy, 3), np.zeros(300 - len(row), np.int64)])
    others = [tokens(rng, int(rng.integers(40, 200))) for _ in range(300)]
    found = found_pairs(TOKENS, originals, copies + others)
    assert all(i == j for i, j in found)
    assert len(found) >= 57
    counts = [np.where(rng.random(500) < 0.03, 1, 0) for _ in range(60)]
    assert not found_pairs(TOKENS, counts[:30], counts[30:])


@pytest.mark.parametrize("content", [np.array(5), np.array(["a", "b"]), np.array(b"bytes")])
def test_what_is_no_text_is_named(content: np.ndarray) -> None:
    with pytest.raises(DataError, match="no text"):
        TEXTS.sign(content)


@pytest.mark.parametrize("content", [np.zeros(4), np.zeros((2, 3), int), np.array("text")])
def test_what_is_no_token_sequence_is_named(content: np.ndarray) -> None:
    with pytest.raises(DataError, match="no token sequence"):
        TOKENS.sign(content)
