"""The sections `gates` and `release` of params.yaml."""

from __future__ import annotations

import datetime
import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.section import Lax, PositiveInt, Section

TOP1 = "top1"
"""The metric that is right or wrong for each row: the largest score of the first output against the label."""
KNOWN_METRICS = (TOP1, "top5", "f1", "spearman")
CLASS_METRICS = KNOWN_METRICS[:3]
LONGEST_WAIVER_DAYS = 92


class GatesConfig(Section):
    """Limits of the release. Latency limits are ratios; `trials` fresh processes a variant, extended to `max_trials`.

    `metric` is `top1`, `top5`, `f1` (macro), `spearman`, or `path/file.py:function` of yours: `metric(outputs, labels)` gives a score a row (N,)
    or one number, higher is better. `max_drop`, `max_slice_drop` and `min_reference` are fractions for the first three, and in the metric's own
    unit otherwise. `slices`: "class", and names of data.columns, by which drift is shown apart; `max_slice_drop` is the limit of each (null:
    shown, not judged).
    `max_ready_ms` (process start to ready), `max_peak_rss_mb` and `max_engine_mb` (10^6 bytes) are judged where they are given.
    `runtimes_agree_db`: SQNR of the outputs that a second runtime must give; `calibration/agree.py` has the reason for the default.
    `rebuild_agree_db`: the same of a second build by the same runtime, which may choose other kernels; null where a build takes too long.
    """

    metric: str = TOP1
    slices: list[str] = Field(default=["class"])
    max_slice_drop: Annotated[float, Field(gt=0)] | None = None
    max_ready_ms: Annotated[float, Field(gt=0)] | None = None
    max_peak_rss_mb: Annotated[float, Field(gt=0)] | None = None
    max_engine_mb: Annotated[float, Field(gt=0)] | None = None
    max_drop: Annotated[float, Field(gt=0)]
    min_reference: float | None = None
    first_request_over_p50: Annotated[float, Field(gt=1)]
    p99_over_p50: Annotated[float, Field(gt=1)]
    int8_share: Annotated[float, Field(ge=0, le=1)]
    int8_speedup: Annotated[float, Field(gt=0)]
    runtimes_agree_db: Annotated[float, Field(gt=0)] = 20.0
    rebuild_agree_db: Annotated[float, Field(gt=0)] | None = 20.0
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
        if self.metric in CLASS_METRICS and not (self.max_drop < 1 and (self.max_slice_drop or 0) < 1 and 0 <= (self.min_reference or 0) <= 1):
            raise ValueError(f"gates.max_drop, gates.max_slice_drop and gates.min_reference are fractions for {self.metric}: between 0 and 1")
        return self

    @model_validator(mode="after")
    def budget(self) -> GatesConfig:
        if self.max_trials < self.trials:
            raise ValueError(f"max_trials {self.max_trials} is smaller than trials {self.trials}")
        return self


class SignConfig(Section):
    """`key`: an elliptic-curve private key in PEM. `development`: made there when missing, and called so in the manifest.

    `keyless: true` instead of a key: by the identity that a CI gives its job, through Sigstore, where there is a network. `trust_config`: a JSON
    file that names another Sigstore than the public one.
    """

    key: Annotated[str, Field(min_length=1)] | None = None
    development: bool = False
    keyless: bool = False
    trust_config: str | None = None

    @model_validator(mode="after")
    def one_way(self) -> SignConfig:
        if (self.key is None) == (not self.keyless):
            raise ValueError("release.sign takes either release.sign.key or keyless: true")
        if (self.keyless and self.development) or (self.trust_config and not self.keyless):
            raise ValueError("development belongs to release.sign.key, trust_config to keyless: true")
        return self


class WaiverConfig(Section):
    """One check of one target that may ship although it does not pass, until `expires`. `signature`: what `qwarm waive` prints."""

    target: str
    check: str
    why: Annotated[str, Field(min_length=10)]
    by: Annotated[str, Field(min_length=2)]
    granted: Annotated[datetime.date, Lax]
    expires: Annotated[datetime.date, Lax]
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
