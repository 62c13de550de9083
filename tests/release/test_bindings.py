"""Evidence that is of something else is refused, each digest by what it stands for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from pipeline.errors import Refused
from pipeline.loading import load_object
from pipeline.records import Evidence
from release.bindings import JUDGING, MEANINGS, MEASURING, belong

ROOT = Path(__file__).resolve().parents[2]
evidences: Callable[[], list[Evidence]] = load_object("tests/release/test_page.py:evidences", ROOT)
WANTED = {name: f"{place:064x}" for place, name in enumerate(MEANINGS)}


def bound(**changes: str) -> Evidence:
    return dataclasses.replace(evidences()[0], bound_to={**WANTED, **changes})


@pytest.mark.parametrize("name", MEANINGS)
def test_each_digest_is_named_by_what_it_stands_for(name: str) -> None:
    belong([bound()], {"openvino-cpu": WANTED})
    with pytest.raises(Refused, match=rf"(?s)Evidence is of something else: {MEANINGS[name]}.*bound_to.{name}.*ffffffffffffffff.*gate@openvino-cpu"):
        belong([bound(**{name: "f" * 64})], {"openvino-cpu": WANTED})


def test_several_are_named_at_once_and_an_absent_one_is_nothing() -> None:
    evidence = dataclasses.replace(bound(), bound_to={key: value for key, value in WANTED.items() if key not in ("model_sha256", "code_sha256")})
    with pytest.raises(Refused, match=r"(?s)the exported model, the code that measures.*got: +nothing, nothing"):
        belong([evidence], {"openvino-cpu": WANTED})


def test_what_does_not_ship_need_not_belong() -> None:
    belong([dataclasses.replace(bound(model_sha256="0" * 64), ships=False)], {"openvino-cpu": WANTED})


@pytest.mark.parametrize(("stage", "bound"), [("validate", MEASURING), ("gate", JUDGING)])
def test_evidence_is_bound_to_all_code_that_dvc_yaml_lists_for_it(stage: str, bound: tuple[str, ...]) -> None:
    deps = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"][stage]["do"]["deps"]
    assert sorted(bound) == sorted(dep for dep in deps if not dep.startswith(("build/", "examples/")))
    assert all((ROOT / part).exists() for part in bound)
