"""Parts of a forecast that need more packages than a host has: ETS by `statsforecast`, a small LSTM by ONNX Runtime. They count by skill alone.

They are imported where they are used, which is the forecaster's own process.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fleet.forecast import Part
from fleet.seasons import DAY_SLOTS
from pipeline.errors import ConfigError, TargetError

KEPT_DAYS, FIRST_DAYS = 10, 3
REFIT, FEW = 6, 4
"""Steps between two fits; steps whose mean stands for a fit."""
LEVEL_SHARE, EPSILON = 0.1, 0.5
"""Of the LSTM's own moving average, which its inputs are relative to."""


class Ets:
    """Decomposition into seasons of a day and a trend by ETS (MSTL with AutoETS; Hyndman and Khandakar, J. Statistical Software 27, 2008).

    Fitted to the last ten days every six steps, once three days are known. `season`: steps a day.
    """

    def __init__(self, season: int = DAY_SLOTS) -> None:
        try:
            from statsforecast.models import MSTL, AutoETS  # the extra `forecast`
        except ImportError as error:
            raise TargetError(
                "A long-term part needs statsforecast", expected="the package", got=str(error), next="pip install statsforecast"
            ) from error
        self.season = season
        self._model: Callable[[], Any] = lambda: MSTL(season_length=[season], trend_forecaster=AutoETS(model="ZZN"))
        self._past: deque[float] = deque(maxlen=KEPT_DAYS * season)
        self._told: list[float] = []
        self._age = 0

    def learn(self, count: float, usual: float) -> None:  # noqa: ARG002
        """A step ended with `count`."""
        self._past.append(count)
        self._age += 1
        if len(self._past) >= FIRST_DAYS * self.season and self._age >= REFIT:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                told = self._model().forecast(y=np.array(self._past), h=self.season + REFIT)["mean"]
            self._told, self._age = np.maximum(told, 0.0).tolist(), 0

    def ahead(self, usuals: list[float]) -> list[float]:
        """By the last fit; beyond its day, and before there is one, the mean of the last few steps."""
        told = self._told[self._age : self._age + len(usuals)]
        last = list(self._past)[-FEW:]
        return [*told, *[sum(last) / max(1, len(last))] * (len(usuals) - len(told))]


class Lstm:
    """One LSTM for all models, trained by `qwarm lstm`; each model has its own state.

    Inputs `x` (1, 3): logarithms of the count and of the profile over a moving average, and of that average; `next` (1, 1): the profile's next
    over it; `h`, `c` (1, hidden). Outputs `y` (1, 1): the next count's; `h1`, `c1`.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        hidden = next(item.shape[1] for item in session.get_inputs() if item.name == "h")
        self._zeros = np.zeros((1, hidden), np.float32)
        self._before = self._state = (self._zeros, self._zeros)
        self._x = np.zeros((1, 3), np.float32)
        self.level, self.steps = 0.0, 0

    def learn(self, count: float, usual: float) -> None:
        """A step ended with `count`."""
        self.steps += 1
        self.level += max(1.0 / self.steps, LEVEL_SHARE) * (count - self.level)
        self._before, self._x = self._state, inputs(count, usual, self.level)
        self._state = self._run(self._x, 0.0, self._before)[1]

    def _run(self, x: np.ndarray, following: float, state: tuple[np.ndarray, np.ndarray]) -> tuple[float, tuple[np.ndarray, np.ndarray]]:
        feeds = {"x": x, "next": np.array([[following]], np.float32), "h": state[0], "c": state[1]}
        y, h, c = self._session.run(["y", "h1", "c1"], feeds)
        return float(y[0, 0]), (h, c)

    def ahead(self, usuals: list[float]) -> list[float]:
        """Step by step, each fed with the one before."""
        x, state, level = self._x, self._before, self.level
        told = []
        for usual in usuals:
            y, state = self._run(x, relative(usual, level), state)
            count = max(0.0, (level + EPSILON) * math.exp(min(y, 5.0)) - EPSILON)
            told.append(count)
            level += LEVEL_SHARE * (count - level)
            x = inputs(count, usual, level)
        return told


def relative(value: float, level: float) -> float:
    """Logarithm of a count over the moving average."""
    return math.log((value + EPSILON) / (level + EPSILON))


def inputs(count: float, usual: float, level: float) -> np.ndarray:
    """`x` of the LSTM, (1, 3)."""
    return np.array([[relative(count, level), relative(usual, level), math.log(level + EPSILON)]], np.float32)


def open_lstm(path: Path) -> Any:
    """An ONNX Runtime session. Raises ConfigError for a file that is no such LSTM, TargetError where the runtime is not there."""
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise TargetError(
            "An LSTM needs ONNX Runtime", where=str(path), expected="onnxruntime", got=str(error), next="pip install onnxruntime"
        ) from error
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    try:
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        found = {item.name for item in session.get_inputs()} | {item.name for item in session.get_outputs()}
    except Exception as error:  # the runtime's own exceptions have no common base
        raise ConfigError("The LSTM cannot be loaded", where=str(path), expected="a file of `qwarm lstm`", got=str(error)[:200]) from error
    if found != {"x", "next", "h", "c", "y", "h1", "c1"}:
        raise ConfigError("This is another network", where=str(path), expected="a file of `qwarm lstm`", got=", ".join(sorted(found))[:200])
    return session


def extra_parts(lstm: Path | None = None, ets: bool = False) -> Callable[[], Sequence[Part]]:
    """What makes the further parts of one model; raises as they do, before any forecast is made."""
    session = open_lstm(lstm) if lstm is not None else None
    if ets:
        Ets()
    return lambda: [*([Lstm(session)] if session is not None else []), *([Ets()] if ets else [])]
