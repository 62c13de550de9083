"""What `/metrics` says, in Prometheus' text format 0.0.4 (prometheus.io/docs/instrumenting/exposition_formats).

Written here because a host has the standard library and numpy alone, and these few families need no client library; the tests
read every page back with Prometheus' own parser. Names follow its conventions: base units, `_total` for counters.
"""

from __future__ import annotations

import bisect
import threading
from collections import Counter
from collections.abc import Iterable, Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds; a request lands in the first that is not below it."""
FAMILIES = {
    "qwarm_bundle_info": ("gauge", "What is served; always 1."),
    "qwarm_ready": ("gauge", "1 while the engine is warm and the server does not drain, else 0."),
    "qwarm_verify_seconds": ("gauge", "Time to check the bundle's signature and files."),
    "qwarm_load_seconds": ("gauge", "Time to load the engine."),
    "qwarm_warmup_seconds": ("gauge", "Time to run the warm-up plan."),
    "qwarm_startup_seconds": ("gauge", "From the start of the process to ready."),
    "qwarm_first_request_seconds": ("gauge", "First infer request that was answered, from its first byte to the answer's last."),
    "qwarm_requests_total": ("counter", "Answered requests by route and HTTP status; code 499: the client was gone."),
    "qwarm_inference_duration_seconds": ("histogram", "Infer requests answered 200, from the first byte to the answer's last."),
    "qwarm_requests_in_flight": ("gauge", "Infer requests that are inside, waiting ones included."),
    "qwarm_queue_rejections_total": ("counter", "Infer requests refused because the queue was full."),
    "qwarm_connections": ("gauge", "Open connections."),
    "qwarm_connection_rejections_total": ("counter", "Connections and requests refused because too many connections were open."),
    "qwarm_engine_cache_hits_total": ("counter", "Hits of the engine's own caches, where its runtime has any and tells."),
}
"""Kind and meaning of every family, in the order of the page."""
Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Thread-safe counts and values of one server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, Labels], float] = {}
        self._requests: Counter[tuple[str, int]] = Counter()
        self._buckets = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0
        for name in ("qwarm_queue_rejections_total", "qwarm_connection_rejections_total"):
            self.set(name, 0)

    def set(self, name: str, value: float, /, **labels: str) -> None:
        """Set a value of a family."""
        with self._lock:
            self._values[(name, tuple(sorted(labels.items())))] = value

    def count(self, name: str) -> None:
        """One more of a counter without labels."""
        with self._lock:
            self._values[(name, ())] = self._values.get((name, ()), 0) + 1

    def answered(self, route: str, code: int, seconds: float) -> None:
        """A request of `route` was answered with `code` after `seconds`."""
        with self._lock:
            self._requests[(route, code)] += 1
            if (route, code) == ("infer", 200):
                self._values.setdefault(("qwarm_first_request_seconds", ()), seconds)
                self._buckets[bisect.bisect_left(BUCKETS, seconds)] += 1
                self._sum += seconds

    def render(self, now: Mapping[str, float], caches: Mapping[str, int]) -> str:
        """The page; `now`: values of families without labels as they are at this moment, `caches`: hits by cache."""
        with self._lock:
            values, requests = dict(self._values), dict(self._requests)
            buckets, total = list(self._buckets), self._sum
        samples: dict[str, list[str]] = {name: [] for name in FAMILIES}
        for name, value in now.items():
            values[(name, ())] = value
        for (name, labels), value in sorted(values.items()):
            samples[name].append(sample(name, labels, value))
        for (route, code), count in sorted(requests.items()):
            samples["qwarm_requests_total"].append(sample("qwarm_requests_total", (("route", route), ("code", str(code))), count))
        for cache, hits in sorted(caches.items()):
            samples["qwarm_engine_cache_hits_total"].append(sample("qwarm_engine_cache_hits_total", (("cache", cache),), hits))
        samples["qwarm_inference_duration_seconds"] = list(histogram("qwarm_inference_duration_seconds", buckets, total))
        lines: list[str] = []
        for name, (kind, meaning) in FAMILIES.items():
            if samples[name]:
                lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", *samples[name]]
        return "\n".join(lines) + "\n"


def sample(name: str, labels: Iterable[tuple[str, str]], value: float) -> str:
    """One line: `name{label="value"} number`."""
    written = ",".join(f'{label}="{escaped(text)}"' for label, text in labels)
    return f"{name}{{{written}}} {value!r}" if written else f"{name} {value!r}"


def escaped(text: str) -> str:
    """A label's value between its quotes."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def histogram(name: str, counts: Iterable[int], total: float) -> Iterable[str]:
    """Cumulative buckets, sum and count."""
    below = 0
    for bound, count in zip([*map(repr, BUCKETS), "+Inf"], counts, strict=True):
        below += count
        yield sample(f"{name}_bucket", (("le", bound),), below)
    yield sample(f"{name}_sum", (), total)
    yield sample(f"{name}_count", (), below)
