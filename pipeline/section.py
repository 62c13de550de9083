"""What every part of params.yaml has in common. Pipeline side only (pydantic)."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(gt=0)]
Lax = Field(strict=False)
"""For what YAML writes as another type: a list that becomes a tuple, a date in quotes. What a tuple holds stays strict."""


class Section(BaseModel):
    """A part of params.yaml: unknown keys are refused, values are frozen and of their own type ("0.01" is no number), numbers are finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
