"""The section `data` of params.yaml: where rows come from, what each column is, and what happens to a row that is not well."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.firewall_config import FirewallConfig
from pipeline.section import PositiveInt, Section

RoleName = Literal["train", "calibration", "search", "warmup", "validation"]
RoleSize = Annotated[int, Field(gt=0)] | Annotated[float, Field(gt=0, lt=1)] | Literal["rest"]
"""A count of rows, a share of all rows, or what the other roles leave. 1.0 is none of them: it would be read as one row."""
SourceKind = Literal["parquet", "arrow", "csv", "json", "imagefolder", "webdataset", "npz", "hub"]
Severe = Literal["refuse", "quarantine"]
"""For a row that cannot be used: `refuse` ends the run and names it; `quarantine` leaves it out, counts it and lists it."""
Mild = Literal["refuse", "quarantine", "accept"]
"""For a row that can be used: `accept` keeps it, counts it and lists it."""


class SourceConfig(Section):
    """A file, a folder or a glob of one kind; or, for `hub`, a data set by `name` at a pinned `revision`.

    `config` and `split` of a hub data set are those of its card; `files` (patterns) takes files instead, without the card.
    """

    kind: SourceKind
    path: str | None = None
    name: str | None = None
    revision: str | None = None
    config: str | None = None
    split: str | None = None
    files: Annotated[list[str], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def complete(self) -> SourceConfig:
        if self.kind != "hub":
            given = [key for key in ("name", "revision", "config", "split", "files") if getattr(self, key) is not None]
            if not self.path or given:
                raise ValueError(f"a source of kind {self.kind} has a path and no {', '.join(given) or 'other key'}")
            return self
        if not self.name or self.path is not None:
            raise ValueError("a source of kind hub has a name, such as ylecun/mnist, and no path")
        if self.revision is None or not re.fullmatch(r"[0-9a-f]{40}", self.revision):
            raise ValueError(f"revision {self.revision!r} is no commit of 40 hexadecimal digits: a branch or tag may come to mean other rows")
        if self.files is not None and (self.config is not None or self.split is not None):
            raise ValueError("files are taken as they are: config and split have no meaning beside them")
        return self


class HealthConfig(Section):
    """What to do with a row that has an anomaly: one key a kind, and no other kind exists.

    The first group are rows that cannot be used as they are. The second can: what `accept` does to them is the declared decode path.
    """

    undecodable: Severe = "refuse"
    """A picture that is no complete picture: truncated, empty, a web page, or a pixel format without a declared way."""
    too_large: Severe = "refuse"
    """A picture of more than `data.max_pixels`."""
    missing_value: Severe = "refuse"
    wrong_type: Severe = "refuse"
    wrong_shape: Severe = "refuse"
    """A ragged array, or a shape that `model.inputs` does not have."""
    non_finite: Severe = "refuse"
    """NaN or infinity after preprocessing, or as a label."""
    out_of_range: Severe = "refuse"
    """A value outside `model.inputs.X.values`: a token beyond the vocabulary, a negative length."""
    unknown_label: Severe = "refuse"
    conflicting_label: Severe = "refuse"
    """Equal content with another class than in a row before: `quarantine` leaves the later row out."""
    conflicting_group: Severe = "refuse"
    """Equal content in another group than in a row before: `quarantine` leaves the later row out."""
    missing_group: Severe = "refuse"
    preprocessing: Severe = "refuse"
    """`data.preprocess` raised an error."""

    constant: Mild = "accept"
    """Every array of the row holds one value throughout. When all rows are so, the source is refused."""
    exif_rotation: Mild = "accept"
    """Turned upright."""
    greyscale: Mild = "accept"
    """Grey among pictures in colour: stays (H, W)."""
    cmyk: Mild = "accept"
    """Converted to RGB, without a colour profile."""
    palette: Mild = "accept"
    alpha: Mild = "accept"
    """The alpha channel is dropped."""
    sixteen_bit: Mild = "accept"
    """Scaled to 8 bits."""
    several_frames: Mild = "accept"
    """An animation or a file of several pages: the first frame is taken."""
    misnamed: Mild = "accept"
    """The file's name says another format than its content."""
    not_a_picture: Mild = "accept"
    """A file in a folder of pictures that is not named like one: it is not read."""


class DataConfig(Section):
    """`columns` maps the names that `prepare(raw)` receives, and `label`, to columns of the source; `write` (optional) makes the source.

    With `labels` (class names in the order of the first output's scores) a label is a class and roles are stratified by it. Without,
    `label` may be any scalar, for a metric of your own, or absent. `id` is a column that names the rows, `group` one whose rows belong
    together (a patient, a video). A picture of more than `max_pixels` is not decoded. A role is a number of rows drawn from `source`, or
    a source of its own.
    """

    source: SourceConfig | None = None
    columns: dict[str, str]
    id: str | None = None
    group: str | None = None
    preprocess: str
    labels: str | None = None
    write: str | None = None
    roles: dict[RoleName, RoleSize | SourceConfig]
    seed: int = 0
    firewall: FirewallConfig = FirewallConfig()
    health: HealthConfig = HealthConfig()
    max_pixels: PositiveInt = 100_000_000

    @field_validator("roles")
    @classmethod
    def complete(cls, roles: dict[str, Any]) -> dict[str, Any]:
        if missing := [role for role in ("calibration", "search", "warmup", "validation") if role not in roles]:
            raise ValueError(f"roles {missing} are missing: each stage needs its own rows")
        if sum(size == "rest" for size in roles.values()) > 1:
            raise ValueError("only one role can take the rest")
        return roles

    @model_validator(mode="after")
    def drawn_from_something(self) -> DataConfig:
        drawn = [role for role, size in self.roles.items() if not isinstance(size, SourceConfig)]
        if drawn and self.source is None:
            raise ValueError(f"data.source is missing: the roles {drawn} are drawn from it")
        if not drawn and self.source is not None:
            raise ValueError("data.source is used by no role: each has a source of its own")
        return self

    @model_validator(mode="after")
    def pairs_of_roles_that_exist(self) -> DataConfig:
        for pair in self.firewall.pairs:
            if missing := sorted(set(pair.split("/")) - set(self.roles)):
                raise ValueError(f"data.firewall.pairs: {pair!r} would be without effect, because data.roles has no {' and no '.join(missing)}")
        return self

    @model_validator(mode="after")
    def labelled(self) -> DataConfig:
        if not set(self.columns) - {"label"}:
            raise ValueError("data.columns must map at least one name besides `label`: what data.preprocess receives")
        if self.labels is not None and "label" not in self.columns:
            raise ValueError("data.columns must map `label`, because data.labels names classes")
        return self
