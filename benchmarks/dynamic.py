"""What the warm-up controller saves, against the whole frontier of fixed keep-alives, Belady, greedy-dual and moving averages.

    python benchmarks/dynamic.py --traces ../shared/data/traces --json build/bench/dynamic.json --plots build/bench/dynamic

`warm_idle_over_frontier`: the selector's warm idle time over that of the best fixed keep-alive at the same cold rate (mixtures of two included), the
worst over the prices of PRICES_S at which the selector keeps its models warm at all (cold rate at most 90 %; at most 5 % for office hours, where that
is asked; at the last price where it never does). `selector_over_best`: its cost over that of the best policy in hindsight, fixed keep-alives of every
length included, the worst over all prices. `policies` holds figures at the middle price. `skill`: 1 - MAE / MAE of the moving average whose share was
chosen in hindsight. Generated workloads say synthetic; recorded ones are thinned at random, which makes gaps close to memoryless. `decision_us` is a
median.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dynamic_workloads as workloads
import folder_last  # noqa: F401
import numpy as np

from fleet import extras
from fleet.bursts import BurstLevel
from fleet.controller import Controller
from fleet.forecast import Forecaster, Part
from fleet.forecaster import Forecasts
from fleet.frontier import frontier
from fleet.plans import NEVER
from fleet.policies import KeepAlive, conservative
from fleet.replay import ORACLE, POLICIES, SELECTOR, Belady, Outcome, Replay, Workload, policy_of, replay
from fleet.seasons import SLOT_S, Profile, slot_of
from fleet.traces import Trace, read_traces

ROOT = Path(__file__).resolve().parents[1]

PRICES_S = (600.0, 1800.0, 5400.0)
DEAREST_S = 90 * 86400.0
"""A price at which no cold start is ever worth it: for the comparison with warming up every 15 minutes."""
PRICE_FREE = ("always-warm", "keep-alive-10min", "keep-alive-1h", "interval-15min")
"""Policies that do the same at every price."""
ALPHAS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
FORECASTS = (
    ("azure_llm_2023_conv_1s.csv", 1), ("azure_llm_2023_conv_1s.csv", 300), ("nasa_http_1995_1min.csv", 1), ("nasa_http_1995_1min.csv", 5),
    ("nab_aws_elb_requests_5min.csv", 1), ("nab_nyc_taxi_30min.csv", 1),
)  # fmt: skip
"""(trace, steps ahead together): one step, and five minutes where a step is shorter."""
BURN_IN = 0.1
HALF_HOURS = ("nasa_http_1995_1min.csv", "nab_aws_elb_requests_5min.csv", "nab_nyc_taxi_30min.csv")


def log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def figures(outcome: Outcome) -> dict[str, float]:
    return {name: getattr(outcome, name) for name in ("cold_rate", "warm_idle_s", "wasted", "hit_rate", "cost")}


def measure(workload: Workload, most_cold: float) -> dict[str, Any]:
    """One workload: every policy at the middle price, the selector and its rivals at all."""
    fixed = frontier(workload)
    over_best, policies = 0.0, {}
    over_frontier: float | None = None
    free = {name: replay(workload, name, price_s=PRICES_S[1]) for name in PRICE_FREE}
    for price in PRICES_S:
        outcomes = {name: replay(workload, name, price_s=price) for name in (*POLICIES, SELECTOR, ORACLE) if name not in free}
        outcomes |= {name: replace(outcome, cost=outcome.warm_idle_s + outcome.cold_rate * fixed.requests * price) for name, outcome in free.items()}
        selector = outcomes[SELECTOR]
        best = min([fixed.least_cost(price), *(outcome.cost for name, outcome in outcomes.items() if name not in (SELECTOR, ORACLE))])
        over_best = max(over_best, selector.cost / best)
        ratio = selector.warm_idle_s / max(1.0, fixed.idle_at(selector.cold_rate))
        if selector.cold_rate <= most_cold:
            over_frontier = max(over_frontier or 0.0, ratio)
        if price == PRICES_S[1]:
            policies = {name: figures(outcome) for name, outcome in outcomes.items()}
        told = f"cold {selector.cold_rate:.4f}, idle over frontier {ratio:.4f}, cost over best {selector.cost / best:.4f}"
        log(f"{workload.name} at {price:g} s: {told}")
    dear = {name: replay(workload, name, price_s=DEAREST_S) for name in ("interval-15min", SELECTOR)}
    policies["selector-dearest"], policies["interval-15min"] = figures(dear[SELECTOR]), figures(dear["interval-15min"])
    log(f"{workload.name}: " + ", ".join(f"{name} wasted {item.wasted} cold {item.cold_rate:.5f}" for name, item in dear.items()))
    return {
        "name": workload.name,
        "synthetic": workload.synthetic,
        "policies": policies,
        "selector_over_best": over_best,
        "warm_idle_over_frontier": ratio if over_frontier is None else over_frontier,
    }


def forecast(trace: Trace, steps: int, extras: Sequence[Part] = (), burn_in: float = BURN_IN) -> dict[str, Any]:
    """Skill and coverage of one trace, each forecast made before its outcome; the first `burn_in` of it is not counted."""
    forecaster, profile = Forecaster(steps, extras=[BurstLevel(), *extras]), Profile()
    counts, starts = trace.counts.astype(float), trace.starts
    slot, total = slot_of(starts[0]), 0.0
    averages = np.full(len(ALPHAS), counts[0])
    made: list[tuple[float, float, float]] = []
    rivals: list[np.ndarray] = []
    for at, count in zip(starts.tolist(), counts.tolist(), strict=True):
        if slot_of(at) - slot > 7 * 48:
            slot, total = slot_of(at), 0.0
        while slot < slot_of(at):
            profile.close(slot, total)
            slot, total = slot + 1, 0.0
        total += count
        step = trace.step_s
        forecaster.learn(count, profile.smooth(at + step / 2.0) * step / SLOT_S)
        averages += np.array(ALPHAS) * (count - averages)
        told = forecaster.forecast(profile.smooth(at + step + steps * step / 2.0) * steps * step / SLOT_S)
        made.append((told.mean, told.low, told.high))
        rivals.append(averages * steps)
    outcomes = np.convolve(counts, np.ones(steps), "valid")[1:]  # of the steps after each row
    first = int(burn_in * len(outcomes))
    told_of, rival = np.array(made)[first : len(outcomes)], np.array(rivals)[first : len(outcomes)]
    truth = outcomes[first:]
    error, best = np.abs(truth - told_of[:, 0]).mean(), np.abs(truth[:, None] - rival).mean(axis=0).min()
    covered = ((told_of[:, 1] <= truth) & (truth <= told_of[:, 2])).mean()
    found = {"trace": trace.model, "horizon_s": steps * trace.step_s, "skill": float(1.0 - error / best), "coverage90": float(covered)}
    log(f"forecast {found}")
    return found


def forecast_extras(folder: Path, lstm: Path | None) -> list[dict[str, Any]]:
    """One half-hour ahead, as the controller forecasts, with and without further parts; on the half of each trace that the LSTM has not seen.

    Parts whose package or file is not there are left out.
    """
    kinds: dict[str, Callable[[], list[Part]]] = {"none": list}
    if lstm is not None:
        session = extras.open_lstm(lstm)
        kinds["lstm"] = lambda: [extras.Lstm(session)]
    if importlib.util.find_spec("statsforecast"):
        kinds["ets"] = lambda: [extras.Ets()]
    if len(kinds) == 3:
        kinds["lstm+ets"] = lambda: [extras.Lstm(session), extras.Ets()]
    found = []
    for file in HALF_HOURS:
        trace = half_hours(read_traces(folder / file)[0])
        for name, parts in kinds.items():
            started = time.perf_counter()
            figures = forecast(trace, 1, parts(), 0.5)
            found.append({**figures, "extra": name, "step_us": 1e6 * (time.perf_counter() - started) / len(trace.starts)})
    return found


def half_hours(trace: Trace) -> Trace:
    """The same trace by half-hours."""
    slots = np.floor(trace.starts / SLOT_S).astype(int)
    counts = np.bincount(slots - slots[0], trace.counts).astype(np.int64)
    return Trace(trace.model, (slots[0] + np.arange(len(counts))) * SLOT_S, counts, SLOT_S, {})


def arbiter(workload: Workload) -> dict[str, float]:
    """Cold rates of twenty models in half their memory: the selector with foresight, greedy-dual and Belady, the last two loading on demand."""
    cap = 0.5 * sum(spec.size_mb for spec in workload.specs)
    always = KeepAlive(NEVER)
    best = Controller(workload.specs, policy=always, cap_mb=cap)
    best.arbiter = Belady(cap, workload.times)
    runs = {
        "cold_rate": Controller(workload.specs, price_s=PRICES_S[-1], cap_mb=cap),
        "greedy_dual": Controller(workload.specs, policy=always, cap_mb=cap, foresight=False),
        "belady": best,
    }
    found = {name: Replay(workload, controller).run().cold_rate for name, controller in runs.items()}
    log(f"arbiter {found}")
    return found


class Dying(Forecasts):
    """Forecasts that end at a moment of the workload."""

    def __init__(self, at: float) -> None:
        super().__init__()
        self.at = at

    def fault(self, now: float) -> str:
        return self.dead or ("killed by the benchmark" if now >= self.at else "")


def dead_forecaster(workload: Workload) -> float:
    """Cost with a forecaster that is dead from the start, over that of the keep-alive that is fallen back to."""
    dead = Replay(workload, Controller(workload.specs, price_s=PRICES_S[1], forecasts=Dying(workload.start))).run()
    return dead.cost / Replay(workload, Controller(workload.specs, price_s=PRICES_S[1], policy=conservative)).run().cost


def decision(workload: Workload) -> float:
    """Microseconds for a request and all that follows until the next, forecasts left out: the median of three replays' medians."""
    return float(np.median([replay(workload, SELECTOR, price_s=PRICES_S[1]).decision_us for _ in range(3)]))


