"""The findings page: one HTML file that opens offline, with the two rows of each finding side by side."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from calibration.firewall.catalogue import Catalogue
from calibration.firewall.fields import fields_of, kind_of, PICTURE
from pipeline.files import write_text
from pipeline.records import Finding

SHOWN = 200
"""Findings that are drawn; more are counted."""
SIDE = 192
"""Pixels of a shown picture's longer side."""
TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1d2430; background: #fff }
h1 { font-size: 1.5rem } table { border-collapse: collapse; width: 100% } th { text-align: left; font-weight: 600 }
td, th { padding: .5rem .6rem; border-bottom: 1px solid #d8dde6; vertical-align: top } img { image-rendering: pixelated; border: 1px solid #d8dde6; display: block; margin-top: .3rem }
pre { white-space: pre-wrap; margin: .3rem 0 0; max-height: 12rem; overflow: auto; font-size: 13px } .refused { color: #a3201d; font-weight: 600 } code { font-size: 13px }
</style></head><body>
<h1>{{ title }}</h1>
<p>{{ summary }}</p>
{% if findings %}<table><thead><tr><th>what</th><th>left</th><th>right</th></tr></thead><tbody>
{% for finding in findings %}<tr><td><strong>{{ finding.kind }}</strong>{% if finding.distance is not none %}<br>distance {{ finding.distance }}{% endif %}
<br><span class="{{ finding.action }}">{{ finding.action }}</span></td>
{% for side in finding.sides %}<td>{{ side.where }}<br><code>{{ side.row }}</code>
{% for picture in side.pictures %}<img src="data:image/png;base64,{{ picture }}" alt="{{ side.row }}">{% endfor %}
{% for text in side.texts %}<pre>{{ text }}</pre>{% endfor %}</td>{% endfor %}</tr>
{% endfor %}</tbody></table>{% endif %}
{% if hidden %}<p>{{ hidden }} more findings are not drawn.</p>{% endif %}
</body></html>
"""


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
    content = {(name, row.id): row.raw for name, rows in wanted.items() for row in catalogues[name].fetch(rows)}
    entries = [
        {
            "kind": finding.kind,
            "distance": f"{finding.distance:.3g}" if finding.kind == "near" else None,
            "action": finding.action,
            "sides": [
                {"where": name, "row": row, **_side(content[name, row], catalogues[name].columns)}
                for name, row in zip(finding.roles, (finding.left, finding.right), strict=True)
            ],
        }
        for finding in shown
    ]
    page = jinja2.Environment(autoescape=True).from_string(TEMPLATE)
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
