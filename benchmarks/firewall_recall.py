"""How many changed copies of pictures does the firewall find, and how often does it cry wolf? By change and by kind of picture.

    python benchmarks/firewall_recall.py --json build/bench/firewall_recall.json

1,000 rows are planted: copies of generated pictures (smooth colours, shapes, pages of text, textures; each of another size), changed in twelve
ways. As many clean rows are pictures of the same kinds that descend from nothing. All are searched in the originals through the same index
and the same comparison as a pipeline's rows. With photographs beside the repository (`../shared/data/images`, or --photographs) the twelve
changes are also planted on those, and the photographs that were left out are the clean rows.

`found` counts a planted row whose original is among its findings; `wrong` counts a planted or clean row with any other finding.
"""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from calibration.firewall.pictures import Pictures
from pipeline.files import write_json

Picture = np.ndarray
Generator = np.random.Generator
PHOTOGRAPHS = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "images"
PLANTED = 1000
ORIGINALS_A_KIND = 500
PHOTOGRAPHS_CHANGED = 480
SYLLABLES = ("ka", "ro", "mi", "ten", "sul", "va", "dor", "el", "pi", "ra", "ne", "go", "lim", "sta", "bu", "fe")


def smooth(generator: Generator) -> Picture:
    """A coarse grid of random colours, blown up, with a little noise."""
    cells, side = generator.integers(5, 11), int(generator.integers(48, 97))
    coarse = Image.fromarray(generator.integers(0, 256, (cells, cells, 3), dtype=np.uint8)).resize((side, side), Image.Resampling.BICUBIC)
    return np.clip(np.asarray(coarse, np.float64) + generator.normal(0, 4, (side, side, 3)), 0, 255).astype(np.uint8)


