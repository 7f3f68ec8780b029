"""The named errors of the contract.

Every error that a capturer raises for bad input is a `CaptureError` and, as
Python users expect, a `ValueError` or an `IndexError` too. A message names what
was handed in, what was allowed, and where (layer, rank).
"""


class CaptureError(Exception):
    """Base of all errors of the contract."""


class LayoutError(CaptureError, ValueError):
    """The number of rows fits no layout, or two that differ (LAY-01, LAY-06, LAY-10)."""


class ShardGroupError(CaptureError, ValueError):
    """The shard sizes form no groups, one per DP rank (LAY-08)."""


class LayerIndexError(CaptureError, IndexError):
    """The layer index is outside [0, L) (BUF-03)."""


class CapacityError(CaptureError, ValueError):
    """The step has more rows than the buffer (BUF-04)."""


class WidthError(CaptureError, ValueError):
    """The ids tensor does not have K (+ shared) integer columns (BUF-09)."""


class ExpertIdError(CaptureError, ValueError):
    """An expert id is outside [0, E), or E does not fit the element type (IDS-02, SNP-02)."""


class StepError(CaptureError, RuntimeError):
    """A call out of order: capture outside a step, a step ended twice, use after close."""
