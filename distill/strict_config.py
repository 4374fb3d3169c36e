"""What every group of keys of a configuration is, and the kinds of numbers that stand in them."""

from __future__ import annotations

from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
PositiveInt = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class StrictConfig(BaseModel):
    """Base of all groups of keys: unknown keys are errors, and so are values that are no numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    def to_yaml(self) -> str:
        """Return the configuration as YAML that reads back to the same configuration."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)
