"""torch.cuda as of a machine with an H200, on one without."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch


class Nothing:
    """Streams, graphs, events: whatever is done with them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *args: Any) -> None: ...


class HostGenerator(torch.Generator):
    """A generator of the host, whatever device it is asked for."""

    def __new__(cls, device: Any = None) -> HostGenerator:
        return super().__new__(cls, "cpu")


def pretend() -> Any:
    """Changes torch.cuda for the rest of the process, and returns it."""
    cuda: Any = torch.cuda
    setattr(torch, "Generator", HostGenerator)  # noqa: B010
    cuda.is_available = lambda: True
    cuda.get_device_capability = lambda *args: (9, 0)
    cuda.synchronize = lambda *args: None
    cuda.Stream = cuda.CUDAGraph = cuda.graph = cuda.stream = cuda.Event = Nothing
    cuda.current_stream = lambda *args: SimpleNamespace(cuda_stream=0, wait_stream=lambda s: None)
    cuda.is_current_stream_capturing = lambda: False
    cuda.manual_seed = lambda seed: None
    cuda.memory_reserved = lambda *args: 0
    cuda.empty_cache = lambda: None
    return cuda
