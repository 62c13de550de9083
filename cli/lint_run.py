"""What `qwarm lint` sees when it builds and runs a model: in each runtime of the scheme that this machine has, on made-up rows."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import ModelError, QwarmError
from pipeline.records import AxisRange, Census
from pipeline.tensors import Batch

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from calibration.exposing import Opener
    from calibration.lint_rules import Finding
    from calibration.onnx_model import Described


def unfit(model: onnx.ModelProto, found: Described, shapes: dict[str, AxisRange], rows: Batch) -> list[Finding]:
    """A model that ONNX Runtime does not open, or that does not follow its batch axis, is fit for nothing further."""
    from calibration.dynamic import follow_batch
    from calibration.exposing import as_written
    from calibration.graph import nodes_that_fix

    try:
        with as_written(model) as run:
            run(rows)
    except ModelError as error:
        fixing = nodes_that_fix(model, str(found.batch_axis)) if error.what.startswith("ONNX Runtime cannot run") else []
        if not fixing:
            return [_of_error("unsupported", "error", error, "graph")]
    try:
        follow_batch(model, found, shapes, rows)
    except ModelError as error:
        return [_of_error("fixed-axis", "error", error, ", ".join(nodes_that_fix(model, str(found.batch_axis))) or "graph")]
    return []


def run_everywhere(
    model: onnx.ModelProto, scheme: str, found: Described, shapes: dict[str, AxisRange], rows: Batch, quantized: Sequence[str]
) -> tuple[list[Finding], dict[str, Any]]:
    """Findings of building and running, and by target what was seen there."""
    import engines
    from calibration.exposing import as_written

    findings: list[Finding] = []
    with as_written(model) as run:
        written = run(rows)
    runtimes: dict[str, Any] = {}
    failures: dict[str, QwarmError] = {}
    for target in engines.targets():
        backend = engines.backend(target)
        if scheme not in backend.SCHEMES[target]:
            continue
        if reason := backend.unavailable(target):
            runtimes[target] = {"not_built": reason}
            continue
        try:
            runtimes[target], parted = _on_target(target, backend.unrunnable(target), model, found, shapes, rows, written, quantized)
            findings += parted
        except QwarmError as error:
            failures[target] = error
            runtimes[target] = {"refused": error.got}
    could = [target for target, seen in runtimes.items() if "refused" not in seen and "not_built" not in seen]
    for target, failure in failures.items():
        only = target.startswith("tensorrt") or not could
        findings.append(_of_error("build", "error" if only else "warning", failure, target))
    if "onnxruntime-cpu" in runtimes:
        findings += _by_default(model, rows, written)
    return findings + _in_float(runtimes, quantized), runtimes


def _on_target(
    target: str, unrunnable: str | None, model: onnx.ModelProto, found: Described, shapes: dict[str, AxisRange], rows: Batch,
    written: Mapping[str, np.ndarray], quantized: Sequence[str],
) -> tuple[dict[str, Any], list[Finding]]:  # fmt: skip
    """What a target executes in and how far it is from the graph as written; a finding where that is further than rounding explains."""
    from calibration.agree import decibel
    from engines.once import build_once, deployed, opened_once

    if unrunnable:
        with tempfile.TemporaryDirectory(prefix="qwarm-lint-") as scratch:
            build_once(model, target, inputs=found.inputs, outputs=found.outputs, shapes=shapes, folder=Path(scratch))
        return {"not_run": unrunnable}, []
    with opened_once(model, target, inputs=found.inputs, outputs=found.outputs, shapes=shapes) as session:
        census, got = session.engine.census, session.run(rows)
    decibels = {name: decibel(written[name], array) for name, array in got.items()}
    what = f"{target} does not compute what the graph says"
    findings = _parted(model, rows, decibels, deployed(target, found.inputs, shapes), ("runtimes-part", "error", what))
    return {"sqnr_db_to_as_written": decibels} | (_seen(census, quantized) if census else {}), findings


def _by_default(model: onnx.ModelProto, rows: Batch, written: Mapping[str, np.ndarray]) -> list[Finding]:
    """Whether ONNX Runtime's default options break the model: the target's own options may be others, and a file goes anywhere."""
    from calibration.agree import decibel
    from calibration.exposing import by_default

    with by_default(model) as run:
        decibels = {name: decibel(written[name], array) for name, array in run(rows).items()}
    what = "ONNX Runtime's default options break the model; disabled_optimizers=['WeightBiasQuantization'], which the target sets, may not"
    return _parted(model, rows, decibels, by_default, ("default-options", "warning", what))


def _parted(model: onnx.ModelProto, rows: Batch, decibels: Mapping[str, float | None], opened: Opener, said: tuple[str, str, str]) -> list[Finding]:
    """A finding where a runtime is further from the graph as written than rounding explains, at the node where they part."""
    from calibration.agree import BOUND_DB, EQUAL_DB, part
    from calibration.exposing import as_written, cuts
    from calibration.lint_rules import Finding

    worst = min((value for value in decibels.values() if value is not None), default=EQUAL_DB)
    if worst >= BOUND_DB:
        return []
    parted = part(model, {name: name for name in cuts(model)}, rows, opened, as_written)
    node = f"{parted.node} ({parted.operator})" if parted else "graph"
    rule, severity, what = said
    return [Finding(rule, severity, node, (), what, f"at least {BOUND_DB:g} dB on made-up rows", f"{worst:.1f} dB")]


def _seen(census: Census, quantized: Sequence[str]) -> dict[str, Any]:
    precisions = {layer.name: layer.precision for layer in census.layers}
    return {
        "int8_share": census.int8_share,
        "in_float": {node: precisions.get(node, "UNCLAIMED") for node in quantized if precisions.get(node) != "INT8"},
    }


def _in_float(runtimes: Mapping[str, Any], quantized: Sequence[str]) -> list[Finding]:
    """A node between Q/DQ that runs in float is slower than without them: an error where no runtime of the scheme that was asked runs it in INT8."""
    from calibration.lint_rules import Finding

    asked = {target: seen["in_float"] for target, seen in runtimes.items() if "in_float" in seen}
    findings = []
    for node in quantized:
        slow = {target: floats[node] for target, floats in asked.items() if node in floats}
        if not slow:
            continue
        everywhere = len(slow) == len(asked)
        got = ", ".join(f"{precision} in {target}" for target, precision in slow.items())
        what = "A quantized node runs in float" + ("" if everywhere else " in one runtime of the scheme")
        findings.append(Finding("runs-in-float", "error" if everywhere else "warning", node, (), what, "an INT8 kernel", got))
    return findings


def _of_error(rule: str, severity: str, error: QwarmError, node: str) -> Finding:
    from calibration.lint_rules import Finding

    return Finding(rule, severity, node, (), error.what, error.expected, f"{error.where}: {error.got}")
