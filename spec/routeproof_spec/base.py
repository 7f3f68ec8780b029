"""The base of all models: frozen, strict, closed."""

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """An immutable value; unknown fields and silent conversions are refused."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")
