"""A leak that is planted between calibration and validation ends `dvc repro` without a release, and the message names the rows."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from cli.init import init
from pipeline.loading import load_object

COPY, NEAR = 3, 5
"""Rows of the validation file that are rows 0 and 1 of the calibration file: in other bytes, and a little brighter."""


def stored(picture: Image.Image, **options: Any) -> dict[str, Any]:
    stream = io.BytesIO()
    picture.save(stream, **options)
    return {"bytes": stream.getvalue(), "path": None}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The starter for pictures, with calibration and validation from files of their own that share two rows."""
    from datasets import Dataset, Features, Value
    from datasets import Image as ImageFeature

    folder = tmp_path_factory.mktemp("leak") / "project"
    init(str(folder), "classification")
    code = (folder / "data.py").read_text().replace("ROWS, SIDE = 1300, 32", "ROWS, SIDE = 330, 32")
    (folder / "data.py").write_text(code)
    rows = list(load_object("data.py:made_up_pictures", folder)())
    ours, theirs = rows[:60], [list(row) for row in rows[60:120]]
    cells = {name: [({"bytes": content, "path": None}, label) for content, label in part] for name, part in (("c", ours), ("v", theirs))}
    copies = [Image.open(io.BytesIO(content)) for content, _ in ours[:2]]
    cells["v"][COPY] = (stored(copies[0], format="BMP"), ours[0][1])
    cells["v"][NEAR] = (stored(copies[1].point(lambda level: min(level + 6, 255)), format="PNG"), ours[1][1])
    features = Features({"image": ImageFeature(), "label": Value("string")})
    for name, part in cells.items():
        dataset = Dataset.from_dict({"image": [cell for cell, _ in part], "label": [label for _, label in part]}, features=features)
        dataset.to_parquet(str(folder / f"{name}.parquet"))
    (folder / "data.py").write_text(code.replace("Random(0)", "Random(9)"))  # the main source holds other pictures
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params["data"]["roles"] = {
        "train": 200, "search": 64, "warmup": 16,
        "calibration": {"kind": "parquet", "path": "c.parquet"}, "validation": {"kind": "parquet", "path": "v.parquet"},
    }  # fmt: skip
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    return folder


def test_dvc_repro_ends_without_a_release_and_names_the_rows(project: Path) -> None:
    environment = {**os.environ, "QWARM_CACHE": str(project / "cache"), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run([sys.executable, "-m", "dvc", "repro"], cwd=project, env=environment, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert f"validation row {COPY:07d} equals calibration row 0000000" in said
    assert f"validation row {NEAR:07d} is near calibration row 0000001" in said
    assert "build/firewall/findings.html" in said
    assert not (project / "build" / "release").exists()
    assert not (project / "build" / "roles").exists()
    page = (project / "build" / "firewall" / "findings.html").read_text()
    assert "refused</p>" in page
    assert "no overlap" not in page
    assert page.count("data:image/png;base64,") == 4
    assert f"{COPY:07d}" in page
