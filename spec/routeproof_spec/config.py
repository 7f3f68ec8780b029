"""What a capturer is built for."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from routeproof_spec.base import IN_ORDER, Model
from routeproof_spec.layout import Layout, default_layouts


class CaptureConfig(Model):
    """Sizes and choices that hold for the life of a capturer."""

    max_tokens: int = Field(ge=1, description="rows of the buffer: the largest T_d (BUF-04)")
    layers: int = Field(ge=1, description="L, captured layers, dense ones included")
    top_k: int = Field(ge=1, description="K, routed experts per token")
    experts: int = Field(ge=1, description="E, routed experts; ids are in [0, E)")
    shared_columns: int = Field(default=0, ge=0, description="columns after the K, dropped (BUF-09)")
    layouts: Annotated[frozenset[Layout], IN_ORDER] | None = Field(
        default=None, description="the set that producers can emit; None: the default for the DP size"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.top_k > self.experts:
            msg = f"top_k {self.top_k} is larger than experts {self.experts}"
            raise ValueError(msg)
        if self.layouts is not None and Layout.UNCOUNTED in self.layouts:
            msg = "UNCOUNTED is no layout to infer: it applies whenever counts are None"
            raise ValueError(msg)
        return self

    @property
    def width(self) -> int:
        """Columns of an ids tensor as handed over."""
        return self.top_k + self.shared_columns

    def layouts_at(self, dp: int) -> frozenset[Layout]:
        """Give the set from which n is inferred at this DP size."""
        return default_layouts(dp) if self.layouts is None else self.layouts
