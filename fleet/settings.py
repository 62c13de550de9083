"""What an operator writes for the controller: one JSON file with models, memory cap and price of a cold start. Strict; most keys have defaults."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fleet.controller import PRICE_S
from fleet.models import ModelSpec, from_bundle
from pipeline.errors import ConfigError, RecordError
from pipeline.files import read_json

MEASURED = frozenset({"weights_mb", "load_s"})
"""What a bundle says itself, unless the file says otherwise."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """`cap_mb`: memory for all models together, null for no cap. `price_s`: seconds of warm memory that a cold start is worth.

    `lstm`: file of `qwarm lstm`, `statsforecast`: ETS; further parts of forecasts, see `fleet.extras`.
    """

    models: tuple[ModelSpec, ...]
    price_s: float = PRICE_S
    cap_mb: float | None = None
    lstm: str = ""
    statsforecast: bool = False

    def forecast_options(self) -> list[str]:
        """Command line of `fleet.forecast_process`."""
        return [*(["--lstm", self.lstm] if self.lstm else []), *(["--statsforecast"] if self.statsforecast else [])]


def read_settings(path: str | Path) -> Settings:
    """`{"price_s": 600, "cap_mb": 2000, "models": [{"name": ..., "weights_mb": ..., "load_s": ...}, {"bundle": DIR, "priority": 2}]}`.

    A model is described by hand (`ModelSpec`), or by its `bundle`, which says what was measured. Raises ConfigError naming the key.
    """
    try:
        data = read_json(path, next="write it, or give another path")
    except RecordError as error:
        raise ConfigError(error.what, where=error.where, expected=error.expected, got=error.got, next=error.next) from error
    _check(data, {field.name for field in dataclasses.fields(Settings)}, str(path))
    models = data.get("models")
    if not isinstance(models, list) or not models:
        raise ConfigError("The fleet has no model", where=f"{path}: models", expected="a list of at least one model", got=repr(models)[:80])
    specs = tuple(_model(model, f"{path}: models[{index}]") for index, model in enumerate(models))
    names = [spec.name for spec in specs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError("A model is there twice", where=f"{path}: models", expected="each name once", got=", ".join(twice))
    price, cap = data.get("price_s", PRICE_S), data.get("cap_mb")
    for key, value in (("price_s", price), ("cap_mb", 1.0 if cap is None else cap)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 < value < 1e12:
            raise ConfigError("A number cannot be", where=f"{path}: {key}", expected="a positive number", got=repr(value)[:80])
    lstm, ets = data.get("lstm", ""), data.get("statsforecast", False)
    for key, value, kind in (("lstm", lstm, str), ("statsforecast", ets, bool)):
        if not isinstance(value, kind):
            raise ConfigError("A value is of another kind", where=f"{path}: {key}", expected=kind.__name__, got=repr(value)[:80])
    if lstm and not Path(lstm).is_file():
        raise ConfigError("There is no such file", where=f"{path}: lstm", expected="a file of `qwarm lstm`", got=lstm)
    return Settings(specs, float(price), None if cap is None else float(cap), lstm, ets)


def _check(data: Any, known: set[str], where: str) -> None:
    if not isinstance(data, Mapping):
        raise ConfigError("This is no JSON object", where=where, expected="an object", got=repr(data)[:80])
    for key in data:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1)
            raise ConfigError(
                "There is no such key", where=f"{where}: {key}", expected=", ".join(sorted(known)), got=str(key), next=f"{near[0]}?" if near else ""
            )


def _model(data: Any, where: str) -> ModelSpec:
    fields = {field.name: field for field in dataclasses.fields(ModelSpec)}
    _check(data, set(fields), where)
    for key, value in data.items():
        kind = str(fields[key].type)
        fits = (
            isinstance(value, str)
            if kind == "str"
            else isinstance(value, bool)
            if kind == "bool"
            else _number(value) or (value is None and "None" in kind)
        )
        if not fits:
            raise ConfigError("A value is of another kind", where=f"{where}: {key}", expected=kind, got=repr(value)[:80])
    if "bundle" in data and not data.keys() >= {"name", *MEASURED}:
        return dataclasses.replace(from_bundle(data["bundle"]), **data)
    if "name" not in data:
        raise ConfigError("A model has no name", where=where, expected="name, or bundle", got=", ".join(data) or "nothing")
    return ModelSpec(**data)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
