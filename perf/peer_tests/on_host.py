"""A pytest plugin like `plugin`, for machines without a GPU: all tensors are on the host.

The reference executor computes, slowly. A captured graph is what wrappers have run meanwhile, and
runs it again when it is replayed.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from cute_attn.flashinfer.wrapper import Wrapper
from perf.peer_tests import plugin
from perf.peer_tests.pretend import pretend

pytest_configure = plugin.pytest_configure
pytest_collection_modifyitems = plugin.pytest_collection_modifyitems
pytest_runtest_logstart = plugin.pytest_runtest_logstart
pytest_sessionfinish = plugin.pytest_sessionfinish
pytest_runtest_makereport = plugin.pytest_runtest_makereport


class OnHost(TorchFunctionMode):
    """Sends to the host whatever is sent to a GPU."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if kwargs.get("device") is not None:
            kwargs["device"] = "cpu"
        if name == "cuda":
            return args[0]
        if name == "to" and isinstance(args[0], torch.Tensor):
            kept = [x for x in args[1:] if isinstance(x, (torch.dtype, torch.Tensor))]
            if not kept and "dtype" not in kwargs:
                return args[0]
            args = (args[0], *kept)
        return func(*args, **kwargs)


class Graph:
    """What wrappers have run during capture."""

    def __init__(self) -> None:
        self.runs: list[tuple[Any, ...]] = []

    def replay(self) -> None:
        """Runs it again, into the tensors of the first time."""
        for wrapper, args, kwargs, results in self.runs:
            again = _run(wrapper, *args, **kwargs)
            for old, new in zip(_flat(results), _flat(again), strict=True):
                old.copy_(new)


class Capture:
    """`with torch.cuda.graph(graph)`."""

    current: Graph | None = None

    def __init__(self, graph: Graph, *args: Any, **kwargs: Any) -> None:
        self._graph = graph

    def __enter__(self) -> None:
        Capture.current = self._graph

    def __exit__(self, *args: Any) -> None:
        Capture.current = None


_run = Wrapper._run


def _noted(self: Wrapper, *args: Any, **kwargs: Any) -> Any:
    results = _run(self, *args, **kwargs)
    if Capture.current is not None:
        Capture.current.runs.append((self, args, kwargs, results))
    return results


def _flat(results: Any) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Runs a case on the host."""
    with OnHost():
        return (yield)


_cuda = pretend()
_cuda.CUDAGraph, _cuda.graph = Graph, Capture
setattr(Wrapper, "_run", _noted)  # noqa: B010
