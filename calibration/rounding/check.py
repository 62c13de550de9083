"""Whether a Q/DQ graph holds the weights that were fitted, and these are still the trained network's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from calibration.rounding.constants import constants_of
from calibration.rounding.layers import layers_of
from calibration.rounding.reconstruct import MOST_MOVED, Rounded
from calibration.rounding.split import remembered
from calibration.scheme import broken

if TYPE_CHECKING:
    import onnx

COARSE_DB = 25.0
"""Of a channel's weights. To the nearest of 254 codes it is 35 to 45 dB."""
NEGLIGIBLE = 1e-6
"""Channels of less than this part of the largest one's power do not count."""
NOT_FITTED: Mapping[str, Rounded] = MappingProxyType({})


def verify_fitted(dequantize: onnx.NodeProto, weight: np.ndarray, codes: np.ndarray, scale: np.ndarray, axis: int, fitted: Rounded) -> None:
    """Raise QuantizeError unless `codes` and `scale` (channels,) along `axis` are what was fitted, within `MOST_MOVED` of the float `weight`."""
    if not np.array_equal(codes, fitted.codes) or not np.array_equal(scale, fitted.scale):
        raise broken(dequantize, "the codes and scales that were fitted", "others")
    wide = scale.reshape([-1 if place == axis % weight.ndim else 1 for place in range(weight.ndim)])
    distance = float(np.linalg.norm(weight - codes * wide)) / max(float(np.linalg.norm(weight)), float(np.finfo(np.float32).tiny))
    if not distance <= MOST_MOVED:
        raise broken(dequantize, f"weights within {MOST_MOVED:g} of the norm of the float ones", f"{distance:.3g} away")


def coarse_layers(source: onnx.ModelProto, quantized: onnx.ModelProto, least_db: float = COARSE_DB) -> list[tuple[str, float]]:
    """Layers whose 8-bit weights are not fine enough in some channel: name and SQNR of its worst tenth of channels, in dB, the worst first.

    A scale for a whole tensor leaves the channels of small weights a few codes, or none: the usual cause of a per-tensor build's loss.
    """
    source = remembered(quantized, source)
    floats, (values, _) = constants_of(source)[0], constants_of(quantized)
    found = []
    for layer in layers_of(source, quantized):
        weight, got = (layer.matrix(array).astype(np.float64) for array in (floats[layer.weight[0]], values[layer.weight[1]]))
        signal, noise = np.square(weight).sum(axis=-1).ravel(), np.square(got - weight).sum(axis=-1).ravel()
        heard = signal > signal.max() * NEGLIGIBLE
        ratios = 10 * np.log10(signal[heard] / np.maximum(noise[heard], np.finfo(np.float64).tiny))
        if (db := float(np.quantile(ratios, 0.1))) < least_db:
            found.append((layer.name, db))
    return sorted(found, key=lambda entry: entry[1])
