"""Whether a Q/DQ graph holds the weights that were fitted, and these are still the trained network's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from calibration.rounding.reconstruct import MOST_MOVED, Rounded
from calibration.scheme import broken

if TYPE_CHECKING:
    import onnx

NOT_FITTED: Mapping[str, Rounded] = MappingProxyType({})


def verify_fitted(dequantize: onnx.NodeProto, weight: np.ndarray, codes: np.ndarray, scale: np.ndarray, axis: int, fitted: Rounded) -> None:
    """Raise QuantizeError unless `codes` and `scale` (channels,) along `axis` are what was fitted, within `MOST_MOVED` of the float `weight`."""
    if not np.array_equal(codes, fitted.codes) or not np.array_equal(scale, fitted.scale):
        raise broken(dequantize, "the codes and scales that were fitted", "others")
    wide = scale.reshape([-1 if place == axis % weight.ndim else 1 for place in range(weight.ndim)])
    distance = float(np.linalg.norm(weight - codes * wide)) / max(float(np.linalg.norm(weight)), float(np.finfo(np.float32).tiny))
    if not distance <= MOST_MOVED:
        raise broken(dequantize, f"weights within {MOST_MOVED:g} of the norm of the float ones", f"{distance:.3g} away")
