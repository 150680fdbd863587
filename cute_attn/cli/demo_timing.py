"""GPU times of a planned batch, in a replayed CUDA graph as an engine runs it."""

from __future__ import annotations

import statistics

import torch

from cute_attn.api import BatchAttention
from cute_attn.cli.demo_batch import Batch

_LAYERS = 8
_REPLAYS = 10


def microseconds_per_run(attention: BatchAttention, batch: Batch) -> float:
    """Median time of a run, of graphs that hold eight of them.

    Args:
        attention: made with cuda_graph=True and planned for the batch.
        batch: its tensors; the cache is read anew by every run (it is larger than the L2 cache).
    """
    out = torch.empty_like(batch.q)
    attention.run(batch.q, batch.cache, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_LAYERS):
            attention.run(batch.q, batch.cache, out=out)
    graph.replay()
    times: list[float] = []
    for _ in range(_REPLAYS):
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # its stub
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # its stub
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / _LAYERS)
    return statistics.median(times)
