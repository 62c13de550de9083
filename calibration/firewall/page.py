"""The findings page: one HTML file that opens offline, with the two rows of each finding side by side."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from calibration.firewall.catalogue import Catalogue
from calibration.firewall.fields import PICTURE, fields_of, kind_of
from pipeline.files import write_text
from pipeline.records import Finding

SHOWN = 200
"""Findings that are drawn; more are counted."""
SIDE = 192
"""Pixels of a shown picture's longer side."""
TEMPLATE = Path(__file__).with_name("findings.html.jinja")


def write(path: Path, title: str, summary: str, findings: Sequence[Finding], catalogues: Mapping[str, Catalogue]) -> None:
    """Write the page for findings between `catalogues` (by the names in `Finding.roles`); their rows are read again.

    Raises DataError for a row that is gone.
    """
    import jinja2

    shown = findings[:SHOWN]
    wanted: dict[str, set[str]] = {}
    for finding in shown:
        for name, row in zip(finding.roles, (finding.left, finding.right), strict=True):
            wanted.setdefault(name, set()).add(row)
    sides = {  # drawn as they are read: two hundred photographs at full size would not fit in memory
        (name, row.id): _side(row.raw, catalogues[name].columns) for name, rows in wanted.items() for row in catalogues[name].fetch(rows)
    }
    entries = [
        {
            "kind": finding.kind,
            "distance": f"{finding.distance:.3g}" if finding.kind == "near" else None,
            "action": finding.action,
            "sides": [
                {"where": name, "row": row, **sides[name, row]} for name, row in zip(finding.roles, (finding.left, finding.right), strict=True)
            ],
        }
        for finding in shown
    ]
    page = jinja2.Environment(autoescape=True).from_string(TEMPLATE.read_text(encoding="utf-8"))
    write_text(path, page.render(title=title, summary=summary, findings=entries, hidden=len(findings) - len(shown)))


def _side(raw: Mapping[str, np.ndarray], columns: Sequence[str]) -> dict[str, list[str]]:
    fields = [field.content for field in fields_of(raw, columns)]
    pictures = [field for field in fields if kind_of(field) == PICTURE]
    return {
        "pictures": [base64.b64encode(png(picture)).decode() for picture in pictures],
        "texts": [np.array2string(field, threshold=64) if field.ndim else str(field) for field in fields if kind_of(field) != PICTURE],
    }


def png(picture: np.ndarray) -> bytes:
    """A uint8 (H, W) or (H, W, 3) picture as PNG bytes, its longer side `SIDE` pixels: small ones are enlarged in whole pixels."""
    from PIL import Image

    image = Image.fromarray(picture)
    scale = SIDE / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    stream = io.BytesIO()
    image.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS).save(stream, format="PNG")
    return stream.getvalue()
