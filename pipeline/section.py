"""What every part of params.yaml has in common. Pipeline side only (pydantic)."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(gt=0)]


class Section(BaseModel):
    """A part of params.yaml: unknown keys are refused, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)
