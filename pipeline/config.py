"""`params.yaml`: strict, with the nearest known key named when one is unknown. Pipeline side only (pydantic)."""

from __future__ import annotations

import datetime
import difflib
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from pipeline.data_config import DataConfig, HealthConfig, RoleName, RoleSize, SourceConfig
from pipeline.errors import ConfigError
from pipeline.section import PositiveInt, Section
from pipeline.tensors import AxisRange, TensorSpec

Dtype = Literal["float32", "int32", "int64", "uint8", "int8", "bool"]
TOP1 = "top1"
"""The metric that is right or wrong for each row: the largest score of the first output against the label."""
KNOWN_METRICS = (TOP1, "top5", "f1", "spearman")
CLASS_METRICS = KNOWN_METRICS[:3]
LONGEST_WAIVER_DAYS = 92


class InputConfig(Section):
    """`pad`: the value that may fill the named axes after the first, up to a longer row or a warmed size; without it rows must be equal.

    `values` (least, largest) of an integer input: a vocabulary, say `[0, 29999]`, or lengths; a row beyond it is not well.
    """

    shape: tuple[int | str, ...]
    dtype: Dtype = "float32"
    pad: Annotated[float, Field(allow_inf_nan=False)] | None = None
    values: tuple[int, int] | None = None

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
    `equalization`, `adaptation`, `rounding`, `bias_correction`: how weights are fitted on the calibration rows (calibration/rounding/methods.py).
    `method: auto` takes the one whose activations are nearest to float on the search rows. `float_layers`: nodes or torch modules that stay in float.
    `max_drift`: the error's power over the worst output's (0.01 is 20 dB), up to which layers go back to float (calibration/search); null: none do.
    `max_slowdown`: latency over plain INT8's that a target may lose by it. `search_seconds`: after them the best answer so far is taken.
    `qat`: train under fake quantization never, always, or where a scheme does not keep `max_drift` without (`auto`); `training` says how.
    """

    schemes: list[Literal["tensorrt", "cpu"]] = Field(min_length=1)
    method: Literal["auto", "max", "percentile", "entropy", "mse"] = "max"
    float_layers: tuple[str, ...] = ()
    max_drift: Annotated[float, Field(gt=0, lt=1)] | None = None
    max_slowdown: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    search_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 300.0
    min_rows: PositiveInt = 32
    batch_rows: PositiveInt = 32
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


class TargetConfig(Section):
    """What a target's backend is told; a backend refuses what is not its own.

    `compute_capabilities` (tensorrt-rtx): names such as SM89 that one plan is built for. `isa_levels` (openvino-cpu): lesser CPUs that are served
    too, such as AVX2, AVX512_CORE_VNNI. The rest is for GPUs (see `engines/trt.py`, `ort_gpu_options.py`); `plugins` are paths, each
    with its sha256.
    """

    required: bool = False
    compute_capabilities: list[str] | None = None
    isa_levels: list[str] | None = None
    optimization_level: int | None = None
    hardware_compatibility: str | None = None
    workspace_mib: int | None = None
    plugins: dict[str, str] | None = None
    repeatable: bool | None = None
    device: str | None = None
    dla_core: int | None = None
    gpu_fallback: bool | None = None
    cuda_graphs: bool | None = None
    cudnn_conv_algo_search: str | None = None

    def settings(self) -> dict[str, Any]:
        """What the target's backend is told."""
        return self.model_dump(exclude={"required"}, exclude_none=True)


