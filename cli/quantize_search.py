"""`qwarm quantize --max-drift D`: layers of an ONNX file go back to float until it is near enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import QuantizeError
from pipeline.records import QuantizedModel

if TYPE_CHECKING:
    from calibration.variants import Job


def searched(
    scheme: str,
    job: Job,
    folder: Path,
    max_drift: float,
    float_layers: Mapping[str, str],
    *,
    classes: bool,
    progress: Callable[[int, int, str], None],
) -> QuantizedModel:
    """Quantize within `max_drift` on the job's rows, as written and in every runtime here that takes `scheme`.

    Raises QuantizeError where the search ends without that.
    """
    import engines
    from calibration.search.budget import Budget
    from calibration.search.run import quantize
    from stages.quantize import deployment
    from stages.schemes import RULES

    by_method = {job.ranges.method: job.ranges}
    runtimes = deployment(scheme, engines.targets(), (scheme,), job.exported)
    record, result = quantize(
        RULES[scheme], job, by_method, folder, Budget(max_drift), runtimes, float_layers=float_layers, classes=classes, progress=progress
    )
    if not result.met:
        raise QuantizeError(
            "The model is farther from float than was asked for",
            where=f"--max-drift, {result.search_rows} rows",
            expected=f"at most {max_drift:g}",
            got=f"{result.written.worst_drift:.3g} with {len(result.written.float_layers)} layers in float: {result.stopped}",
            next="raise --max-drift, or give more calibration rows",
        )
    return record
