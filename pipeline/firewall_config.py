"""The section `data.firewall` of params.yaml: what is done about rows that two roles share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from pipeline.data_records import ROLES
from pipeline.section import Section

Action = Literal["refuse", "move", "allow"]


class FirewallConfig(Section):
    """`near`: what is done about near rows of two roles; `pairs` says otherwise for some, as `calibration/validation: move`.

    Rows that are equal, or of one group, are always refused. `tolerance` is for numbers (relative). `columns`: which are compared; all when empty.
    """

    near: Action = "refuse"
    pairs: dict[str, Action] = Field(default={})
    tolerance: Annotated[float, Field(gt=0, le=0.2)] = 1e-3
    columns: list[str] = Field(default=[])

    @field_validator("pairs")
    @classmethod
    def roles_known(cls, pairs: dict[str, Action]) -> dict[str, Action]:
        for pair in pairs:
            names = pair.split("/")
            if len(names) != 2 or names[0] == names[1] or not set(names) <= set(ROLES):
                raise ValueError(f"{pair!r} is no pair of roles such as calibration/validation: {', '.join(ROLES)}")
            if f"{names[1]}/{names[0]}" in pairs:
                raise ValueError(f"{pair!r} is given in both orders: one of them would be without effect")
        return pairs

    def by_roles(self) -> dict[tuple[str, str], str]:
        """`pairs` under both orders of the two roles."""
        named = {tuple(pair.split("/")): action for pair, action in self.pairs.items()}
        return {order: action for (a, b), action in named.items() for order in ((a, b), (b, a))}
