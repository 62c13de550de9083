"""What TensorRT learns beside a plan, kept in the cache store by what it depends on: its timing cache, and TensorRT-RTX's runtime cache.

Neither is an output of DVC: they grow with every build or run, and change no answer. Both are bound to one GPU model and one build of the
library; the store's key says so, and the library itself refuses what does not fit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from engines.caches import MODEL, Key, Store
from engines.trt_plan import TimingSeed
from pipeline.gpus import Gpu
from pipeline.records import Engine

TIMING, RUNTIME = "tensorrt-timing", "tensorrt-rtx-runtime"
TIMING_FILE, RUNTIME_FILE = "timing.cache", "runtime.cache"


def timing_key(platform_fields: Mapping[str, str], settings: Mapping[str, Any]) -> Key:
    """Of every model: tactics are timed by layer. A cache of another build or device is refused by the library, so only those are in the key."""
    fields = {name: platform_fields[name] for name in ("tensorrt", "os", "architecture", "gpu", "compute_capability", "driver", "cuda_major")}
    return Key(TIMING, fields | {"tf32": str(settings["tf32"]), "device": str(settings.get("device", "GPU"))}, "timing cache of TensorRT")


def runtime_key(engine: Engine, platform_fields: Mapping[str, str], gpu: Gpu) -> Key:
    """Kernels that TensorRT-RTX compiled for one plan on one GPU model; the driver counts by its major version."""
    fields = {
        MODEL: engine.model_sha256,
        "recipe_sha256": engine.recipe_sha256,
        "gpu": gpu.name,
        "compute_capability": gpu.compute_capability,
        "driver_major": gpu.driver.partition(".")[0],
        **{name: platform_fields[name] for name in ("tensorrt_rtx", "os", "architecture")},
    }
    return Key(RUNTIME, fields, f"runtime cache of {engine.target}, {engine.precision}")


def timing_seed(store: Store, key: Key) -> TimingSeed:
    """The kept timing cache to start a build from, and what puts the grown one back: merged with what others kept meanwhile."""
    seed = store.read(key, TIMING_FILE)[1] or b""

    def grown(config: Any, timing: Any) -> None:
        if timing is None:
            return
        with store.locked(key) as refusal:
            latest = store.read(key, TIMING_FILE)[1] or b""
            if refusal is None:
                if latest != seed:
                    with contextlib.suppress(Exception):  # caches of two builds of the library do not merge: ours alone is kept
                        timing.combine(config.create_timing_cache(latest), False)
                content = bytes(timing.serialize())
                if content != latest:
                    store.keep(key, {TIMING_FILE: content})

    return TimingSeed(seed, grown)
