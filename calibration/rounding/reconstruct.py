"""Layer by layer through a Q/DQ graph: codes and biases that fit the quantized activations which each layer really meets."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from threadpoolctl import threadpool_limits

from calibration.rounding import solve
from calibration.rounding.layers import Layer
from calibration.rounding.methods import Calibration, Methods
from calibration.rounding.moments import Moments
from calibration.rounding.replay import Replay
from calibration.rounding.target import adapted, damping
from calibration.rounding.twin import FLOAT, INT8, Twin, build, has_subgraphs
from pipeline.tensors import AxisRange

if TYPE_CHECKING:
    import onnx

SAFE_SCALE = 1.0 / solve.LEVELS
"""For a channel of zeros."""
DAMPINGS = (0.01, 0.1, 1.0, 10.0, 100.0)
"""Of the mean second moment, added to the diagonal, as GPTQ does: the first with which a layer's moments can be inverted. Sums of float32 hold an
input of a large mean and little variance only so well."""
SWEEPS = 4
FEWEST, MOST, EACH = 4096, 8192, 32
"""Output positions that a layer is fitted on: `EACH` an input of a row, within these bounds, and never fewer than 2 an input. Twice as many gained
nothing on EfficientNet-Lite0."""
SPARE = 64
"""A layer with `SPARE` times more positions than it is fitted on takes them from every fourth batch."""
MOST_MOVED = 0.25
"""Distance of a layer's weights from the trained ones, over the norm of these. To the nearest code it is near 0.01."""
INT32_BIAS = 2.0002 / (2**32 - 2)
"""A weight scale times the input's of at least this share of the bias keeps the bias within half of int32's range."""


@dataclasses.dataclass(frozen=True)
class Rounded:
    """One layer's weight in 8 bits: int8 `codes` in the weight's own shape, `scale` (channels,) float32, and `bias` (channels,) float64."""

    codes: np.ndarray
    scale: np.ndarray
    bias: np.ndarray | None