class WarmupConfig(Section):
    """`iterations: auto` finds the smallest number whose first request is steady, in fresh processes.

    `shapes` lists, for a named axis other than the batch, the sizes that are warmed (default: min, opt and max of model.shapes). A step at which
    the runtime fails is tried `retries` times more; `max_rss_mb` (10^6 bytes) is the resident memory that the warm process may reach.
    """

    concurrency: list[PositiveInt] = Field(default=[1], min_length=1)
    batches: list[PositiveInt] = Field(min_length=1)
    shapes: dict[str, Annotated[list[PositiveInt], Field(min_length=1)]] = Field(default={})
    iterations: PositiveInt | Literal["auto"] = "auto"
    max_seconds: Annotated[float, Field(gt=0)] = 30.0
    retries: Annotated[int, Field(ge=0)] = 1
    max_rss_mb: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class GatesConfig(Section):
    """Limits of the release. Latency limits are ratios; `trials` fresh processes a variant, extended to `max_trials`.

    `metric` is `top1`, `top5`, `f1` (macro), `spearman`, or `path/file.py:function` of yours: `metric(outputs, labels)` gives a score a row (N,)
    or one number, higher is better. `max_drop` and `min_reference` are fractions for the first three, and in the metric's own unit otherwise.
    `slices`: "class", and names of data.columns, by which drift is shown apart; `max_slice_drop` is the limit of each (null: shown, not judged).
    `max_ready_ms` (process start to ready), `max_peak_rss_mb` and `max_engine_mb` (10^6 bytes) are judged where they are given.
    `runtimes_agree_db`: SQNR of the outputs that a second runtime must give; `calibration/agree.py` has the reason for the default.
    """

    metric: str = "top1"
    slices: list[str] = Field(default=["class"])
    max_slice_drop: Annotated[float, Field(gt=0, lt=1)] | None = None
    max_ready_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_peak_rss_mb: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_engine_mb: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_drop: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    min_reference: Annotated[float, Field(allow_inf_nan=False)] | None = None
    first_request_over_p50: Annotated[float, Field(gt=1)]
    p99_over_p50: Annotated[float, Field(gt=1)]
    int8_share: Annotated[float, Field(ge=0, le=1)]
    int8_speedup: Annotated[float, Field(gt=0)]
    runtimes_agree_db: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 20.0
    side_confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.999
    trials: PositiveInt = 15
    max_trials: PositiveInt = 30
    requests: Annotated[int, Field(ge=20)] = 100

    @field_validator("metric")
    @classmethod
    def metric_known(cls, metric: str) -> str:
        if metric not in KNOWN_METRICS and not re.fullmatch(r"[^:]+:[^:]+", metric):
            raise ValueError(f"{metric!r} is no metric: {', '.join(KNOWN_METRICS)}, or path/to/file.py:function of your own")
        return metric

    @model_validator(mode="after")
    def fractions(self) -> GatesConfig:
        if self.metric in CLASS_METRICS and not (self.max_drop < 1 and 0 <= (self.min_reference or 0) <= 1):
            raise ValueError(f"gates.max_drop and gates.min_reference are fractions for {self.metric}: between 0 and 1")
        return self

    @model_validator(mode="after")
    def budget(self) -> GatesConfig:
        if self.max_trials < self.trials:
            raise ValueError(f"max_trials {self.max_trials} is smaller than trials {self.trials}")
        return self


class SignConfig(Section):
    """`key`: an elliptic-curve private key in PEM. `development`: made there when missing, and called so in the manifest."""

    key: Annotated[str, Field(min_length=1)]
    development: bool = False


class WaiverConfig(Section):
    """One check of one target that may ship although it does not pass, until `expires`. `signature`: what `qwarm waive` prints."""

    target: str
    check: str
    why: Annotated[str, Field(min_length=10)]
    by: Annotated[str, Field(min_length=2)]
    granted: datetime.date
    expires: datetime.date
    signature: str

    @model_validator(mode="after")
    def ends_soon(self) -> WaiverConfig:
        if not self.granted <= self.expires <= self.granted + datetime.timedelta(days=LONGEST_WAIVER_DAYS):
            raise ValueError(f"a waiver holds for at most {LONGEST_WAIVER_DAYS} days: {self.granted} to {self.expires}")
        return self


class WaiversConfig(Section):
    """`key`: the public key (PEM) of who may grant them, which is not the release's own."""

    key: str | None = None
    entries: list[WaiverConfig] = Field(default=[])

    @model_validator(mode="after")
    def key_given(self) -> WaiversConfig:
        if self.entries and self.key is None:
            raise ValueError("waivers need release.waivers.key: the public key of who may grant them")
        return self


class ReleaseConfig(Section):
    """Without `sign` a bundle is not signed, and hosts refuse it unless told otherwise.

    `card`: a Markdown file of yours on intended use, limits and licence, for the model card. `native_triton`: model repositories for Triton's own
    backends too, which hold the model a second time. `runners`: public keys (PEM) by the name of a runner; once there is one, a release takes
    only evidence that one of them signed. `no_worse`: refuse where a verdict or a figure is shown to be worse than in the last bundle of this name.
    """

    name: str
    version: str
    undecided: Literal["refuse", "leave-out"] = "leave-out"
    sign: SignConfig | None = None
    waivers: WaiversConfig = WaiversConfig()
    card: str | None = None
    native_triton: bool = True
    runners: dict[str, str] = Field(default={})
    no_worse: bool = False

    @field_validator("name")
    @classmethod
    def safe_name(cls, name: str) -> str:
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,63}", name):
            raise ValueError(f"{name!r} is no release name: lower-case letters, digits, - and _, at most 64")
        return name

    @field_validator("version", mode="before")
    @classmethod
    def semantic(cls, version: Any) -> Any:
        if not isinstance(version, str) or not re.fullmatch(r"\d+\.\d+\.\d+([-+][0-9A-Za-z.+-]+)?", version):
            raise ValueError(f"{version!r} is no semantic version such as 1.2.0 (quote it in YAML)")
        return version


