"""Further parts of a forecast: the LSTM that `qwarm lstm` trains, and ETS where statsforecast is installed. By skill, or not at all."""

from __future__ import annotations

import csv
import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

from cli.lstm import train
from fleet.extras import Ets, Lstm, extra_parts, open_lstm
from fleet.forecast import Forecaster, Part
from fleet.forecast_process import main
from fleet.seasons import DAY_SLOTS
from pipeline.errors import ConfigError, DataError

MONDAY = 1_704_067_200


def counts(days: int) -> list[int]:
    random = np.random.default_rng(0)
    return [int(random.poisson(8.0 + 6.0 * math.sin(2 * math.pi * index / DAY_SLOTS))) for index in range(days * DAY_SLOTS)]


def write(path: Path, values: list[int]) -> Path:
    with open(path, "w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["timestamp", "count"])
        rows.writerows([MONDAY + 1800 * index, value] for index, value in enumerate(values))
    return path


@pytest.fixture(scope="module")
def lstm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lstm")
    result = train([str(write(folder / "daily.csv", counts(14)))], str(folder / "lstm.onnx"), share=1.0, epochs=6)
    assert result["loss"][-1] < result["loss"][0]
    return folder / "lstm.onnx"


def told(extras: list[Part], values: list[int]) -> Forecaster:
    forecaster = Forecaster(extras=extras)
    for value in values:
        forecaster.learn(float(value))
        forecaster.forecast()
    return forecaster


def test_an_lstm_says_counts_and_the_forecast_is_no_worse_with_it(lstm: Path) -> None:
    part = Lstm(open_lstm(lstm))
    forecaster = told([part], counts(20))
    ahead = part.ahead([0.0] * DAY_SLOTS)
    assert len(ahead) == DAY_SLOTS
    assert all(0.0 <= value < 1e3 for value in ahead)
    assert part.ahead([0.0] * DAY_SLOTS) == ahead  # asking changes nothing
    assert forecaster.skill is not None
    assert forecaster.skill >= 0.0


class Silly:
    """A double of a part that is always wrong."""

    def learn(self, count: float, usual: float) -> None:
        pass

    def ahead(self, usuals: list[float]) -> list[float]:
        return [1e6] * len(usuals)


def test_a_part_that_does_not_beat_the_average_has_no_weight() -> None:
    forecaster, plain = told([Silly()], counts(10)), told([], counts(10))
    assert forecaster.forecast() == plain.forecast()
    assert forecaster.shape([0.0] * 5) == plain.shape([0.0] * 5)


@pytest.mark.skipif(importlib.util.find_spec("statsforecast") is None, reason="statsforecast is not installed: pip install -e '.[forecast]'")
def test_ets_follows_a_day_and_beats_the_average() -> None:
    forecaster = told([Ets()], counts(8))
    assert forecaster.skill is not None
    assert forecaster.skill > 0.05
    ahead = forecaster.shape([0.0] * DAY_SLOTS)
    assert np.corrcoef(ahead, counts(7)[-DAY_SLOTS:])[0, 1] > 0.6


def test_what_is_no_lstm_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "lstm.onnx"
    file.write_bytes(b"no network")
    for path in (file, tmp_path / "absent"):
        with pytest.raises(ConfigError, match="cannot be loaded"):
            extra_parts(path)
    with pytest.raises(ConfigError):
        main(["--lstm", str(file)])
    with pytest.raises(DataError, match="too short"):
        train([str(write(tmp_path / "short.csv", [1, 2, 3]))], str(file))
