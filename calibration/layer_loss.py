"""Which layers make one graph differ from another: every float tensor that both have, held to what it is made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from calibration.agree import EQUAL_DB, MATTERS_DB, Sides, parting, sources_of
from calibration.exposing import as_written, float_tensors
from calibration.hops import counterparts, unscaled
from calibration.rounding.channels import groups_of
from calibration.rounding.split import remembered
from pipeline.records import Parting
from pipeline.tensors import Batch

if TYPE_CHECKING:
    import onnx


def layer_losses(first: onnx.ModelProto, second: onnx.ModelProto, rows: Batch) -> tuple[Parting, ...]:
    """Operators of the `second` graph by how far their results fall below what they read, in dB against the `first`; the worst come first.

    Both run `rows` `{input: (n, ...)}`, one batch, as they are written. Channels that equalization holds at other scales are brought back first, and
    what the second repeats in dead channels, the first does too.
    Falls from further above the worst tensor than `MATTERS_DB` count from there. Empty where the graphs share no tensor but their inputs.
    """
    first = remembered(second, first)
    names = counterparts(second, float_tensors(second), set(float_tensors(first)))
    groups = groups_of(first)

    def levelled(wanted: Mapping[str, np.ndarray], got: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        return unscaled(wanted, got, names, groups)

    seen = Sides(second, first, rows, as_written, as_written, levelled).profile(names)
    if not seen:
        return ()
    sources = sources_of(second, list(seen))
    before = {name: min((seen[source] for source in sources[name]), default=EQUAL_DB) for name in seen}
    ceiling = min(seen.values()) + MATTERS_DB
    worst: dict[str, tuple[float, Parting]] = {}
    for name, value in seen.items():
        fall, found = min(before[name], ceiling) - value, parting(second, name, value, before[name])
        if fall > 0 and fall > worst.get(found.node, (0.0, found))[0]:
            worst[found.node] = (fall, found)
    return tuple(found for _, found in sorted(worst.values(), key=lambda entry: -entry[0]))
