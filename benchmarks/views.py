"""How often INT8 names the class that FP32 names, on eight views of each picture: 564 pictures alone cannot tell 0.990 from 0.985.

    python benchmarks/views.py WORK --json FILE --rows qwarm-ptq,qwarm-search

reads the models that `quantization.py --work WORK` left there. Agreement needs no label, so mirrored, shifted, darker and brighter pictures count as
others do; the standard error is over pictures, whose views are not independent. Prints and writes `{row: {runtime: {view: share, "all", "se"}}}`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import folder_last  # noqa: F401
import numpy as np
from quantization import OPENED
from ranges import SHAPE

from pipeline.progress import track

SHIFT = 12
"""Pixels; what comes in at the border is reflected."""
STEP = 1 / 128
"""Of a picture's values, as 8 bits give them."""


def views(picture: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Name and pixels, float32 (3, H, W), of each view of a `picture`."""
    wide = np.pad(picture, ((0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT)), mode="reflect")
    _, height, width = picture.shape
    yield "as it is", picture
    yield "mirrored", picture[..., ::-1]
    for name, down, right in (("up", 2, 1), ("down", 0, 1), ("left", 1, 2), ("right", 1, 0)):
        yield name, wide[:, down * SHIFT : down * SHIFT + height, right * SHIFT : right * SHIFT + width]
    yield "brighter", picture * 1.1 + 0.05
    yield "darker", picture * 0.9 - 0.05


def agreement(runtime: str, work: Path, rows: list[str]) -> dict[str, dict[str, float]]:
    """By row, the share of pictures on which it agrees with `float`, by view and over all, and its standard error."""
    models = {name: OPENED[runtime](work / name) for name in ("float", *rows)}
    found: dict[str, dict[str, list[bool]]] = {name: {} for name in rows}
    pictures = np.memmap(work / "eval.f32", np.float32, "r").reshape(-1, *SHAPE)
    for picture in track(pictures, runtime, len(pictures)):
        for view, pixels in views(np.asarray(picture)):
            batch = np.ascontiguousarray(np.clip(np.round(pixels / STEP) * STEP, STEP - 1, 1), np.float32)[np.newaxis]
            named = {name: int(model(batch)[0].argmax()) for name, model in models.items()}
            for name in rows:
                found[name].setdefault(view, []).append(named[name] == named["float"])
    result = {}
    for name, shares in found.items():
        each = np.array(list(shares.values())).mean(axis=0)
        result[name] = {view: float(np.mean(right)) for view, right in shares.items()}
        result[name] |= {"all": float(each.mean()), "se": float(each.std(ddof=1) / np.sqrt(len(each)))}
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="the folder of `quantization.py --work`")
    parser.add_argument("--json", type=Path, required=True, help="file to write")
    parser.add_argument("--rows", default="qwarm-ptq,qwarm-search", help="names, separated by commas (default: %(default)s)")
    arguments = parser.parse_args()
    rows = arguments.rows.split(",")
    found = {runtime: agreement(runtime, arguments.work, rows) for runtime in OPENED}
    result = {name: {runtime: found[runtime][name] for runtime in OPENED} for name in rows}
    for name, runtimes in result.items():
        print(name, ", ".join(f"{runtime} {one['all']:.4f} (standard error {one['se']:.4f})" for runtime, one in runtimes.items()))
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
