"""Stage `quantize@SCHEME`: one Q/DQ model from the ranges, in a process of its own (modelopt patches ONNX Runtime)."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import engines
from calibration.ranges import check_bound
from calibration.rounding.methods import Calibration
from calibration.search.budget import Budget
from calibration.search.run import Deployment, quantize
from calibration.variants import Job
from engines.once import deployed
from pipeline.config import Config, load_config
from pipeline.platforms import machine_facts
from pipeline.progress import bar
from pipeline.records import ExportedModel, QuantizedModel, Ranges
from pipeline.search_records import SearchResult
from stages import paths
from stages.rows import role_arrays, role_batches, role_manifest
from stages.schemes import RULES, float_layers, methods


def budget(config: Config) -> Budget | None:
    """What the search is held to; None where params.yaml asks for none."""
    asked = config.quantize
    return None if asked.max_drift is None else Budget(asked.max_drift, asked.max_slowdown, asked.search_seconds)


def deployment(scheme: str, targets: Collection[str], schemes: Collection[str], exported: ExportedModel) -> Deployment:
    """Those of `targets` that run here and would be built from `scheme`, each with its deployed options.

    What a search measures on them is a choice and does not ship, so it is bound to this machine's facts in the search's own cache and to nothing in
    dvc.yaml: another machine keeps the model that was chosen.
    """
    chosen = {}
    facts = dict(machine_facts())
    for target in targets:
        backend = engines.backend(target)
        if next((name for name in backend.SCHEMES[target] if name in schemes), None) == scheme and not backend.unrunnable(target):
            chosen[target] = deployed(target, exported.inputs, exported.shapes)
            facts |= {f"{target} {name}": value for name, value in backend.platform_key(target).items()}
    return Deployment(chosen, facts)


def run(scheme: str) -> str:
    config = load_config(paths.PARAMS)
    return described(*quantized(config, scheme, paths.EXPORT, paths.RANGES, paths.QUANTIZED / scheme, f"quantize@{scheme}"))


def quantized(
    config: Config, scheme: str, source: Path, ranges: Path, folder: Path, title: str, *, reference: Path | None = None
) -> tuple[QuantizedModel, SearchResult]:
    """`folder` with the Q/DQ model of the export in `source`, from the records in `ranges`; judged on the search rows against it, or `reference`."""
    exported = ExportedModel.load(source / "exported.json", next="run `dvc repro export`")
    roles = role_manifest(config, "calibration")
    by_method = {method: Ranges.load(ranges / f"{method}.json", next="run `dvc repro ranges`") for method in config.quantize.methods}
    for method, found in by_method.items():
        check_bound(found, exported, roles, method=method, batch_rows=config.quantize.batch_rows)
    rows, _ = role_arrays(config, "search")
    calibration = Calibration(
        rows=lambda: (batch for batch, _ in role_batches(config, "calibration", config.quantize.batch_rows)),
        ids=roles.roles["calibration"].rows,
        methods=methods(config),
    )
    job = Job(source / "model.onnx", exported, next(iter(by_method.values())), rows, calibration, reference=reference)
    with bar(title) as report:
        return quantize(
            RULES[scheme], job, by_method, folder, budget(config),
            deployment(scheme, config.targets, config.quantize.schemes, exported),
            float_layers=float_layers(config, source), classes=config.data.labels is not None, progress=report,
        )  # fmt: skip


def described(made: QuantizedModel, search: SearchResult) -> str:
    """The result in one line."""
    decibels = "without limit" if made.search_sqnr_db is None else f"{made.search_sqnr_db:.1f} dB"
    left = "; ".join(made.left_in_float) or "none"
    rounded = ", ".join(f"{name} {'without limit' if db is None else f'{db:.1f} dB'}" for name, db in made.variants.items())
    zero = "".join(f"; {weight} has {len(channels)} all-zero channels" for weight, channels in made.zero_channels.items())
    met = "" if search.met is None else f"; max_drift {search.max_drift:g} {'is' if search.met else 'is NOT'} met: {search.written.worst_drift:.2g}"
    return (
        f"{made.scheme}: {made.quantize_linear} QuantizeLinear, {made.dequantize_linear} DequantizeLinear, ranges by {search.method}, "
        f"SQNR {decibels} on {made.search_rows} search rows (weights {made.variant}; {rounded}){met}; left in float: {left}{zero}"
    )
