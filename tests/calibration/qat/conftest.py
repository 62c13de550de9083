"""One project with a factory for all that is trained here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny_qat import FACTORY, teaching

from calibration.qat.train import Data


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("qat")
    (root / "model.py").write_text(FACTORY, encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def data() -> Data:
    return teaching()
