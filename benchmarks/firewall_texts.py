"""How many changed copies of texts, token sequences and arrays does the firewall find, and how often does it take two originals for one?

    python benchmarks/firewall_texts.py --json build/bench/firewall_texts.json

Every row is made by a generator with seeds that no threshold was set on (`--seed`). For each kind of change, copies of `--rows` originals are hidden
among five times as many unrelated rows of the same family; recall is the share of copies that are found with their original by index and decision
together, and a false alarm an unrelated row that is found. Below a line follow pairs that look alike and are two originals. `real prose` are the
paragraphs of Python's own documentation, which repeats itself: its findings are printed, to be looked at. Then seconds: signing, the index for
1,000 rows against more and more, and the store.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from firewall_rows import (
    ARRAY_CHANGES,
    EDITS,
    FAMILIES,
    ID_CHANGES,
    WRITING,
    Prose,
    Row,
    another_phrase,
    as_ids,
    ids_changed,
    noise,
    replaced,
    sensor,
    smooth,
    table,
    with_slot,
)

from calibration.firewall.kind import Kind
from calibration.firewall.numeric import Numbers
from calibration.firewall.store import SignatureStore, VerdictStore
from calibration.firewall.texts import Texts, Tokens
from pipeline.digests import sha256_bytes


def search(kind: Kind, left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Candidates and findings as sets of (left, right)."""
    signed = [np.stack([kind.sign(row) for row in rows]) for rows in (left, right)]
    candidates = {(int(i), int(j)) for i, j in kind.candidates(*signed)}
    evidence = [{place: kind.evidence(rows[place]) for place in {pair[side] for pair in candidates}} for side, rows in enumerate((left, right))]
    return candidates, {(i, j) for i, j in candidates if kind.distance(evidence[0][i], evidence[1][j]) is not None}


def measure(
    kind: Kind, what: str, change: str, left: Sequence[np.ndarray], copies: Sequence[np.ndarray], others: Sequence[np.ndarray]
) -> dict[str, Any]:
    """One line of the table: copies of `left` in order, then `others`."""
    candidates, found = search(kind, left, [*copies, *others])
    count = len(copies)
    line = {
        "kind": kind.name,
        "rows": what,
        "change": change,
        "copies": count,
        "recall": sum((i, i) in found for i in range(count)) / count if count else None,
        "recall_of_index": sum((i, i) in candidates for i in range(count)) / count if count else None,
        "unrelated": len(others),
        "false_alarms": len({j for i, j in found if j >= count}) / len(others) if others else None,
    }
    shown = " ".join("     -" if line[key] is None else f"{line[key]:6.1%}" for key in ("recall_of_index", "recall", "false_alarms"))
    print(f"{line['kind']:8} {what:32} {change:46} {shown}", flush=True)
    return line


def arrays(rows: Sequence[Row]) -> list[np.ndarray]:
    return [np.array(row) for row in rows]


def text_lines(seed: int, rows: int) -> list[dict[str, Any]]:
    lines = []
    families: dict[str, Callable[[Prose], str]] = {
        "texts of 20-60 words": lambda prose: prose.text(20, 60),
        "texts of 3-8 words": lambda prose: prose.text(3, 8),
        "Chinese, 40-120 characters": lambda prose: prose.chinese(40, 120),
    }
    for index, (what, make) in enumerate(families.items()):
        prose = Prose(np.random.default_rng([seed, index]))
        left = list(dict.fromkeys(make(prose) for _ in range(rows)))
        others = arrays([make(prose) for _ in range(5 * rows)])
        changes = {**WRITING, **(EDITS if index == 0 else {})}
        if index == 2:
            changes = {
                "punctuation, white space": lambda _, text: " ".join(text.replace(",", "")),
                "5 % of characters replaced": lambda rng, text: "".join(
                    chr(0x4E00 + int(rng.integers(20000))) if rng.random() < 0.05 else c for c in text
                ),
            }
        for name, change in changes.items():
            lines.append(measure(Texts(), what, name, arrays(left), arrays([change(prose.rng, text) for text in left]), others))
    return lines


def lookalike_lines(seed: int, rows: int) -> list[dict[str, Any]]:
    """Pairs that are two originals: what is found of them is a false alarm."""
    prose = Prose(np.random.default_rng([seed, 9]))
    rng, lines = prose.rng, []

    def line(kind: Kind, what: str, left: Sequence[Row], right: Sequence[Row]) -> None:
        found = search(kind, arrays(left), arrays(right))[1]
        rate = sum((i, i) in found for i in range(len(left))) / len(left)
        print(f"{kind.name:8} {what:79} {'':13} {rate:6.1%}", flush=True)
        lines.append({"kind": kind.name, "pairs": what, "count": len(left), "false_alarms": rate})

    short = [prose.text(3, 8) for _ in range(rows)]
    pairs = [(text, replaced(0)(rng, text)) for text in short if any(word.isalpha() and word.islower() for word in text.split())]
    pairs = [(a, b) for a, b in pairs if a.split() != b.split()]
    line(Texts(), "3-8 words, one replaced", *zip(*pairs, strict=True))
    long = [prose.text(25, 60) for _ in range(rows)]
    names = [(prose.content_word().capitalize(), prose.content_word().capitalize()) for _ in long]
    fills = {
        "another name": [with_slot(rng, text, pair) for text, pair in zip(long, names, strict=True)],
        "another number": [with_slot(rng, text, [str(v) for v in rng.choice(9999, 2, replace=False)]) for text in long],
        "another noun, named twice": [with_slot(rng, text, [prose.content_word(), prose.content_word()], 2) for text in long],
        "another phrase of three words": [(text, another_phrase(rng, text)) for text in long],
        "another lower-case noun, named once (a limit)": [with_slot(rng, text, [prose.content_word(), prose.content_word()]) for text in long],
    }
    for what, filled in fills.items():
        line(Texts(), f"boilerplate of 25-60 words with {what}", *zip(*[(a, b) for a, b in filled if a != b], strict=True))
    ids = [as_ids(rng, 3, 20) for _ in range(rows)]
    line(Tokens(), "5-22 ids, one replaced", ids, [ids_changed(0, "replaced")(rng, row) for row in ids])
    counts = [(rng.random(500) < 0.03).astype(np.int64) for _ in range(2 * rows)]
    line(Tokens(), "sparse vectors of counts", counts[:rows], counts[rows:])
    rows_of_table = table(rng, rows)
    changed = rows_of_table.copy()
    changed[:, 5] += 0.05
    line(Numbers(), "a table's row, one column changed", list(rows_of_table), list(changed))
    signals = sensor(rng, rows)
    line(Numbers(), "a sensor's row with 5 % of noise", list(signals), [noise(0.05)(rng, row) for row in signals])
    return lines


