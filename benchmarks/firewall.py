"""How fast is the firewall, and in how much memory? Near pictures among 10,000, 30,000 and 100,000 against 1,000.

    python benchmarks/firewall.py --json build/bench/firewall.json

Every size runs in a process of its own, twice on one signature store: the second run finds all signatures and verdicts
there. Pictures are 64x64, made on the fly by a seed (smooth, textured and plain ones, 1 % of the 1,000 planted as altered
copies) and never held: the time in which they are made, which stands for decoding, is measured apart and left out, with
the digest that decoding gives. `all_pairs_seconds` is the direct comparison of all pairs at 10,000 rows: timed on
`all_pairs_sample` random pairs, evidence ready, on the same two threads, and scaled to the number of pairs.
"""

from __future__ import annotations

import argparse
import io
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from calibration.content import content_digest
from calibration.firewall.catalogue import THREADS, Catalogue, Cataloguer, kinds
from calibration.firewall.fields import PICTURE
from calibration.firewall.overlaps import find
from calibration.sources import Row
from pipeline.files import write_json
from pipeline.progress import bar

SIZES, VALIDATION, SIDE, PLANTED = (10_000, 30_000, 100_000), 1_000, 64, 10
ALL_PAIRS_AT, SAMPLE, TOLERANCE = 10_000, 2_000, 1e-3


def picture(seed: int) -> np.ndarray:
    """One of three kinds of 64x64 RGB picture by seed: smooth, smooth with texture, or shapes on a plain ground."""
    g = np.random.default_rng(seed)
    if seed % 3 == 2:
        canvas = np.full((SIDE, SIDE, 3), g.integers(0, 256, 3), np.uint8)
        for _ in range(6):
            y, x, h, w = g.integers(0, SIDE - 8, 2).tolist() + g.integers(6, 40, 2).tolist()
            canvas[y : y + h, x : x + w] = g.integers(0, 256, 3)
        return canvas
    low = Image.fromarray(g.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    return np.clip(np.asarray(low, np.int16) + g.integers(-8, 9, (SIDE, SIDE, 3)) * (1 + seed % 3), 0, 255).astype(np.uint8)


def altered(pixels: np.ndarray) -> np.ndarray:
    """The picture as JPEG of quality 60."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=60)
    return np.asarray(Image.open(stream))


class Made:
    """Rows that are made when they are read; `seconds` is the time that took."""

    def __init__(self, first: int, count: int, planted: int = 0) -> None:
        self.first, self.count, self.planted, self.seconds = first, count, planted, 0.0

    def rows(self, wanted: Collection[str] | None = None) -> Iterator[Row]:
        for index in range(self.count) if wanted is None else sorted(map(int, wanted)):
            started = time.perf_counter()
            pixels = altered(picture(index)) if index < self.planted else picture(self.first + index)
            raw = {"image": pixels}
            row = Row(f"{index:07d}", raw, None, content_digest(raw))
            self.seconds += time.perf_counter() - started
            yield row


def catalogue(name: str, made: Made, store: Path) -> tuple[Catalogue, int]:
    cataloguer = Cataloguer(name, made.rows, tolerance=TOLERANCE, store=store)
    with bar(f"sign {name}") as report:
        for done, row in enumerate(made.rows(), start=1):
            cataloguer.add(row)
            report(done, made.count, "")
    return cataloguer.finish(), cataloguer.signed


def once(rows: int, store: Path) -> dict[str, Any]:
    """One run: seconds without the making of rows, what was signed and what was found."""
    many, few = Made(0, rows), Made(10_000_000, VALIDATION, PLANTED)
    started = time.perf_counter()
    (left, signed_left), (right, signed_right) = catalogue("many", many, store), catalogue("few", few, store)
    signing = time.perf_counter() - started - many.seconds - few.seconds
    overlaps = find([left, right], tolerance=TOLERANCE, store=store)
    seconds = time.perf_counter() - started - many.seconds - few.seconds
    return {"seconds": seconds, "signing_seconds": signing, "signed": signed_left + signed_right, "found": len(overlaps)}


def measure(rows: int) -> dict[str, Any]:
    """Both runs of one size in this process, and its peak memory after the first."""
    with tempfile.TemporaryDirectory(prefix="qwarm-bench-") as folder:
        first = once(rows, Path(folder))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        second = once(rows, Path(folder))
    if second["signed"]:
        raise SystemExit(f"the second run signed {second['signed']} rows again")
    if second["found"] != first["found"]:
        raise SystemExit(f"found {first['found']} and then {second['found']}, with {PLANTED} copies planted")
    return {
        "rows": rows, "seconds": first["seconds"], "signing_seconds": first["signing_seconds"], "peak_rss_mb": peak,
        "second_run_seconds": second["seconds"], "second_run_speedup": first["seconds"] / second["seconds"], "found": first["found"],
        "planted": PLANTED, "all_pairs_seconds": all_pairs(rows) if rows == ALL_PAIRS_AT else None, "all_pairs_sample": SAMPLE,
    }  # fmt: skip


def all_pairs(rows: int) -> float:
    """Seconds that the direct comparison of all pairs would take, from a random sample of them."""
    kind, g = kinds(TOLERANCE)[PICTURE], np.random.default_rng(0)
    pairs = np.stack([g.integers(0, rows, SAMPLE), g.integers(0, VALIDATION, SAMPLE)], axis=1)
    left = {int(i): kind.evidence(picture(int(i))) for i in set(pairs[:, 0])}
    right = {int(j): kind.evidence(picture(10_000_000 + int(j))) for j in set(pairs[:, 1])}
    started = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda pair: kind.distance(left[int(pair[0])], right[int(pair[1])]), pairs))
    return (time.perf_counter() - started) / SAMPLE * rows * VALIDATION


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="where the figures go")
    parser.add_argument("--rows", type=int, nargs="+", default=SIZES, help="numbers of rows that are compared with 1,000")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one)))
        return
    results = []
    for rows in arguments.rows:
        output = subprocess.run([sys.executable, __file__, "--one", str(rows)], check=True, stdout=subprocess.PIPE, text=True).stdout
        results.append(json.loads(output.splitlines()[-1]))
        shown = {name: round(value, 2) if isinstance(value, float) else value for name, value in results[-1].items()}
        print("  ".join(f"{name} {value}" for name, value in shown.items()))
    if arguments.json:
        write_json(arguments.json, {"validation_rows": VALIDATION, "side": SIDE, "threads": THREADS, "sizes": results})


if __name__ == "__main__":
    main()
