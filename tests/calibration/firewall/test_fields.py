"""Which part of a row is compared."""

from __future__ import annotations

import numpy as np

from calibration.firewall.fields import fields_of


def test_a_long_list_of_words_is_compared_whole() -> None:
    """numpy's own text of a long array leaves out its middle."""
    words = np.array([f"word{index}" for index in range(2000)])
    other = words.copy()
    other[1000] = "another"
    assert str(fields_of({"words": words})[0].content) == "\n".join(words)
    assert str(fields_of({"words": other})[0].content) != str(fields_of({"words": words})[0].content)
