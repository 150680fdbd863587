"""Keeps plans and runs in order when they are given to different streams.

On one stream there is nothing to do. A run on another stream than the plan's waits for the plan's
copy; the next plan waits for such runs before it overwrites what they read.
"""

from __future__ import annotations

import torch


class StreamOrder:
    """Order of one object's plans and runs.

    Args:
        device: a CUDA device.

    Attributes:
        plan_stream: raw stream of the last plan.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        self._runs: dict[int, torch.cuda.Event] = {}  # last run per other stream
        self.plan_stream = -1

    def before_plan(self) -> None:
        """The current stream waits for everything that may still read the last plan.

        Under capture there is nothing to wait for: whoever replays the graph orders it.
        """
        stream = torch.cuda.current_stream(self._device)
        if torch.cuda.is_current_stream_capturing():
            self.plan_stream = stream.cuda_stream
            return
        if self._stream is not None and self._stream != stream:
            stream.wait_event(self._stream.record_event())
        for event in self._runs.values():
            stream.wait_event(event)
        self._runs.clear()
        self._stream = stream
        self.plan_stream = stream.cuda_stream

    def before_run(self, uploaded: torch.cuda.Event) -> None:
        """For a run on another stream: waits for the plan's copy.

        Under capture there is nothing to wait for: the graph reads the plan when it is replayed.
        """
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream(self._device).wait_event(uploaded)

    def after_run(self) -> None:
        """For a run on another stream: remembers it for the next plan."""
        if not torch.cuda.is_current_stream_capturing():
            stream = torch.cuda.current_stream(self._device)
            self._runs[stream.cuda_stream] = stream.record_event()
