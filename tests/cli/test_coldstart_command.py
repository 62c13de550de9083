"""`qwarm coldstart` on an ONNX file and on what is none."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.coldstart import describe
from cli.main import main
from pipeline.loading import load_object

ROOT = Path(__file__).resolve().parents[2]


def test_an_onnx_file_is_measured_in_fresh_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    conv_net: Any = load_object("tests/engines/tiny_onnx.py:conv_net", ROOT)
    model = conv_net(tmp_path / "model.onnx", scheme="cpu")
    out = str(tmp_path / "plan.json")
    arguments = ["coldstart", str(model), "--target", "onnxruntime-cpu", "--runs", "2", "--batch", "1", "--out", out]
    arguments += ["--layers", "--cold-pages", "--json"]
    monkeypatch.setattr(sys, "argv", ["qwarm", *arguments])
    with pytest.raises(SystemExit):
        main()
    result = json.loads(capsys.readouterr().out)
    assert result["target"] == "onnxruntime-cpu"
    assert [trial["variant"] for trial in result["trials"]] == ["cold", "warm", "warm", "cold"]
    assert result["cold"]["warm_up_needed"] == "UNDECIDED", "two processes give no bound"
    assert result["verdict"] == "UNDECIDED"
    assert (tmp_path / "plan.json").is_file()
    assert all(trial["curve"] for trial in result["trials"])
    assert result["cold"]["peak_rss_mb"] > 20
    assert any("QLinearConv" in layer["layer"] for layer in result["excess"]["layers"])
    said = describe(result)
    assert "by the runtime's profiler" in said
    assert "request 1:" in said
    assert "at least 5 processes" in said
    assert "unseen sizes" in said


def test_what_is_neither_engine_nor_model_nor_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["qwarm", "coldstart", str(tmp_path)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert "neither" in capsys.readouterr().err
