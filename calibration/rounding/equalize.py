"""Channels of one tensor brought nearer to one size before it is quantized with one scale: the same function in float, finer steps in eight bits."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calibration.exposing import seen
from calibration.ranges import collect
from calibration.rounding.channels import Group, groups_of, scaled
from calibration.rounding.methods import Calibration
from calibration.rounding.replay import parts
from pipeline.records import ExportedModel, Ranges
from pipeline.side_files import save_model
from pipeline.tensors import AxisRange, Batch

if TYPE_CHECKING:
    import onnx

POWER = 0.5
"""Of a channel's size: 1 would give every channel the same, and noise that no channel of the others needs."""
LEAST = 1 / 8
"""Of the largest scale: a channel that hardly moved on the calibration rows may move on others."""


@dataclasses.dataclass(frozen=True)
class Equalized:
    """The float graph with other weights and the same answers, and its own ranges."""

    model: onnx.ModelProto
    ranges: Ranges


def equalized(source: onnx.ModelProto, exported: ExportedModel, ranges: Ranges, calibration: Calibration, batch: AxisRange) -> Equalized | None:
    """Divide the channels of each group of tensors (`channels.groups_of`) by scales that follow their sizes; None where there is no group.

    Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", ICCV 2019, equalize weights between two layers;
    here the activations' channels are, over whole residual streams: all tensors that an Add joins share the scales. A tensor's scale is set
    by its largest channel, so the noise of rounding falls on all of them alike, and the small ones gain. What has no scales to take (ReLU6
    cuts off at 6) stays as it is. Costs two float passes over the calibration rows. Ranges of the tensors that it touches are collected anew, by
    the method of `ranges`.
    """
    groups = groups_of(source)
    if not groups:
        return None
    touched = {name for group in groups for name in group.tensors}
    sizes = _sizes(source, groups, (part for rows in calibration.batches() for part in parts(rows, batch)))
    model = scaled(source, [(group, _scale(group, sizes)) for group in groups])
    with tempfile.TemporaryDirectory(prefix="qwarm-equalized-") as folder:
        path = Path(folder) / "model.onnx"
        own = dataclasses.replace(exported, onnx_sha256=save_model(model, path))
        found = collect(
            path, own, calibration.rows(), calibration.ids, calibration_root=ranges.calibration_root,
            preprocess_sha256=ranges.preprocess_sha256, min_rows=1, batch_rows=ranges.batch_rows, method=ranges.method, only=touched,
        )  # fmt: skip
    others = tuple(entry for entry in ranges.outliers if entry.tensor not in touched)
    tensors = dict(sorted((ranges.tensors | found.tensors).items()))
    return Equalized(
        model, dataclasses.replace(found, tensors=tensors, dead=ranges.dead, outliers=(*others, *found.outliers), warnings=ranges.warnings)
    )


def _sizes(source: onnx.ModelProto, groups: Iterable[Group], batches: Iterable[Batch]) -> dict[str, np.ndarray]:
    """Largest magnitude of each channel of each group's tensors: (channels,)."""
    axes = {name: axis for group in groups for name, axis in group.tensors.items()}
    sizes: dict[str, np.ndarray] = {}
    for tensors in seen(source, list(axes), batches):
        for name, value in tensors.items():
            size = np.abs(value).max(axis=tuple(place for place in range(value.ndim) if place != axes[name]))
            sizes[name] = np.maximum(sizes[name], size) if name in sizes else size
    return sizes


def _scale(group: Group, sizes: dict[str, np.ndarray]) -> np.ndarray:
    """One scale a channel: its size against its tensor's largest channel, in the tensor where that is most."""
    shares = [sizes[name] / largest for name in group.tensors if (largest := sizes[name].max()) > 0]
    if not shares:
        return np.ones(group.channels)
    scale: np.ndarray = np.maximum(np.max(shares, axis=0).astype(np.float64) ** POWER, LEAST)
    return scale
