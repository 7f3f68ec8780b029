"""The base of all models: frozen, strict, closed."""

from pydantic import BaseModel, ConfigDict, PlainSerializer

IN_ORDER = PlainSerializer(sorted, when_used="json")
"""For sets: their JSON is sorted, so that it does not depend on the hash seed."""


class Model(BaseModel):
    """An immutable value; unknown fields and silent conversions are refused."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")