def reconstruct(
    source: onnx.ModelProto,
    quantized: onnx.ModelProto,
    calibration: Calibration,
    batch: AxisRange,
    *,
    int32_bias: bool,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> dict[str, Rounded]:
    """New codes, scales and biases by node name, for every layer whose weight is a constant of its own.

    Layers are taken in graph order, and each is fitted on the activations that the already rounded ones before it give, to the outputs of
    the float graph `source`: sequential reconstruction, so errors are made up for instead of added up. With bias correction
    a layer's mean error is zero over the calibration rows (Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias
    Correction", ICCV 2019, their empirical variant). A layer that would move farther from its trained weights than `MOST_MOVED` is rounded to
    the nearest instead. `batch`: the sizes that the graphs take. `int32_bias`: scales leave room for a bias in int32. Equal inputs give equal
    codes. Costs a few float passes over the rows and one factorization a layer; memory holds a layer's moments and `replay.KEPT_BYTES`,
    whatever the number of rows.
    """
    if has_subgraphs(source) or has_subgraphs(quantized):
        return {}
    twin = build(source, quantized)
    replay = Replay(twin, calibration, batch)
    done: dict[str, Rounded] = {}
    for number, (layer, end) in enumerate(zip(twin.layers, twin.ends, strict=True)):
        progress(number, len(twin.layers), layer.name)
        with threadpool_limits(1, "blas"):  # whose sums would otherwise depend on the number of cores
            done[layer.name] = _fitted(replay, layer, number, calibration.methods, int32_bias)
        _apply(twin, layer, done[layer.name])
        replay.advance(end)
    return done


def _fitted(replay: Replay, layer: Layer, seed: int, methods: Methods, int32_bias: bool) -> Rounded:
    """A layer's weight block by block: no row of it depends on another."""
    weight = replay.twin.constants[f"{FLOAT}{layer.weight[0]}"]
    bias = replay.twin.constants[f"{FLOAT}{layer.bias[0]}"] if layer.bias else None
    blocks = layer.blocks(weight.shape)
    found = []
    for rows in blocks:
        part, own = (weight, bias) if len(blocks) == 1 else (layer.of_rows(weight, rows), None if bias is None else bias[rows])
        halves = _moments(replay, layer, layer.matrix(weight).shape, seed, rows)
        rounded = _rounded(layer, part, own, halves, methods, int32_bias)
        if moved(layer, part, rounded) > MOST_MOVED:
            rounded = _rounded(layer, part, own, halves, dataclasses.replace(methods, adaptation=False, rounding="nearest"), int32_bias)
        found.append(rounded)
    if len(found) == 1:
        return found[0]
    codes = np.concatenate([one.codes for one in found], axis=0 if layer.rows_first else 1)
    biases = [one.bias for one in found if one.bias is not None]
    return Rounded(codes, np.concatenate([one.scale for one in found]), np.concatenate(biases) if biases else None)


def moved(layer: Layer, weight: np.ndarray, rounded: Rounded) -> float:
    """How far `rounded` is from the float `weight`: the norm of the difference over that of the weight."""
    return float(np.linalg.norm(_dequantized(layer, rounded) - weight) / max(float(np.linalg.norm(weight)), float(np.finfo(np.float32).tiny)))


def _dequantized(layer: Layer, rounded: Rounded) -> np.ndarray:
    return layer.weight_of(layer.matrix(rounded.codes) * rounded.scale.reshape(layer.groups, -1, 1), rounded.codes.shape)


def _moments(replay: Replay, layer: Layer, shape: tuple[int, int, int], seed: int, rows: slice) -> tuple[Moments, Moments]:
    """Of the batches at even and at odd places, with the outputs `rows` of a layer whose matrix has this `shape`."""
    count = replay.count
    size = shape[0], len(range(shape[1])[rows]), shape[2]
    halves = Moments.zero(*size), Moments.zero(*size)
    random = np.random.default_rng(seed)
    most = max(min(max(EACH * shape[2], FEWEST), MOST), 2 * shape[2])
    names, batches = (f"{FLOAT}{layer.output}", f"{INT8}{layer.codes}"), iter(replay.batches())
    first = next(replay.computed(names, itertools.islice(batches, 1)))
    result = first[names[0]]
    inside = result.size // (shape[0] * shape[1]) // len(result)
    step = 4 if inside * count >= SPARE * most else 1
    each = -(-most * step // count)
    rest = replay.computed(names, itertools.islice(batches, step - 1, None, step))
    for place, tensors in enumerate(itertools.chain([first], rest)):
        at = layer.positions(tensors[names[0]], each, random)
        halves[place % 2].add(layer.patches_at(tensors[names[1]], at), layer.outputs_at(tensors[names[0]], at, rows))
    return halves


def _rounded(
    layer: Layer, weight: np.ndarray, bias: np.ndarray | None, halves: tuple[Moments, Moments], methods: Methods, int32_bias: bool
) -> Rounded:
    matrix, moments = layer.matrix(weight).astype(np.float64), halves[0] + halves[1]
    centred = bias is not None and methods.bias_correction
    hessian = moments.covariance(centred)
    target = adapted(matrix, halves, centred) if methods.adaptation else matrix
    target = np.where(matrix.any(axis=-1, keepdims=True), target, 0.0)  # a channel of zeros stays one
    scale = solve.largest_scale(target, SAFE_SCALE)
    if bias is not None and int32_bias:
        largest = np.maximum(np.abs(moments.bias(target)) if centred else 0.0, np.abs(bias).reshape(scale.shape))
        scale = np.maximum(scale, largest * INT32_BIAS / layer.step)
    scale = scale.astype(np.float32).astype(np.float64)
    if methods.rounding == "compensated":
        damped, inverse = _invertible(hessian, moments.power)
        codes = solve.descended(solve.error_compensated(target, scale, inverse), target, scale, damped, SWEEPS)
    else:
        codes = solve.nearest(target, scale)
    if centred:
        bias = moments.bias(codes * scale[..., None]).ravel()
    return Rounded(layer.weight_of(codes.astype(np.int8), weight.shape), scale.ravel().astype(np.float32), bias)


def _invertible(hessian: np.ndarray, power: np.ndarray) -> tuple[np.ndarray, solve.Factor]:
    """`hessian` with the least of `DAMPINGS` that makes it positive definite, and the factor of its inverse."""
    for strength in DAMPINGS:
        damped = hessian + damping(hessian, power, strength)
        with contextlib.suppress(np.linalg.LinAlgError):
            return damped, solve.factor(damped)
    raise np.linalg.LinAlgError(f"second moments have no inverse even with {DAMPINGS[-1]:g} of their mean on the diagonal")


def _apply(twin: Twin, layer: Layer, rounded: Rounded) -> None:
    """Let the Q/DQ side of the twin run with the new codes."""
    twin.constants[f"{INT8}{layer.weight[1]}"] = lambda: _dequantized(layer, rounded)
    if layer.bias is not None and (bias := rounded.bias) is not None:
        twin.constants[f"{INT8}{layer.bias[1]}"] = lambda: bias.astype(np.float32)
