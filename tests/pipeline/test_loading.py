"""A user's function by file or import path, and each way in which that fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.loading import load_object


def test_by_file_and_by_import_path(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def build():\n    return 7\n")
    assert load_object("mine.py:build", tmp_path)() == 7
    assert load_object("json:dumps")([1]) == "[1]"
    assert not (tmp_path / "__pycache__").exists()


@pytest.mark.parametrize(
    ("reference", "content", "says"),
    [
        ("mine.py", "", "does not name an object"),
        ("absent.py:build", "", "no such file"),
        ("mine.py:build", "import nowhere_at_all", "ModuleNotFoundError"),
        ("mine.py:build", "1 / 0", "ZeroDivisionError"),
        ("mine.py:build", "def build(", "SyntaxError"),
        ("mine.py:build", "def bulid(): ...", "bulid"),
        ("no.such.module:build", "", "No module named"),
    ],
)
def test_each_failure_is_one_error(reference: str, content: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(content)
    with pytest.raises(ConfigError) as caught:
        load_object(reference, tmp_path)
    assert says in str(caught.value)
    assert reference in str(caught.value)
