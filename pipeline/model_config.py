"""The sections `model` and `quantize` of params.yaml."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipeline.section import Lax, PositiveInt, Section
from pipeline.tensors import AxisRange, TensorSpec

Dtype = Literal["float32", "int32", "int64", "uint8", "int8", "bool"]


class InputConfig(Section):
    """`pad`: the value that may fill the named axes after the first, up to a longer row or a warmed size; without it rows must be equal.

    `values` (least, largest) of an integer input: a vocabulary, say `[0, 29999]`, or lengths; a row beyond it is not well.
    """

    shape: Annotated[tuple[int | str, ...], Lax]
    dtype: Dtype = "float32"
    pad: float | None = None
    values: Annotated[tuple[int, int], Lax] | None = None

    @model_validator(mode="after")
    def values_ordered(self) -> InputConfig:
        if self.values is None:
            return self
        if self.dtype == "float32":
            raise ValueError("values are for an integer input: a vocabulary or lengths")
        low, high = self.values
        if low > high:
            raise ValueError(f"values [{low}, {high}] hold nothing: the least comes first")
        if self.pad is not None and not low <= self.pad <= high:
            raise ValueError(f"pad {self.pad:g} is outside values [{low}, {high}]")
        return self

    @model_validator(mode="after")
    def pad_fits(self) -> InputConfig:
        if self.pad is None:
            return self
        if not any(isinstance(axis, str) for axis in self.shape[1:]):
            raise ValueError("pad has nothing to fill: no axis after the first is named")
        if self.dtype != "float32":
            limits = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**53), 2**53), "uint8": (0, 255), "int8": (-128, 127), "bool": (0, 1)}
            low, high = limits[self.dtype]
            if not self.pad.is_integer() or not low <= self.pad <= high:
                raise ValueError(f"pad {self.pad} is no value of {self.dtype}")
        return self


class AxisConfig(Section):
    min: PositiveInt
    opt: PositiveInt
    max: PositiveInt

    @model_validator(mode="after")
    def ordered(self) -> AxisConfig:
        if not self.min <= self.opt <= self.max:
            raise ValueError(f"min <= opt <= max does not hold: {self.min}, {self.opt}, {self.max}")
        return self


class ModelConfig(Section):
    """`factory` builds the float torch module; `train` (optional) writes `checkpoint` from the train role."""

    factory: str
    checkpoint: str
    train: str | None = None
    inputs: dict[str, InputConfig]
    outputs: list[str]
    shapes: dict[str, AxisConfig]
    seed: int = 0

    @model_validator(mode="after")
    def axes_declared(self) -> ModelConfig:
        if not self.inputs or not self.outputs:
            raise ValueError("at least one input and one output are needed")
        first = {spec.shape[0] if spec.shape else None for spec in self.inputs.values()}
        if len(first) != 1 or not isinstance(next(iter(first)), str):
            raise ValueError("the first axis of every input must be one named batch axis")
        named = {axis for spec in self.inputs.values() for axis in spec.shape if isinstance(axis, str)}
        if missing := sorted(named - set(self.shapes)):
            raise ValueError(f"axes {missing} are used in model.inputs and have no range in model.shapes")
        if unused := sorted(set(self.shapes) - named):
            raise ValueError(f"axes {unused} in model.shapes are used by no input")
        return self

    @property
    def batch_axis(self) -> str:
        """Name of the first axis of every input."""
        return str(next(iter(self.inputs.values())).shape[0])

    def input_specs(self) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(name, spec.dtype, tuple(spec.shape), spec.pad) for name, spec in self.inputs.items())

    def value_ranges(self) -> dict[str, tuple[int, int]]:
        """Least and largest value of each input that declares them."""
        return {name: spec.values for name, spec in self.inputs.items() if spec.values is not None}

    def axis_ranges(self) -> dict[str, AxisRange]:
        return {name: AxisRange(axis.min, axis.opt, axis.max) for name, axis in self.shapes.items()}


class TrainingConfig(Section):
    """How `quantize.qat` trains (calibration/qat): at most `epochs` over at most `rows` rows of the role `train`, `batch_rows` at a time.

    `learning_rate`: how far a step may move a layer's output, over how far rounding its weights does; a cosine takes it to zero (qat/adam.py);
    `patience`: epochs without a better SQNR on the search rows that end it.
    """

    epochs: PositiveInt = 20
    learning_rate: Annotated[float, Field(gt=0, le=100)] = 0.005
    batch_rows: PositiveInt = 32
    rows: PositiveInt = 2048
    patience: PositiveInt = 5
    seed: Annotated[int, Field(ge=0)] = 0


class QuantizeConfig(Section):
    """`method`: how a range follows from the values seen (calibration/range_methods.py); `max` is all of them.

    `min_rows`: fewer calibration rows are refused. `batch_rows`: rows a calibration batch.
    `splitting`, `equalization`, `adaptation`, `rounding`, `bias_correction`: how weights are fitted on the calibration rows
    (calibration/rounding/methods.py).
    `method: auto` takes the one whose activations are nearest to float on the search rows. `float_layers`: nodes or torch modules that stay in float.
    `max_drift`: the error's power over the worst output's (0.01 is 20 dB), up to which layers go back to float (calibration/search); null: none do.
    `max_slowdown`: latency over plain INT8's that a target may lose by it. `search_seconds`: after them the best answer so far is taken.
    `qat`: train under fake quantization never, always, or where a scheme does not keep `max_drift` without (`auto`); `training` says how.
    """

    schemes: list[Literal["tensorrt", "cpu"]] = Field(min_length=1)
    method: Literal["auto", "max", "percentile", "entropy", "mse"] = "max"
    float_layers: Annotated[tuple[str, ...], Lax] = ()
    max_drift: Annotated[float, Field(gt=0, lt=1)] | None = None
    max_slowdown: Annotated[float, Field(ge=1)] | None = None
    search_seconds: Annotated[float, Field(ge=0)] = 300.0
    min_rows: PositiveInt = 32
    batch_rows: PositiveInt = 32
    splitting: bool = True
    equalization: bool = True
    adaptation: bool = True
    rounding: Literal["compensated", "nearest"] = "compensated"
    bias_correction: bool = True
    qat: Literal["never", "auto", "always"] = "never"
    training: TrainingConfig = TrainingConfig()

    @model_validator(mode="after")
    def qat_decides(self) -> QuantizeConfig:
        if self.qat == "auto" and self.max_drift is None:
            raise ValueError("qat: auto trains where max_drift is not kept: set quantize.max_drift, or qat: never or always")
        return self

    @property
    def methods(self) -> tuple[str, ...]:
        """The range methods that may be taken, one for anything but `auto`; the first is a good one where nothing is chosen."""
        return ("mse", "percentile", "entropy", "max") if self.method == "auto" else (self.method,)
