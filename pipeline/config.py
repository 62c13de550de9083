"""`params.yaml`: strict, with the nearest known key named when one is unknown. Pipeline side only (pydantic)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from pipeline.config_errors import explain
from pipeline.data_config import DataConfig, HealthConfig, RoleName, RoleSize, SourceConfig
from pipeline.errors import ConfigError
from pipeline.model_config import AxisConfig, InputConfig, ModelConfig, QuantizeConfig, TrainingConfig
from pipeline.nearest import nearest
from pipeline.release_config import CLASS_METRICS, GatesConfig, ReleaseConfig, SignConfig
from pipeline.section import PositiveInt, Section


class TargetConfig(Section):
    """What a target's backend is told; a backend refuses what is not its own.

    `compute_capabilities` (tensorrt-rtx): names such as SM89 that one plan is built for. `isa_levels` (openvino-cpu): lesser CPUs that are served
    too, such as AVX2, AVX512_CORE_VNNI. `threads` (targets of the CPU): of one request, by default all cores; where that takes less than a
    millisecond, one may be quicker. The rest is for GPUs (see `engines/trt.py`, `ort_gpu_options.py`); `plugins` are paths, each
    with its sha256.
    """

    required: bool = False
    compute_capabilities: list[str] | None = None
    isa_levels: list[str] | None = None
    threads: int | None = None
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
    """`iterations: auto` finds the shortest plan behind which every size at every concurrency is hot, in fresh processes (warmup/find.py), for
    about `search_seconds` (some longer where no plan is hot by then); a number runs every one so many times.

    `shapes` lists, for a named axis other than the batch, the sizes that are warmed (default: min, opt and max of model.shapes). A step at which
    the runtime fails is tried `retries` times more; `max_rss_mb` (10^6 bytes) is the resident memory that the warm process may reach;
    above `max_power_w` (processor packages and GPUs) or `max_celsius` the warm-up waits between requests.
    """

    concurrency: list[PositiveInt] = Field(default=[1], min_length=1)
    batches: list[PositiveInt] = Field(min_length=1)
    shapes: dict[str, Annotated[list[PositiveInt], Field(min_length=1)]] = Field(default={})
    iterations: PositiveInt | Literal["auto"] = "auto"
    max_seconds: Annotated[float, Field(gt=0)] = 30.0
    retries: Annotated[int, Field(ge=0)] = 1
    max_rss_mb: Annotated[float, Field(gt=0)] | None = None
    max_power_w: Annotated[float, Field(gt=0)] | None = None
    max_celsius: Annotated[float, Field(gt=0)] | None = None
    search_seconds: Annotated[float, Field(ge=0)] = 90.0


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
        for waiver in self.release.waivers.entries:
            if waiver.target not in self.targets:
                near = nearest(waiver.target, self.targets)
                raise ValueError(f"release.waivers has one for {waiver.target!r}, which is no name under targets and would do nothing: {near}")
        if isinstance(size := self.data.roles["calibration"], int) and size < self.quantize.min_rows:
            raise ValueError(f"data.roles.calibration is {size}, fewer than quantize.min_rows = {self.quantize.min_rows}")
        return self


class _Loader(yaml.SafeLoader):
    """YAML takes the last of two equal keys in silence; DVC refuses the file. And 1e-3 is a number, as in YAML 1.2 that DVC reads."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise yaml.constructor.ConstructorError(None, None, f"{', '.join(twice)} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789"))


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
        raise explain(error, data, str(path), Config) from error


__all__ = [
    "AxisConfig", "Config", "DataConfig", "GatesConfig", "HealthConfig", "InputConfig", "ModelConfig", "QuantizeConfig", "ReleaseConfig", "RoleName",
    "RoleSize", "Section", "SignConfig", "SourceConfig", "TargetConfig", "TrainingConfig", "WarmupConfig", "load_config",
]  # fmt: skip
