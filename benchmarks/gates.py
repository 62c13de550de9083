"""How often does the accuracy gate pass, fail or stay undecided? Enumerated, not simulated.

    python benchmarks/gates.py --json build/bench/gates.json

For each number of rows and limit, the edges of PASS and FAIL over all likely (lost, gained) are found with
`release.paired.upper_bound`; then the trinomial's mass on either side of them is summed for each true drop and gain
rate. Flip counts with a mass below 1e-12 are left out (their sum is below 1e-8). `score` columns are Tango's score
limits without the exact step, for comparison. The errors that must stay at 5 % or less: `pass` where the true drop is
the limit, and `fail` where it is the limit or less.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import folder_last  # noqa: F401
import numpy as np
from scipy import special, stats

from release.paired import MAX_ROWS_TO_DECIDE, METHOD, score_upper, upper_bound

ROWS = (50, 200, 564, 781, 5000, 20000)
MARGIN = 0.005
"""The limit that `accuracy` of the JSON is for; `limits` has all."""
LIMITS = (MARGIN, 0.01)
KEYS = ("n", "true_drop", "gain", "pass", "fail", "undecided")
GAINS = (0.0, 0.001, 0.005, 0.015)
Bound = Callable[[int, int, int], float]


def pass_edges(counts: range, rows: int, limit: float, bound: Bound) -> np.ndarray:
    """For each flip count the largest number of lost rows that passes (-1: none)."""
    edges, lost = [], -1
    for flips in counts:
        lost = min(lost, flips)
        while lost < flips and bound(lost + 1, flips - lost - 1, rows) <= limit:
            lost += 1
        while lost >= 0 and bound(lost, flips - lost, rows) > limit:
            lost -= 1
        edges.append(lost)
    return np.array(edges, float)


def fail_edges(counts: range, rows: int, limit: float, bound: Bound) -> np.ndarray:
    """For each flip count the smallest number of lost rows that fails (flips + 1: none)."""
    edges, lost = [], counts.start // 2
    for flips in counts:
        while lost <= flips and not -bound(flips - lost, lost, rows) > limit:
            lost += 1
        while lost > 0 and lost - 1 <= flips and -bound(flips - lost + 1, lost - 1, rows) > limit:
            lost -= 1
        edges.append(lost)
    return np.array(edges, float)


def rates(counts: range, rows: int, drop: float, gain: float, passing: np.ndarray, failing: np.ndarray) -> tuple[float, float]:
    """Chances of PASS and of FAIL at a true drop and gain rate."""
    flips = np.array(counts, float)
    total = drop + 2 * gain
    if total == 0:
        return float(passing[0] >= 0), float(failing[0] <= 0)
    mass = np.exp(stats.binom.logpmf(flips, rows, total))
    share = (drop + gain) / total
    return float((mass * _cdf(passing, flips, share)).sum()), float((mass * (1 - _cdf(failing - 1, flips, share))).sum())


def _cdf(lost: np.ndarray, flips: np.ndarray, share: float) -> np.ndarray:
    result = np.where(lost >= flips, 1.0, 0.0)
    inside = (lost >= 0) & (lost < flips)
    result[inside] = special.bdtr(lost[inside], flips[inside].astype(int), share)
    return result


def scenarios(rows: int, limit: float) -> list[tuple[float, float]]:
    """True drops and gain rates: none, half the limit, the limit, twice and, where rows are few, six times the limit."""
    factors = (0.0, 0.5, 1.0, 2.0, 6.0) if rows < 5000 else (0.0, 0.5, 1.0, 2.0)
    return [(limit * factor, gain) for factor in factors for gain in GAINS]


def enumerate_accuracy(rows: int, limit: float) -> list[dict[str, float]]:
    """One entry a scenario."""
    flip_rates = [drop + 2 * gain for drop, gain in scenarios(rows, limit)]
    first = 0 if min(flip_rates) == 0 else int(stats.binom.ppf(1e-12, rows, min(flip_rates)))
    counts = range(first, int(stats.binom.isf(1e-12, rows, max(flip_rates))) + 1)
    edges = [(pass_edges(counts, rows, limit, bound), fail_edges(counts, rows, limit, bound)) for bound in (upper_bound, score_upper)]
    entries = []
    for drop, gain in scenarios(rows, limit):
        passed, failed = rates(counts, rows, drop, gain, *edges[0])
        score_passed, score_failed = rates(counts, rows, drop, gain, *edges[1])
        entries.append(
            {
                "n": rows,
                "limit": limit,
                "true_drop": drop,
                "gain": gain,
                "pass": passed,
                "fail": failed,
                "undecided": max(0.0, 1 - passed - failed),
                "score_pass": score_passed,
                "score_fail": score_failed,
            }
        )
    return entries


def speed() -> dict[str, float]:
    """Milliseconds of one interval (both bounds, nothing cached), the median of 9, by rows and flips."""
    found = {}
    for rows, lost, gained in ((564, 4, 3), (5000, 25, 25), (20000, 100, 100), (20000, 700, 100), (1_000_000, 5000, 5000)):
        samples = []
        for _ in range(9):
            upper_bound.cache_clear()
            started = time.perf_counter()
            upper_bound(lost, gained, rows)
            upper_bound(gained, lost, rows)
            samples.append((time.perf_counter() - started) * 1e3)
        found[f"n{rows}_lost{lost}_gained{gained}"] = sorted(samples)[4]
    return found


def main() -> int:
    """Print the table, write the JSON; exit 1 when an error is above 5 % or the power at 5000 rows below 80 %."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="file to write")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS), help="numbers of rows (default: %(default)s)")
    arguments = parser.parse_args()
    entries: list[dict[str, float]] = []
    print(
        f"method: {METHOD}\n{'rows':>6} {'limit':>6} {'drop':>6} {'gain':>6} | {'PASS':>7} {'FAIL':>7} {'UNDEC.':>7} | score: {'PASS':>7} {'FAIL':>7}"
    )
    for rows in arguments.rows:
        for limit in LIMITS:
            for entry in enumerate_accuracy(rows, limit):
                entries.append(entry)
                shown = " ".join(f"{entry[key]:7.2%}" for key in ("pass", "fail", "undecided"))
                score = " ".join(f"{entry[key]:7.2%}" for key in ("score_pass", "score_fail"))
                print(f"{rows:6d} {limit:6.2%} {entry['true_drop']:6.2%} {entry['gain']:6.2%} | {shown} | score: {score}", flush=True)
    at_limit = [entry for entry in entries if math.isclose(entry["true_drop"], entry["limit"])]
    harmless = [entry for entry in entries if entry["true_drop"] <= entry["limit"]]
    power = [e["pass"] for e in entries if (e["n"], e["limit"], e["true_drop"], e["gain"]) == (5000, 0.005, 0.0, 0.005)]
    summary: dict[str, Any] = {
        "worst_pass_at_limit": max(entry["pass"] for entry in at_limit),
        "worst_fail_of_harmless": max(entry["fail"] for entry in harmless),
        "score_worst_pass_at_limit": max(entry["score_pass"] for entry in at_limit),
        "score_worst_fail_of_harmless": max(entry["score_fail"] for entry in harmless),
        "power_5000_rows": power[0] if power else None,
        "milliseconds": speed(),
        "max_rows_to_decide": MAX_ROWS_TO_DECIDE,
    }
    print(json.dumps(summary, indent=2))
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    accuracy = [{key: entry[key] for key in KEYS} for entry in entries if entry["limit"] == MARGIN]
    arguments.json.write_text(json.dumps({"accuracy": accuracy, "limits": entries, "method": METHOD, "summary": summary}, indent=1) + "\n")
    good = summary["worst_pass_at_limit"] <= 0.05 and summary["worst_fail_of_harmless"] <= 0.05 and (not power or power[0] >= 0.8)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
