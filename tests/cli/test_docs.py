"""What README and docs tell a reader to type exists: commands, and keys of params.yaml."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from cli.app import app
from fleet.main import build_parser
from pipeline.config import Config

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/fleet").glob("*.md")])
SECTIONS = ("gates", "warmup", "quantize", "release", "data")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_exists(page: Path) -> None:
    known = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    host = {action.dest: set(action.choices or ()) for action in build_parser()._actions}["command"]
    text = page.read_text(encoding="utf-8")
    told = set(re.findall(r"(?:^    |`)qwarm ([a-z]+)", text, re.M))
    assert told <= known, told - known
    on_hosts = set(re.findall(r"qwarm\.pyz ([a-z]+)", text)) - {"on", "and", "is", "that", "may", "carries"}
    assert on_hosts <= host, on_hosts - host


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_key_of_params_exists(page: Path) -> None:
    for section, key in re.findall(rf"`({'|'.join(SECTIONS)})\.(?!py\b)([a-z_]+)[`: .]", page.read_text(encoding="utf-8")):
        fields = Config.model_fields[section].annotation
        assert key in fields.model_fields, f"{page.name}: {section}.{key}"  # type: ignore[union-attr]
