"""Copies from the device to the host that nothing waits for."""

from collections.abc import Sequence
from typing import Any

import torch


class Copier:
    """Copies on a side stream, with an event for the reader; on a CPU at once."""

    def __init__(self, device: torch.device) -> None:
        """Make the stream, where there is a GPU."""
        self.pinned = device.type == "cuda" and torch.cuda.is_available()
        """Whether host memory is to be pinned, and copies take place later."""
        self.direct = device.type == "cpu"
        """Whether rows can be narrowed into host memory without a stop on the device."""
        self._device = device
        cuda: Any = torch.cuda
        self._stream = cuda.Stream(device) if self.pinned else None
        self._event = cuda.Event
        self._copied: Any = None

    def before_reuse(self) -> None:
        """Have the current stream wait until what was copied last may be overwritten."""
        if self._copied is not None:
            torch.cuda.current_stream(self._device).wait_event(self._copied)
            self._copied = None

    def copy(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Any:  # noqa: ANN401 - a CUDA event
        """Copy each source to its target after the work queued so far; give an event, None if it is done."""
        if self._stream is None:
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
            return None
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for target, source in pairs:
                source.record_stream(self._stream)
                target.copy_(source, non_blocking=True)
            self._copied = self._event()
            self._copied.record(self._stream)
        return self._copied