def token_lines(seed: int, rows: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng([seed, 20])
    left, others = [as_ids(rng, 30, 200) for _ in range(rows)], [as_ids(rng, 30, 200) for _ in range(5 * rows)]
    return [
        measure(Tokens(), "sequences of 32-202 ids", name, left, [change(rng, row) for row in left], others) for name, change in ID_CHANGES.items()
    ]


def number_lines(seed: int, rows: int) -> list[dict[str, Any]]:
    lines = []
    for index, (what, family) in enumerate(FAMILIES.items()):
        rng = np.random.default_rng([seed, 30 + index])
        left, others = family(rng, rows), family(rng, 5 * rows)
        for name, change in ARRAY_CHANGES.items():
            if what == "channels" and name == "float16":
                continue  # 101,325 is beyond float16
            lines.append(measure(Numbers(), f"{what} {left.shape[1:]}", name, list(left), [change(rng, row) for row in left], list(others)))
    return lines


def real_prose() -> dict[str, Any]:
    """The paragraphs of Python's documentation against each other: half against half."""
    from pydoc_data.topics import topics

    paragraphs = [" ".join(part.split()) for text in topics.values() for part in re.split(r"\n\s*\n", text)]
    different = [text for text in dict.fromkeys(paragraphs) if len(text.split()) >= 3]
    random.Random(0).shuffle(different)
    half = len(different) // 2
    candidates, found = search(Texts(), arrays(different[:half]), arrays(different[half:]))
    print(f"\nreal prose: {half} paragraphs against {len(different) - half}: {len(candidates)} candidates, {len(found)} findings")
    for i, j in sorted(found):
        distance = Texts().distance(different[i], different[half + j])
        print(f"  {distance:.3f} | {different[i][:170]}\n        | {different[half + j][:170]}")
    return {"left": half, "right": len(different) - half, "candidates": len(candidates), "findings": len(found)}


def seconds(seed: int) -> dict[str, float]:
    """Wall seconds in one thread: signing 100,000 rows, candidates for 1,000 against 10,000, 30,000 and 100,000, the store."""
    rng = np.random.default_rng([seed, 50])
    prose, taken = Prose(rng), {}
    texts = arrays([prose.text(20, 20) for _ in range(100_000)])
    ids = [as_ids(rng, 126, 126) for _ in range(100_000)]
    signals = smooth(rng, 100_000, 128, 4)
    for kind, rows in ((Texts(), texts), (Tokens(), ids), (Numbers(), signals)):
        kind.sign(rows[0])
        started = time.perf_counter()
        signatures = np.stack([kind.sign(row) for row in rows])
        taken[f"sign_100k_{kind.name}"] = time.perf_counter() - started
        for count in (10_000, 30_000, 100_000):
            started = time.perf_counter()
            kind.candidates(signatures[:1000], signatures[-count:])
            taken[f"candidates_1k_{count // 1000}k_{kind.name}"] = time.perf_counter() - started
    digests = [sha256_bytes(str(number).encode()) for number in range(100_000)]
    with tempfile.TemporaryDirectory() as folder:
        writer = SignatureStore(folder, "text", "v", 256)
        for step, call in {
            "put_100k": lambda: writer.put(digests, rng.integers(0, 256, (100_000, 256), dtype=np.uint8)),
            "first_get_100k": lambda: SignatureStore(folder, "text", "v", 256).get(digests),
            "get_100k": lambda: writer.get(digests),
            "put_100k_verdicts": lambda: VerdictStore(folder, "text", "v").put(digests, digests[::-1], [0.5] * 100_000),
            "get_100k_verdicts": lambda: VerdictStore(folder, "text", "v").get(digests[::-1], digests),
        }.items():
            started = time.perf_counter()
            call()
            taken[step] = time.perf_counter() - started
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--rows", type=int, default=500, help="originals of each line (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1000, help="of all generators (default: %(default)s)")
    parser.add_argument("--no-seconds", action="store_true", help="leave the timings out")
    arguments = parser.parse_args()
    print(f"{'kind':8} {'rows':32} {'change':46}  index recall  false alarms")
    result: dict[str, Any] = {"seed": arguments.seed, "rows": arguments.rows}
    result["copies"] = text_lines(arguments.seed, arguments.rows) + token_lines(arguments.seed, arguments.rows)
    result["copies"] += number_lines(arguments.seed, arguments.rows)
    print("-" * 110)
    result["two_originals"] = lookalike_lines(arguments.seed, arguments.rows)
    result["real_prose"] = real_prose()
    if not arguments.no_seconds:
        result["seconds"] = {name: round(value, 3) for name, value in seconds(arguments.seed).items()}
        print(json.dumps(result["seconds"], indent=1))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
