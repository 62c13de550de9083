"""Workloads of benchmarks/dynamic.py: thinned recorded traces, and generated traffic that says so."""

from __future__ import annotations

import math
import random
from pathlib import Path

from fleet.models import ModelSpec
from fleet.replay import Workload
from fleet.traces import read_traces

DAY, HOUR = 86400.0, 3600.0
MONDAY = 1_704_067_200.0
"""1 January 2024 00:00 UTC."""
LOAD_S = 4.0
THINNED = (
    ("nasa_http_1995_1min.csv", 200), ("nasa_http_1995_1min.csv", 2000),
    ("nab_aws_elb_requests_5min.csv", 200), ("nab_aws_elb_requests_5min.csv", 2000),
    ("nab_nyc_taxi_30min.csv", 20_000), ("nab_nyc_taxi_30min.csv", 200_000), ("azure_llm_2023_conv_1s.csv", 200),
)  # fmt: skip
"""(file, one request in so many is kept). 1/200 and 1/2000 where that is sparse traffic of one model; taxi trips are a hundred times as many."""


def spec(name: str, load_s: float = LOAD_S, size_mb: float = 100.0) -> ModelSpec:
    return ModelSpec(name, weights_mb=0.8 * size_mb, contexts_mb=0.2 * size_mb, load_s=load_s, contexts_s=0.25 * load_s)


def workload(name: str, times: dict[str, list[float]], days: float, start: float = MONDAY) -> Workload:
    return Workload(name, tuple(map(spec, times)), {model: sorted(at) for model, at in times.items()}, start, start + days * DAY, True)


def poisson(source: random.Random, rate: float, start: float, end: float) -> list[float]:
    """Times of a Poisson process of `rate` a second."""
    times, at = [], start
    while (at := at + source.expovariate(rate)) < end:
        times.append(at)
    return times


def cron_job(source: random.Random, period: float, jitter: float, days: float, skipped: float = 0.01, requests: int = 1) -> list[float]:
    """A job at every multiple of `period`, late by an exponential time of mean `jitter`, left out with probability `skipped`."""
    times = []
    for run in range(int(days * DAY / period)):
        if source.random() >= skipped:
            at = MONDAY + run * period + source.expovariate(1.0 / jitter)
            times += [at + index * source.uniform(0.5, 2.0) for index in range(requests)]
    return [at for at in times if at < MONDAY + days * DAY]


def cron(seed: int = 0, days: float = 28.0) -> Workload:
    """Twelve jobs: each quarter of an hour to each day, jitter of 1 to 20 s, 1 % of the runs left out, some with several requests."""
    source = random.Random(f"cron {seed}")
    jobs = [
        (900, 2),
        (900, 10),
        (1800, 5),
        (3600, 1),
        (3600, 5),
        (3600, 20),
        (2 * 3600, 5),
        (4 * 3600, 10),
        (6 * 3600, 20),
        (12 * 3600, 5),
        (DAY, 10),
        (DAY, 20),
    ]
    times = {
        f"cron-{index:02d}": cron_job(source, float(period), float(jitter), days, requests=1 + 2 * (index % 3 == 2))
        for index, (period, jitter) in enumerate(jobs)
    }
    return workload("cron", times, days)


def office_rate(at: float) -> float:
    """Share of the busiest hour's traffic: Monday to Friday from 8 to 18 with a dip at noon, 1 % of it at other times."""
    day, second = divmod(at - MONDAY, DAY)
    hour = second / HOUR
    if day % 7 >= 5 or not 8.0 <= hour < 18.0:
        return 0.01
    ramp = min(1.0, (hour - 8.0) / 1.0 + 0.3, (18.0 - hour) / 1.0 + 0.3)
    return ramp * (0.6 if 12.0 <= hour < 13.0 else 1.0)


def office(seed: int = 0, days: float = 42.0) -> Workload:
    """Eight models of one to twenty requests in the busiest hours, Poisson by `office_rate`."""
    source = random.Random(f"office {seed}")
    times = {}
    for index in range(8):
        busiest = 20.0 ** (index / 7.0)
        times[f"office-{index}"] = [at for at in poisson(source, busiest / HOUR, MONDAY, MONDAY + days * DAY) if source.random() < office_rate(at)]
    return workload("office-hours", times, days)


def bursty(seed: int = 0, days: float = 28.0) -> Workload:
    """Six models: bursts of 5 to 200 requests, a second to a minute apart, after pauses of half an hour to a day (log-normal)."""
    source = random.Random(f"bursty {seed}")
    times: dict[str, list[float]] = {}
    for index in range(6):
        at, found = MONDAY, []
        middle = 1800.0 * 2.0**index
        while (at := at + source.lognormvariate(math.log(middle), 1.0)) < MONDAY + days * DAY:
            apart = 10.0 ** source.uniform(0.0, 1.78)
            for _ in range(int(5 * 40.0 ** source.random())):
                at += source.expovariate(1.0 / apart)
                found.append(at)
        times[f"bursty-{index}"] = [when for when in found if when < MONDAY + days * DAY]
    return workload("bursty", times, days)


def thinned(folder: Path, seed: int = 0) -> list[Workload]:
    """Recorded traces, thinned at random to the traffic of one model each; thinning makes gaps close to memoryless, which understates forecasts."""
    made = []
    for file, one_in in THINNED:
        [trace] = read_traces(folder / file)
        name = f"{trace.model}/{one_in}"
        times = trace.arrivals(1.0 / one_in, seed)
        made.append(Workload(name, (spec(name),), {name: times}, float(trace.starts[0]), trace.end, False))
    return made


def crowded(folder: Path, seed: int = 0) -> Workload:
    """Twenty models for one memory: eight cron jobs, eight of office hours, four thinned recordings moved to the same weeks; sizes 40 to 400 MB."""
    days = 28.0
    parts = {**dict(list(cron(seed, days).times.items())[::2]), **office(seed, days).times, **dict(list(bursty(seed, days).times.items())[:2])}
    for recorded in thinned(folder, seed)[:4]:
        [(name, times)] = recorded.times.items()
        parts[name] = [MONDAY + at - recorded.start for at in times]
    end = MONDAY + days * DAY
    sizes = {name: 40.0 * 10.0 ** (index * 7 % 20 / 19.0) for index, name in enumerate(parts)}
    specs = tuple(spec(name, load_s=size / 40.0, size_mb=size) for name, size in sizes.items())
    return Workload("crowded", specs, {name: sorted(at for at in times if at < end) for name, times in parts.items()}, MONDAY, end, True)