def shapes(generator: Generator) -> Picture:
    """Polygons, discs and strokes over a gradient."""
    side = int(generator.integers(64, 161))
    ends = generator.integers(0, 256, (2, 3))
    ground = ends[0] + (ends[1] - ends[0]) * np.linspace(0, 1, side)[:, None, None] * np.ones((1, side, 1))
    image = Image.fromarray(ground.astype(np.uint8))
    pen = ImageDraw.Draw(image)
    for _ in range(generator.integers(8, 20)):
        centre, size = generator.integers(0, side, 2), generator.integers(side // 12, side // 3)
        colour = tuple(int(value) for value in generator.integers(0, 256, 3))
        box = [int(value) for value in (*(centre - size // 2), *(centre + size // 2))]
        match generator.integers(3):
            case 0:
                pen.regular_polygon(
                    (int(centre[0]), int(centre[1]), int(size) // 2), int(generator.integers(3, 8)), int(generator.integers(360)), colour
                )
            case 1:
                pen.ellipse(box, outline=colour, width=int(generator.integers(2, 9)))
            case _:
                pen.line(box, fill=colour, width=int(generator.integers(1, 6)))
    return np.asarray(image).copy()


def page(generator: Generator) -> Picture:
    """Lines of made-up words in a size that can still be read."""
    side = int(generator.integers(96, 193))
    image = Image.new("RGB", (side, side), tuple(int(value) for value in generator.integers(205, 256, 3)))
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(int(generator.integers(11, 19)))
    ink = tuple(int(value) for value in generator.integers(0, 80, 3))
    row = int(generator.integers(0, 8))
    while row < side:
        words = ["".join(generator.choice(SYLLABLES, generator.integers(1, 4))) for _ in range(12)]
        pen.text((int(generator.integers(0, 14)), row), " ".join(words), fill=ink, font=font)
        row += int(font.size * 1.3)
    return np.asarray(image).copy()


def texture(generator: Generator) -> Picture:
    """Noise with a random slope of its spectrum, stretched in a random direction, in two random colours."""
    side = int(generator.integers(64, 161))
    down, across = np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side), indexing="ij")
    angle, stretch = generator.uniform(0, np.pi), generator.uniform(1, 3)
    along, beside = down * np.sin(angle) + across * np.cos(angle), down * np.cos(angle) - across * np.sin(angle)
    frequency = np.hypot(along * stretch, beside) + 1 / side
    field = np.fft.ifft2(np.fft.fft2(generator.normal(size=(side, side))) / frequency ** generator.uniform(0.4, 1.4)).real
    field = (field - field.mean()) / field.std()
    colours = generator.integers(0, 256, (2, 3))
    mix = np.clip(0.5 + 0.28 * field, 0, 1)[..., None]
    return (colours[0] * mix + colours[1] * (1 - mix)).astype(np.uint8)


KINDS: dict[str, Callable[[Generator], Picture]] = {"smooth": smooth, "shapes": shapes, "page": page, "texture": texture}


def _encoded(picture: Picture, format: str, **options: Any) -> Picture:
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, format, **options)
    return np.asarray(Image.open(stream)).copy()


def turned(picture: Picture, generator: Generator) -> Picture:
    return np.asarray(Image.fromarray(picture).rotate(float(generator.choice([-2, 2])), Image.Resampling.BICUBIC))


def watermarked(picture: Picture, generator: Generator) -> Picture:
    """A word across the picture at a random slant, four tenths opaque, light or dark."""
    size = picture.shape[1], picture.shape[0]
    layer = Image.new("L", size, 0)
    font = ImageFont.load_default(max(9, size[0] // 6))
    ImageDraw.Draw(layer).text((size[0] // 8, size[1] * float(generator.uniform(0.2, 0.6))), "PREVIEW", fill=102, font=font)
    layer = layer.rotate(float(generator.uniform(-30, 30)), Image.Resampling.BILINEAR)
    ink = Image.new("RGB", size, str(generator.choice(["white", "black"])))
    return np.asarray(Image.composite(ink, Image.fromarray(picture), layer))


def hue_shifted(picture: Picture, generator: Generator) -> Picture:
    """15 to 90 degrees around the colour circle, either way."""
    hsv = np.asarray(Image.fromarray(picture).convert("HSV")).astype(np.int16)
    hsv[..., 0] = (hsv[..., 0] + generator.choice([-1, 1]) * generator.integers(11, 65)) % 256
    return np.asarray(Image.fromarray(hsv.astype(np.uint8), "HSV").convert("RGB"))


def cropped(picture: Picture, _: Generator) -> Picture:
    height, width = picture.shape[:2]
    box = (round(width * 3 / 64), round(height * 3 / 64), width - round(width * 3 / 64), height - round(height * 3 / 64))
    return np.asarray(Image.fromarray(picture).crop(box).resize((width, height), Image.Resampling.BICUBIC))


def resized(picture: Picture, _: Generator) -> Picture:
    size = round(picture.shape[1] * 0.75), round(picture.shape[0] * 0.75)
    return np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.BICUBIC))


def grey_border(picture: Picture, _: Generator) -> Picture:
    width = max(1, round(picture.shape[0] / 32))
    return np.pad(picture[width:-width, width:-width], ((width, width), (width, width), (0, 0)), constant_values=128)


CHANGES: dict[str, Callable[[Picture, Generator], Picture]] = {
    "rotated 2 degrees": turned,
    "watermark": watermarked,
    "JPEG 30": lambda picture, _: _encoded(picture, "JPEG", quality=30),
    "hue shift": hue_shifted,
    "same bytes": lambda picture, _: picture.copy(),
    "re-encoded": lambda picture, _: _encoded(picture, "PNG", compress_level=1),
    "JPEG 60": lambda picture, _: _encoded(picture, "JPEG", quality=60),
    "brighter": lambda picture, _: np.clip(picture.astype(np.int16) + 6, 0, 255).astype(np.uint8),
    "flipped": lambda picture, _: picture[:, ::-1].copy(),
    "cropped 5 %": cropped,
    "resized": resized,
    "grey border": grey_border,
}


def findings(rows: list[Picture], originals: list[Picture]) -> tuple[list[set[int]], int]:
    """For each row the originals it is near to; and how many pairs were compared."""
    kind = Pictures()
    pairs = kind.candidates(*(np.array([kind.sign(picture) for picture in pictures]) for pictures in (rows, originals)))
    left, right = ([kind.evidence(picture) for picture in pictures] for pictures in (rows, originals))
    found: list[set[int]] = [set() for _ in rows]
    for row, original in pairs.tolist():
        if kind.distance(left[row], right[original]) is not None:
            found[row].add(original)
    return found, len(pairs)


def measure(planted: list[tuple[str, str, int, Picture]], clean: list[tuple[str, Picture]], originals: list[Picture]) -> dict[str, Any]:
    """`planted`: kind of picture, change, index of the original, changed picture. `clean`: kind, picture."""
    found, compared = findings([row[-1] for row in planted] + [row[-1] for row in clean], originals)
    table: dict[str, dict[str, dict[str, int]]] = {}
    for (kind, change, source, _), hits in zip(planted, found, strict=False):
        cell = table.setdefault(change, {}).setdefault(kind, {"planted": 0, "found": 0, "wrong": 0})
        cell["planted"] += 1
        cell["found"] += source in hits
        cell["wrong"] += bool(hits - {source})
    nothing: dict[str, dict[str, int]] = {}
    for (kind, _), hits in zip(clean, found[len(planted) :], strict=True):
        cell = nothing.setdefault(kind, {"rows": 0, "wrong": 0})
        cell["rows"] += 1
        cell["wrong"] += bool(hits)
    return {"planted": table, "clean": nothing, "originals": len(originals), "pairs_compared": compared}


def on_generated(rows: int, seed: int) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    a_kind = max(1, round(ORIGINALS_A_KIND * rows / PLANTED))
    originals = [(name, make(generator)) for name, make in KINDS.items() for _ in range(a_kind)]
    planted = []
    for row in range(rows):
        change = list(CHANGES)[row % len(CHANGES)]
        source = (row // len(CHANGES)) % len(KINDS) * a_kind + int(generator.integers(a_kind))
        planted.append((originals[source][0], change, source, CHANGES[change](originals[source][1], generator)))
    clean = [(name, make(generator)) for name, make in KINDS.items() for _ in range(max(1, rows // len(KINDS)))]
    return measure(planted, clean, [picture for _, picture in originals])


def on_photographs(folder: Path, seed: int) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    photographs = [np.asarray(Image.open(path).convert("RGB")) for path in sorted(folder.rglob("*.jpg"))]
    order = generator.permutation(len(photographs))
    kept, left_out = order[: PHOTOGRAPHS_CHANGED + len(order) // 5], order[PHOTOGRAPHS_CHANGED + len(order) // 5 :]
    originals = [photographs[index] for index in kept]
    planted = []
    for row in range(min(PHOTOGRAPHS_CHANGED, len(originals))):
        change = list(CHANGES)[row % len(CHANGES)]
        planted.append(("photograph", change, row, CHANGES[change](originals[row], generator)))
    return measure(planted, [("photograph", photographs[index]) for index in left_out], originals)


def show(results: list[dict[str, Any]]) -> None:
    """A Markdown table: recall by change and kind of picture, and wrong findings."""
    kinds = [kind for result in results for kind in result["clean"]]
    cells = {(change, kind): cell for result in results for change, row in result["planted"].items() for kind, cell in row.items()}
    clean = {kind: cell for result in results for kind, cell in result["clean"].items()}
    print(f"| change | {' | '.join(kinds)} | wrong |\n|---|{'---|' * (len(kinds) + 1)}")
    for change in CHANGES:
        row = [cells.get((change, kind), {"planted": 0, "found": 0, "wrong": 0}) for kind in kinds]
        shown = " | ".join(f"{cell['found']} of {cell['planted']}" for cell in row)
        print(f"| {change} | {shown} | {sum(cell['wrong'] for cell in row)} of {sum(cell['planted'] for cell in row)} |")
    alarms = " | ".join(f"{clean[kind]['wrong']} of {clean[kind]['rows']}" for kind in kinds)
    print(f"| clean rows, wrong | {alarms} | {sum(cell['wrong'] for cell in clean.values())} of {sum(cell['rows'] for cell in clean.values())} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--rows", type=int, default=PLANTED, help="generated rows to plant (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--photographs", type=Path, default=PHOTOGRAPHS, help="folder of JPEG files (default: beside the repository)")
    arguments = parser.parse_args()
    started = time.monotonic()
    results = [on_generated(arguments.rows, arguments.seed)]
    if arguments.photographs.is_dir():
        results.append(on_photographs(arguments.photographs, arguments.seed))
    else:
        print(f"without photographs: {arguments.photographs} is no folder")
    show(results)
    if arguments.json:
        seconds = round(time.monotonic() - started, 1)
        write_json(arguments.json, {"algorithm": Pictures().version, "seed": arguments.seed, "results": results, "seconds": seconds})
    return 0


if __name__ == "__main__":
    sys.exit(main())