class Config(Section):
    """The whole of params.yaml."""

    model: ModelConfig
    data: DataConfig
    quantize: QuantizeConfig
    targets: dict[str, TargetConfig] = Field(min_length=1)
    warmup: WarmupConfig
    gates: GatesConfig
    release: ReleaseConfig

    @model_validator(mode="after")
    def sections_fit(self) -> Config:
        axis = self.model.batch_axis
        ladders = {"batches": (axis, self.warmup.batches), **{f"shapes.{name}": (name, sizes) for name, sizes in self.warmup.shapes.items()}}
        if axis in self.warmup.shapes:
            raise ValueError(f"warmup.shapes.{axis} is the batch axis: its sizes are warmup.batches")
        for key, (name, sizes) in ladders.items():
            if name not in self.model.shapes:
                raise ValueError(f"warmup.{key} is no axis of model.shapes: {sorted(self.model.shapes)}")
            allowed = self.model.shapes[name]
            if beyond := [size for size in sizes if not allowed.min <= size <= allowed.max]:
                raise ValueError(f"warmup.{key} {beyond} are beyond model.shapes.{name}: {allowed.min} to {allowed.max}")
        if self.gates.metric in CLASS_METRICS and self.data.labels is None:
            raise ValueError(
                f"gates.metric {self.gates.metric} needs class names: set data.labels, or name a metric of your own (path/to/file.py:function)"
            )
        columns = sorted(set(self.data.columns) - {"label"})
        if unknown := [name for name in self.gates.slices if name != "class" and name not in columns]:
            raise ValueError(f"gates.slices {unknown} are no names of data.columns ({', '.join(columns)}), and not class")
        if isinstance(size := self.data.roles["calibration"], int) and size < self.quantize.min_rows:
            raise ValueError(f"data.roles.calibration is {size}, fewer than quantize.min_rows = {self.quantize.min_rows}")
        return self


def _known_keys(location: tuple[int | str, ...]) -> list[str]:
    model: Any = Config
    for part in location:
        fields = getattr(model, "model_fields", {})
        annotation = fields[part].annotation if part in fields else None
        arguments = getattr(annotation, "__args__", ())
        model = next((a for a in arguments if isinstance(a, type) and issubclass(a, Section)), annotation) if annotation is not None else model
    return list(getattr(model, "model_fields", {}))


def _explain(problem: Any, path: str) -> ConfigError:
    location = tuple(problem["loc"])
    dotted = ".".join(str(part) for part in location) or "the whole file"
    if problem["type"] == "extra_forbidden":
        known = _known_keys(location[:-1])
        near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
        return ConfigError(
            f"Unknown key {dotted!r}",
            where=path,
            expected=f"did you mean {near[0]!r}?" if near else f"one of {', '.join(known)}",
            got=str(location[-1]),
            next=f"correct {path} and run `dvc repro` again",
        )
    got = "nothing" if problem["type"] == "missing" else repr(problem.get("input"))[:120]
    return ConfigError(
        f"A parameter does not fit: {dotted}", where=path, expected=problem["msg"], got=got, next=f"correct {path} and run `dvc repro` again"
    )


class _Loader(yaml.SafeLoader):
    """YAML takes the last of two equal keys in silence; DVC refuses the file."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise yaml.constructor.ConstructorError(None, None, f"{', '.join(twice)} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


def load_config(path: str | Path = "params.yaml") -> Config:
    """Read and check params.yaml; raises ConfigError naming the key, what it must be and the nearest known key."""
    try:
        data = yaml.load(Path(path).read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError as error:
        raise ConfigError(
            "There is no params.yaml",
            where=str(Path(path).absolute()),
            expected="the pipeline's parameters",
            got="no file",
            next="run in the folder that holds params.yaml",
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError("params.yaml is not YAML", where=str(path), expected="YAML", got=str(error)) from error
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        # An unknown key is the likeliest cause of a missing one: name it first.
        problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
        raise _explain(problems[0], str(path)) from error


__all__ = [
    "AxisConfig", "Config", "DataConfig", "GatesConfig", "HealthConfig", "InputConfig", "ModelConfig", "QuantizeConfig", "ReleaseConfig", "RoleName",
    "RoleSize", "Section", "SignConfig", "SourceConfig", "TargetConfig", "TrainingConfig", "WarmupConfig", "load_config",
]  # fmt: skip
