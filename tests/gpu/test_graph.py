"""CUDA graphs: captured once, replayed with other lengths; all layers of a model in one graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from cute_attn import BatchAttention, PagedKV
from tests.gpu.batches import Batch, indptr
from tests.gpu.check import CANARY, as_integers
from tests.gpu.serving import (
    DIM,
    DTYPE,
    KV_HEADS,
    PAGE_SIZE,
    QO_HEADS,
    assert_right,
    random_requests,
    serving_attention,
)

pytestmark = pytest.mark.gpu

REPLAYS = 20
LAYERS = 32


class Layer:
    """Fixed tensors that a captured graph reads and writes."""

    def __init__(self, rows: int, pages: int, device: torch.device) -> None:
        self.q = torch.empty(rows, QO_HEADS, DIM, dtype=DTYPE, device=device)
        self.out = torch.empty_like(self.q)
        self.lse = torch.empty(rows, QO_HEADS, dtype=torch.float32, device=device)
        self.cache = torch.empty(pages, 2, PAGE_SIZE, KV_HEADS, DIM, dtype=DTYPE, device=device)

    def fill(self, requests: list[Any], seed: int) -> Batch:
        """New contents for a step: random where used, NaN elsewhere; canaries in the outputs."""
        device = self.q.device
        generator = torch.Generator(device).manual_seed(seed)
        q_lens, kv_lens = [q for q, _ in requests], [kv for _, kv in requests]
        counts = [-(-n // PAGE_SIZE) for n in kv_lens]
        pages = torch.randperm(len(self.cache), generator=generator, device=device)[: sum(counts)]
        for x in (self.q, self.cache):
            x.fill_(math.nan)
        for x in (self.out, self.lse):
            as_integers(x).fill_(CANARY[x.dtype])
        self.q[: sum(q_lens)].normal_(generator=generator)
        keys, values = [], []
        for own, n in zip(pages.split(counts), kv_lens, strict=True):
            kv = torch.randn(2, n, KV_HEADS, DIM, generator=generator, device=device).to(DTYPE)
            at = torch.arange(n, device=device)
            self.cache[own[at // PAGE_SIZE], :, at % PAGE_SIZE] = kv.transpose(0, 1)
            keys.append(kv[0])
            values.append(kv[1])
        last = [n - (c - 1) * PAGE_SIZE if c else 0 for n, c in zip(kv_lens, counts, strict=True)]
        kv_format = PagedKV(indptr(counts), pages.int().cpu(), last, PAGE_SIZE)
        q = self.q[: sum(q_lens)]
        return Batch(q_lens, kv_lens, q, (self.cache,), keys, values, kv_format, {})

    def run(self, wrapper: BatchAttention) -> None:
        wrapper.run(self.q, self.cache, out=self.out, lse=self.lse)

    def check(self, batch: Batch) -> float:
        """Compares with the oracle; rows past the step's must be untouched."""
        rows = sum(batch.q_lens)
        for x in (self.out, self.lse):
            assert (as_integers(x[rows:]) == CANARY[x.dtype]).all()
        return assert_right(batch, self.out[:rows], self.lse[:rows])


@pytest.mark.parametrize("longest_q", [1, 60], ids=["decode", "mixed"])
def test_replay_with_other_lengths(
    longest_q: int, device: torch.device, record: Callable[..., None]
) -> None:
    count, longest_kv = 16, 3000
    rows = count * longest_q
    pages = count * -(-longest_kv // PAGE_SIZE)
    wrapper = serving_attention(device, cuda_graph=True, max_requests=count, max_pages=pages)
    layer = Layer(rows, pages, device)
    biggest = [(longest_q, longest_kv)] * count
    first = layer.fill(biggest, 0)
    wrapper.plan(first.qo_indptr, first.kv_format)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer.run(wrapper)
    worst = 0.0
    for seed in range(1, REPLAYS + 1):
        requests = random_requests(seed, count - seed % 3, longest_q, longest_kv)
        batch = layer.fill(requests, seed)
        wrapper.plan(batch.qo_indptr, batch.kv_format)
        graph.replay()
        worst = max(worst, layer.check(batch))
    record("G", f"graph replay, {REPLAYS} length sets, q up to {longest_q}", err=worst)


def test_replay_of_the_tile_kernel_with_fused_queries(device: torch.device, arch: str) -> None:
    """The captured queries are a slice, longer than most steps; NaN follows the step's rows."""
    if arch != "sm_90a":
        pytest.skip(f"hopper_tile is for sm_90a; this is {arch}")
    count, longest_q, longest_kv = 6, 150, 600
    pages = count * -(-longest_kv // PAGE_SIZE)
    wrapper = serving_attention(
        device, cuda_graph=True, max_requests=count, max_pages=pages, schedule="hopper_tile"
    )
    layer = Layer(count * longest_q, pages, device)
    fused = torch.empty(count * longest_q, QO_HEADS + 2 * KV_HEADS, DIM, dtype=DTYPE, device=device)
    layer.q = fused[:, :QO_HEADS]
    first = layer.fill([(longest_q, longest_kv)] * count, 0)
    wrapper.plan(first.qo_indptr, first.kv_format)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer.run(wrapper)
    other = torch.zeros_like(layer.q)  # a launch beside the graph, which keeps its own map
    for seed in range(1, REPLAYS + 1):
        batch = layer.fill(random_requests(seed, count, longest_q, longest_kv), seed)
        wrapper.plan(batch.qo_indptr, batch.kv_format)
        wrapper.run(other, layer.cache, out=torch.empty_like(other))
        graph.replay()
        layer.check(batch)


def test_every_layer_of_a_model_in_one_graph(
    device: torch.device, record: Callable[..., None]
) -> None:
    count, longest_kv = 8, 1000
    pages = count * -(-longest_kv // PAGE_SIZE)
    wrapper = serving_attention(device, cuda_graph=True, max_requests=count, max_pages=pages)
    layers = [Layer(count, pages, device) for _ in range(LAYERS)]
    requests = [(1, longest_kv)] * count
    batch = layers[0].fill(requests, 0)
    wrapper.plan(batch.qo_indptr, batch.kv_format)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in layers:
            layer.run(wrapper)
    worst = 0.0
    for seed in (1, 2):
        requests = random_requests(seed, count, 1, longest_kv)
        # The page table is the step's: the same seed gives every layer the same pages.
        batches = [layer.fill(requests, seed) for layer in layers]
        for at, (layer, own) in enumerate(zip(layers, batches, strict=True)):
            layer.q[: len(own.q)].mul_(1 + at / LAYERS)  # layers must not be mixed up
        wrapper.plan(batches[0].qo_indptr, batches[0].kv_format)
        graph.replay()
        errors = [layer.check(own) for layer, own in zip(layers, batches, strict=True)]
        worst = max(worst, *errors)
    record("G", f"{LAYERS} layers in one graph", err=worst)
    rows = sum(batches[0].q_lens)
    assert (
        len({bytes(layer.out[:rows].cpu().view(torch.int16).numpy()) for layer in layers}) == LAYERS
    )


def test_planning_during_capture_is_refused(device: torch.device) -> None:
    wrapper = serving_attention(device, cuda_graph=True, max_requests=4, max_pages=64)
    layer = Layer(4, 64, device)
    batch = layer.fill([(1, 100)] * 4, 0)
    wrapper.plan(batch.qo_indptr, batch.kv_format)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(RuntimeError, match="capture"):
            wrapper.plan(batch.qo_indptr, batch.kv_format)
        layer.run(wrapper)
    graph.replay()
    layer.check(batch)
