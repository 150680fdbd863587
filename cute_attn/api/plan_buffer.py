"""The device copy of a plan, at an address that does not change, filled without waiting.

Plans are written to a ring of pinned host buffers; each goes to the device in one asynchronous
copy. An event guards each buffer of the ring: a plan made while the copy of an earlier one is still
queued takes the next buffer, and waits only when the whole ring is queued.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

_RING = 4


class PlanBuffer:
    """`capacity` int32 on the device, and the ring to fill it from.

    Args:
        capacity: length in int32.
        device: a CUDA device.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.capacity = capacity
        self.memory = torch.empty(capacity, dtype=torch.int32, device=device)  # (capacity)
        self.address = self.memory.data_ptr()
        self._pinned = [
            torch.empty(capacity, dtype=torch.int32, pin_memory=True) for _ in range(_RING)
        ]
        self._views = [buffer.numpy() for buffer in self._pinned]
        self._events: list[torch.cuda.Event] = [new_event() for _ in range(_RING)]
        self._next = 0
        self._marker: torch.cuda.Event | None = None

    def stage(self) -> npt.NDArray[np.int32]:
        """(capacity,) host memory to write the next plan to; its contents are undefined."""
        self._events[self._next].synchronize()  # an event that was never recorded is done
        return self._views[self._next]

    def upload(self, length: int) -> torch.cuda.Event:
        """Copies the first `length` int32 of the staged memory on the current stream.

        Returns:
            the event behind the copy.
        """
        at = self._next
        self.memory[:length].copy_(self._pinned[at][:length], non_blocking=True)
        self._events[at].record()
        self._next = (at + 1) % _RING
        return self._events[at]

    def mark(self) -> torch.cuda.Event:
        """The event behind what the current stream has queued by now."""
        if self._marker is None:
            self._marker = new_event()
        self._marker.record()
        return self._marker


def new_event() -> torch.cuda.Event:
    """A CUDA event without timing."""
    event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's stub
    return event


def grown(size: int) -> int:
    """The next power of two, so that growing steps seldom reallocate."""
    return 1 << (max(size, 64) - 1).bit_length()
