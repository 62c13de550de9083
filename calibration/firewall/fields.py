"""Which part of a row the firewall compares: its pictures, else its texts, else its token ids, else its numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

import numpy as np

from pipeline.errors import DataError

PICTURE, TEXT, TOKENS, NUMBERS = "picture", "text", "tokens", "numbers"


@dataclasses.dataclass(frozen=True)
class Field:
    """One thing that is compared, under a name that does not depend on the column's when there is only one of its kind."""

    name: str
    kind: str
    content: np.ndarray


def kind_of(array: np.ndarray) -> str:
    """uint8 (H, W) or (H, W, 3) is a picture, a string of rank 0 a text, integers (n,) token ids, and all else numbers."""
    if array.dtype.kind in "US":
        return TEXT
    if array.dtype == np.uint8 and (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3))):
        return PICTURE
    return TOKENS if array.dtype.kind in "iu" and array.ndim == 1 else NUMBERS


def fields_of(raw: Mapping[str, np.ndarray], columns: Collection[str] = ()) -> tuple[Field, ...]:
    """The compared fields of a decoded row, from `columns` or all: what a model's inputs derive from, never the label.

    Each picture is a field of its own; texts are joined, and so are token ids (columns that hold only 0 and 1, such as an attention mask,
    are left out where others do not) and numbers. Raises DataError for a column that is not there, or a row with nothing to compare.
    """
    if missing := sorted(set(columns) - set(raw)):
        raise DataError(
            "The firewall is to compare a column that is not there", where="data.firewall.columns", expected=", ".join(raw), got=missing[0]
        )
    chosen = {name: raw[name] for name in sorted(columns or raw)}
    by_kind: dict[str, dict[str, np.ndarray]] = {}
    for name, array in chosen.items():
        by_kind.setdefault(kind_of(array), {})[name] = array
    if pictures := by_kind.get(PICTURE):
        single = len(pictures) == 1
        return tuple(Field(PICTURE if single else f"{PICTURE} {name}", PICTURE, np.squeeze(array, 2) if array.shape[2:] == (1,) else array)
                     for name, array in pictures.items())  # fmt: skip
    if texts := by_kind.get(TEXT):
        return (Field(TEXT, TEXT, np.array("\n".join(str(text) for array in texts.values() for text in array.ravel().tolist()))),)
    if tokens := by_kind.get(TOKENS):
        telling = [array for array in tokens.values() if array.size and int(array.max()) > 1] or list(tokens.values())
        return (Field(TOKENS, TOKENS, np.concatenate(telling)),)
    if numbers := by_kind.get(NUMBERS):
        arrays = list(numbers.values())
        joined = arrays[0] if len(arrays) == 1 else np.concatenate([array.reshape(-1).astype(np.float64) for array in arrays])
        return (Field(NUMBERS, NUMBERS, joined),)
    raise DataError("A row has nothing to compare", where="data.columns", expected="a picture, text or array", got="no column")