def resident_mb() -> float:
    """Peak resident memory of a fresh process that runs the controller with twenty models and numpy."""
    code = (
        "import re, sys, numpy; sys.path.append('benchmarks'); import dynamic_workloads as w; from fleet.replay import replay;"
        "replay(w.office(days=7), 'selector'); print(int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) / 1024)"
    )
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout)


def main() -> int:
    """Write the JSON and the plots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "data" / "traces", help="folder of the recorded traces")
    parser.add_argument("--json", type=Path, help="file for the figures (default: standard output)")
    parser.add_argument("--plots", type=Path, help="folder for the plots")
    parser.add_argument("--seed", type=int, default=7, help="of generated traffic and of thinning; constants were chosen on 0 and 100 to 107")
    parser.add_argument("--lstm", type=Path, help="file of `qwarm lstm`, trained on the first half of the traces")
    server = parser.add_mutually_exclusive_group()
    server.add_argument("--no-server", action="store_true", help="leave neighbour_p99_ratio out (null)")
    server.add_argument(
        "--server-only", action="store_true", help="measure that alone, which wants a quiet machine, and put it into the file of --json"
    )
    arguments = parser.parse_args()
    if arguments.server_only:
        before = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else {}
        write({**before, **neighbour()}, arguments.json)
        return 0
    recorded = workloads.thinned(arguments.traces, arguments.seed)
    office = workloads.office(arguments.seed)
    made = [
        (workloads.cron(arguments.seed), 0.9),
        (office, 0.05),
        (workloads.bursty(arguments.seed), 0.9),
        *((workload, 0.9) for workload in recorded),
    ]
    result = {
        "workloads": [measure(workload, most_cold) for workload, most_cold in made],
        "forecast": [forecast(read_traces(arguments.traces / file)[0], steps) for file, steps in FORECASTS],
        "forecast_extras": forecast_extras(arguments.traces, arguments.lstm),
        "arbiter": arbiter(workloads.crowded(arguments.traces, arguments.seed)),
        "decision_us": decision(recorded[0]),
        "rss_mb": resident_mb(),
        "dead_forecaster_cost_ratio": dead_forecaster(office),
        **({"neighbour_p99_ratio": None} if arguments.no_server else neighbour()),
    }
    if arguments.plots:
        plot(office, arguments.plots)
    write(result, arguments.json)
    return 0


def write(result: dict[str, Any], file: Path | None) -> None:
    """The figures, into the file or to standard output."""
    text = json.dumps(result, indent=2) + "\n"
    if file is None:
        print(text, end="")
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def neighbour() -> dict[str, Any]:
    """`neighbour_p99_ratio`, and all that benchmarks/neighbour.py says as `neighbour`."""
    import neighbour as servers

    with tempfile.TemporaryDirectory(prefix="qwarm-bench-") as folder:
        found = servers.measure(Path(folder), log)
    return {"neighbour_p99_ratio": found["neighbour_p99_ratio"], "neighbour": found}


def plot(workload: Workload, folder: Path) -> None:
    """The two plots of `qwarm replay` for one workload."""
    from cli import replay_plots

    outcomes = {}
    for name in (*POLICIES, SELECTOR, ORACLE):
        outcomes[name] = Replay(workload, Controller(workload.specs, policy=policy_of(name, workload), price_s=PRICES_S[1]), timeline=True).run()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "frontier.svg").write_text(replay_plots.frontier_plot(workload, frontier(workload), outcomes))
    (folder / "timeline.svg").write_text(replay_plots.timeline_plot(workload, workload.specs[-2].name, outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
