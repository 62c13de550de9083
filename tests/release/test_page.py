"""The report's page: every figure is the evidence's, nothing comes from elsewhere, and a real browser shows it whole."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from pipeline.config import GatesConfig
from pipeline.loading import load_object
from pipeline.records import (
    AxisRange,
    DriftReport,
    Evidence,
    ExportedModel,
    FloatNode,
    Parity,
    QuantizedModel,
    Role,
    Roles,
    RowSource,
    SliceDrift,
    TensorSpec,
    Validation,
    Verdict,
    WorstRow,
)  # fmt: skip
from release import compatibility, gates, page, thumbnail
from release.changes import Change
from release.texts import figure_text, interval_text, limit_text

ROOT = Path(__file__).resolve().parents[2]
TINY = "tests/release/measured.py"
drift: Callable[..., DriftReport] = load_object(f"{TINY}:drift", ROOT)
validation: Callable[..., Validation] = load_object(f"{TINY}:validation", ROOT)
LIMITS: GatesConfig = load_object(f"{TINY}:LIMITS", ROOT).model_copy(update={"max_slice_drop": 0.1, "max_ready_ms": 500.0})
NOW = datetime.datetime(2026, 12, 4, 1, tzinfo=datetime.UTC)
PICTURE = np.arange(64, dtype=np.uint8).reshape(8, 8)
VOID = {"meta", "img", "br", "link", "hr", "path", "rect", "line", "circle"}


def evidences() -> list[Evidence]:
    report = dataclasses.replace(
        drift(),
        slices=(SliceDrift("class", "cat <b>", 900, 0.98, 0.97, 9, 0, 0.99), SliceDrift("class", "dog", 1100, 0.97, 0.98, 0, 2, 0.99)),
        worst=(WorstRow(3, 0.41, "cat <b>", "cat <b>", "dog"), WorstRow(9, 0.2, "dog", "dog", "dog")),
    )
    measured = validation(rows=report)
    judged = gates.judge_target(
        measured, LIMITS, required=True, undecided="leave-out", machine={"cpu": "Ampersand & Sons"}, measured_at="2026-12-01T00:00:00+00:00"
    )
    absent = gates.not_measured("tensorrt", "no NVIDIA GPU", required=False, machine={"cpu": "x"}, measured_at="2026-12-04T00:00:00+00:00")
    return [judged, absent]


def rendered(**changes: Any) -> str:
    role = Role("main", ("0", "1"), ("a" * 64, "b" * 64), "c" * 64, {"cat": 1, "dog": 1}, "d" * 64, ())
    exported = ExportedModel(
        "a" * 64, "b" * 64, "model.py:build", "torch.onnx", 20, (TensorSpec("image", "float32", ("batch", 1, 8, 8)),),
        (TensorSpec("logits", "float32", ("batch", 2)),), {"batch": AxisRange(1, 2, 4)},
        (Parity("torch -> onnx", {"batch": 1}, "logits", 1e-6, 1e-6, 120.0),), 12_300_000, {"Conv": 1},
    )  # fmt: skip
    floats = (FloatNode("head", "MatMul", "named in quantize.float_layers"),)
    quantized = QuantizedModel("cpu", "a" * 64, "b" * 64, "c" * 64, "onnxruntime", 5, 8, ("conv",), floats, 64, 31.5, 1.0, {})
    roles = Roles({"main": RowSource("rows", "e" * 64, 9)}, "f" * 64, 0, ("cat", "dog"), (), {}, (), {"validation": role})
    facts: dict[str, Any] = {
        "name": "digits", "version": "0.2.0", "evidences": evidences(), "exported": exported, "quantized": [quantized],
        "searches": {"cpu": {"conv": 1.9}}, "roles": roles, "cost": None,
        "inputs": {3: thumbnail.shown({"image": PICTURE, "age": np.float32(3.5)}), 9: thumbnail.shown({"image": PICTURE})},
        "since": ("digits 0.1.0", [Change("parameter", "gates.max_drop", "0.02", "0.01", "changed")]),
        "made_from": {"git revision": "abc"}, "now": NOW,
    }  # fmt: skip
    return page.render(**{**facts, **changes})


class Reader(HTMLParser):
    """Text, links and whether every element is closed where it was opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.faults, self.links, self.words = list[str](), list[str](), list[str](), list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [str(value) for key, value in attrs if key in ("src", "href", "xlink:href", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())


def test_every_figure_is_that_of_the_evidence_and_nothing_comes_from_elsewhere() -> None:
    text = rendered()
    read = Reader(text)
    assert (read.faults, read.open) == ([], [])
    assert [link for link in read.links if not link.startswith(("#", "data:image/png;base64,", "../firewall/"))] == []
    assert "<script" not in text
    assert "url(" not in text
    words = set(read.words)
    judged, absent = evidences()
    for check in (*judged.checks, *absent.checks):
        for shown in (check.name, check.verdict.name, figure_text(check), interval_text(check), limit_text(check), check.evidence, check.decide):
            assert shown in words or not shown, shown
    assert {"worst_slice", "ready", "2026-12-01 00:00, 3 days old"} <= words
    assert text.index('class="banner partly"') < text.index("<table")
    assert "digits 0.2.0 may ship" in text
    assert {"batch 3", "1.2 ms", "90 ms"} <= words  # what padding costs
    assert {"97.50%, 97.50%", "2.00x", "1.10x p50"} <= words  # the top table
    assert text.count("<svg") == 5  # drift, latency, cold start, coverage; sensitivity
    assert text.count("data:image/png;base64,") == 2
    assert "cat <b>" not in text  # escaped wherever it stands


def test_what_is_missing_says_why() -> None:
    text = rendered(searches={}, inputs="The source is elsewhere (rows.parquet)", since=None)
    for why in ("No sensitivity: no search ran", "The rows themselves are not shown: The source is elsewhere", "No earlier bundle", "no NVIDIA GPU"):
        assert why in text
    assert "data:image" not in text


def test_a_refusal_and_a_waiver_are_on_top_in_red() -> None:
    judged, absent = evidences()
    waived = dataclasses.replace(judged.checks[0], verdict=Verdict.FAIL, waived="by Ada on 2026-12-01 until 2026-12-31: a known fault of the data")
    text = rendered(evidences=[dataclasses.replace(judged, checks=(waived, *judged.checks[1:]))])
    assert 'class="waived"' in text
    assert "by Ada" in text
    refused = rendered(evidences=[dataclasses.replace(judged, ships=False, refuses=True, verdict=Verdict.FAIL), absent])
    assert 'class="banner refused"' in refused


def test_what_an_unsteady_machine_left_open_is_on_top() -> None:
    judged, absent = evidences()
    first = dataclasses.replace(judged.checks[0], verdict=Verdict.UNDECIDED, excused=True)
    text = rendered(evidences=[dataclasses.replace(judged, checks=(first, *judged.checks[1:])), absent])
    assert f"not decided on a busy machine: 1 check of {judged.target}." in text


def test_compatibility_is_taken_from_evidence_and_platform() -> None:
    keys = {"openvino-cpu": {"openvino": "2026.4.1", "os": "Linux", "isa": "amx"}}
    judged, absent = evidences()
    judged = dataclasses.replace(judged, machine={"cpu_model": "Xeon", "cores": "2", "isa": "amx"})
    found = compatibility.rows([judged, absent], keys)
    assert found[0] == ("openvino-cpu", "Xeon, 2 cores, amx", "-", "openvino 2026.4.1", "PASS", "1.1 ms", "1 ms", "2026-12-01")
    assert found[1][4:] == ("NOT_MEASURED", "-", "-", "2026-12-04")
    assert "openvino 2026.4.1" in rendered(key_fields=keys)


@pytest.mark.parametrize(("hours", "text"), [(0.5, "less than an hour old"), (1, "1 hour old"), (47, "47 hours old"), (50, "2 days old")])
def test_age(hours: float, text: str) -> None:
    assert page.age(datetime.timedelta(hours=hours)) == text


def test_thumbnails() -> None:
    from PIL import Image

    shown = thumbnail.shown({"image": PICTURE, "wide": np.zeros((4, 400, 3), np.uint8), "tokens": np.arange(1000), "name": np.array("Ada")})
    assert len(shown["pictures"]) == 2
    assert [text.split(":")[0] for text in shown["texts"]] == ["tokens", "name"]
    assert max(map(len, shown["texts"])) <= thumbnail.TEXT
    import base64
    import io

    assert [Image.open(io.BytesIO(base64.b64decode(picture))).size for picture in shown["pictures"]] == [(96, 96), (96, 1)]


def browser() -> ModuleType:
    import importlib.util

    spec = importlib.util.spec_from_file_location("_browser", ROOT / "tests/release/browser.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("width", [1100, 420])
def test_a_real_browser_shows_it_whole_and_asks_for_nothing(tmp_path: Path, width: int) -> None:
    from PIL import Image

    chromium = browser()
    if (path := chromium.found()) is None:
        pytest.skip("no Chromium here: set QWARM_BROWSER")
    file = tmp_path / "report.html"
    file.write_text(rendered())
    with chromium.opened(path, file.as_uri(), tmp_path / "profile", width=width) as tab:
        assert tab.evaluate("document.title") == "digits 0.2.0"
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        top, bottom = (tab.evaluate(f"document.querySelector('.banner').getBoundingClientRect().{side}") for side in ("top", "bottom"))
        assert 0 <= top < bottom < 250
        assert tab.evaluate("document.querySelector('#summary').getBoundingClientRect().bottom") < 900  # the answer without scrolling
        assert tab.evaluate("[...document.querySelectorAll('svg')].every(svg => svg.getBoundingClientRect().height > 40)")
        assert tab.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
        tab.screenshot(tmp_path / "report.png")
        asked = [event["params"]["request"]["url"] for event in tab.events if event.get("method") == "Network.requestWillBeSent"]
        said = [event for event in tab.events if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")]
    assert [url for url in asked if not url.startswith("data:")] == [file.as_uri()]
    assert said == []
    picture = np.asarray(Image.open(tmp_path / "report.png").convert("RGB"))
    assert picture.shape[1] == width
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 50  # drawn, not blank
