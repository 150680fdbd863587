"""The decodes of real steps, through the host planner, a graph of the attention alone and a graph
that plans on the device: the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cute_attn import BatchAttention, DeviceKV, PagedKV
from cute_attn.workloads import load_steps
from tests.gpu.serving import PAGE_SIZE, serving_attention

pytestmark = pytest.mark.gpu

REQUESTS = 128
POOL = 1 << 14  # pages; requests share some


def decodes() -> list[np.ndarray]:
    """Keys of the requests of one query token, of every step; padded with empty requests."""
    found = []
    for step in load_steps():
        keys = [kv for q, kv in zip(step.q_lens, step.kv_lens, strict=True) if q == 1]
        found.append(np.array(keys + [0] * (REQUESTS - len(keys))))
    return found


def tables(keys: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """kv_indptr, kv_indices and kv_last_page_len."""
    pages = -(-keys // PAGE_SIZE)
    indices = np.random.default_rng(seed).integers(0, POOL, pages.sum())
    last = keys - np.maximum(pages - 1, 0) * PAGE_SIZE
    return np.append(0, pages.cumsum()), indices, last


def test_the_planners_and_a_graph_agree(device: torch.device) -> None:
    steps = [tables(keys, seed) for seed, keys in enumerate(decodes())]
    most_pages = max(indices.size for _, indices, _ in steps)
    generator = torch.Generator(device).manual_seed(0)
    shape = (POOL, 2, PAGE_SIZE, 2, 128)
    cache = torch.randn(shape, dtype=torch.bfloat16, device=device, generator=generator)
    q = torch.randn((REQUESTS, 8, 128), dtype=torch.bfloat16, device=device, generator=generator)
    rows = np.arange(REQUESTS + 1)

    def attention() -> BatchAttention:
        options = {"max_requests": REQUESTS, "max_pages": most_pages, "cuda_graph": True}
        return plan(serving_attention(device, **options), 0)

    def plan(batch: BatchAttention, step: int) -> BatchAttention:
        return batch.plan(rows, PagedKV(*steps[step], PAGE_SIZE))

    def ints(length: int) -> torch.Tensor:
        return torch.zeros(length, dtype=torch.int32, device=device)

    eager, captured, on_device = attention(), attention(), attention()
    buffers = ints(REQUESTS + 1), ints(most_pages), ints(REQUESTS)
    kv = DeviceKV.from_paged(*buffers, PAGE_SIZE)
    outs = {name: torch.empty_like(q) for name in ("eager", "captured", "on_device")}
    on_device.plan_on_device(kv).run(q, cache, out=outs["on_device"])
    captured.run(q, cache, out=outs["captured"])
    graph, whole = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.run(q, cache, out=outs["captured"])
    with torch.cuda.graph(whole):
        on_device.plan_on_device(kv).run(q, cache, out=outs["on_device"])

    for number, step in enumerate(steps):
        for out in outs.values():
            out.fill_(torch.nan)
        plan(eager, number).run(q, cache, out=outs["eager"])
        plan(captured, number)
        graph.replay()
        for buffer, values in zip(buffers, step, strict=True):
            buffer[: len(values)] = torch.from_numpy(values.astype(np.int32)).to(device)
        whole.replay()
        torch.cuda.synchronize()
        assert outs["eager"].isfinite().all()
        assert torch.equal(outs["captured"], outs["eager"]), number
        assert torch.equal(outs["on_device"], outs["eager"]), number
    on_device.check_plan()
