"""`cute_attn.flashinfer` on a GPU: index tensors, buffers and workspaces as engines have them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import cute_attn.flashinfer as flashinfer
from tests.gpu import oracle64
from tests.gpu.batches import Batch, indptr
from tests.gpu.check import BOUNDS, LSE_BOUND
from tests.gpu.serving import (
    DIM,
    DTYPE,
    EVERYTHING,
    KV_HEADS,
    PAGE_SIZE,
    QO_HEADS,
    random_requests,
    serving_batch,
)

pytestmark = pytest.mark.gpu

SIZES = (QO_HEADS, KV_HEADS, DIM)


def index(batch: Batch, device: torch.device) -> tuple[torch.Tensor, ...]:
    """qo_indptr, kv_indptr, kv_indices, kv_last_page_len on the device."""
    counts = [-(-n // PAGE_SIZE) for n in batch.kv_lens]
    last = [n - (c - 1) * PAGE_SIZE if c else 0 for n, c in zip(batch.kv_lens, counts, strict=True)]
    rows = (indptr(batch.q_lens), indptr(counts), batch.kv_format.page_table, last)
    return tuple(torch.as_tensor(x, dtype=torch.int32, device=device) for x in rows)


def workspace(device: torch.device, size: int = 128 << 20) -> torch.Tensor:
    """A float workspace with anything in it."""
    return torch.full((size,), 0x7F, dtype=torch.uint8, device=device)


def assert_right(
    batch: Batch, out: torch.Tensor, lse: torch.Tensor, *, causal: bool = True, scale: float = 1.0
) -> float:
    """Compares with the oracle; lse is to base 2, keys are taken times `scale`."""
    keys = [scale * k.double() for k in batch.keys]
    want, log = oracle64.attend_batch(batch.q, batch.q_lens, keys, batch.values, causal=causal)
    err, _, far, exact = oracle64.errors(out, lse * math.log(2.0), want, log)
    assert err <= BOUNDS["bf16"] and far <= LSE_BOUND and exact, (err, far, exact)
    return err


@pytest.mark.parametrize("size", [128 << 20, 1 << 10], ids=["given", "too small"])
def test_paged_batches(size: int, device: torch.device, record: Callable[..., None]) -> None:
    """Two wrappers share a workspace, which is used if it is large enough."""
    memory, worst = workspace(device, size), 0.0
    wrappers = [flashinfer.BatchPrefillWithPagedKVCacheWrapper(memory) for _ in range(2)]
    for seed, wrapper in enumerate([*wrappers, *wrappers]):
        batch = serving_batch(EVERYTHING, device, memory="combined", seed=seed)
        tensors = index(batch, device)
        wrapper.plan(*tensors, *SIZES, PAGE_SIZE, causal=True, q_data_type=DTYPE)
        out, lse = wrapper.run(batch.q, *batch.kv, return_lse=True)
        worst = max(worst, assert_right(batch, out, lse))
        scaled = wrapper.run(batch.q, *batch.kv, k_scale=0.5, v_scale=2.0, return_lse=True)
        assert_right(batch, scaled[0] / 2, scaled[1], scale=0.5)
    record("G", f"flashinfer names, paged, workspace {size >> 10} KiB", err=worst)


@pytest.mark.parametrize("causal", [True, False])
def test_ragged_batches(causal: bool, device: torch.device) -> None:
    batch = serving_batch([(300, 300), (129, 1024), (500, 700)], device, page_size=0)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace(device))
    rows = (
        torch.tensor(indptr(n), dtype=torch.int32, device=device)
        for n in (batch.q_lens, batch.kv_lens)
    )
    wrapper.plan(*rows, *SIZES, causal=causal, q_data_type=DTYPE)
    assert_right(batch, *wrapper.run_return_lse(batch.q, *batch.kv), causal=causal)


def test_decode_in_a_graph(device: torch.device, record: Callable[..., None]) -> None:
    """Buffers of the user; plans with other lengths; page numbers that change behind plan()."""
    count, longest = 16, 3000
    pages = count * -(-longest // PAGE_SIZE) + 4
    buffers = [torch.zeros(n, dtype=torch.int32, device=device) for n in (count + 1, pages, count)]
    wrapper = flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(workspace(device), *buffers)
    shape = (pages, 2, PAGE_SIZE, KV_HEADS, DIM)
    cache = torch.empty(shape, dtype=DTYPE, device=device)
    q = torch.empty(count, QO_HEADS, DIM, dtype=DTYPE, device=device)
    graph: Any = None
    worst = 0.0
    for seed in range(12):
        requests = [(1, max(kv, 1)) for _, kv in random_requests(seed, count, 1, longest)]
        batch = serving_batch(requests, device, memory="combined", seed=seed)
        held = batch.kv[0]
        cache.fill_(math.nan)
        cache[: len(held)] = held
        q.copy_(batch.q)
        tensors = index(batch, device)[1:]
        wrapper.plan(*tensors, *SIZES, PAGE_SIZE, q_data_type=DTYPE)
        if graph is None:
            wrapper.run(q, cache, return_lse=True)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out, lse = wrapper.run(q, cache, return_lse=True)
        graph.replay()
        worst = max(worst, assert_right(batch, out, lse))
    swapped = torch.arange(len(cache), device=device).flip(0)
    cache.copy_(cache[swapped])
    buffers[1][: len(tensors[1])] = len(cache) - 1 - tensors[1]
    graph.replay()
    assert_right(batch, out, lse)
    record("G", "flashinfer names, decode in a graph", err=worst)


def test_append_in_a_graph(device: torch.device) -> None:
    """Row pointers and page numbers that never leave the GPU."""
    batch = serving_batch([(1, 40), (1, 1), (1, 300)], device, memory="combined")
    (cache,) = batch.kv
    filled = torch.full_like(cache, math.nan)
    _, begin, pages, last = index(batch, device)
    rows = torch.tensor(indptr(batch.kv_lens), dtype=torch.int32, device=device)
    key, value = torch.cat(batch.keys), torch.cat(batch.values)

    def append() -> None:
        lengths = flashinfer.get_seq_lens(begin, last, PAGE_SIZE)
        where = flashinfer.get_batch_indices_positions(rows, lengths, len(key))
        flashinfer.append_paged_kv_cache(key, value, *where, filled, pages, begin, last)

    append()
    torch.testing.assert_close(filled, cache, equal_nan=True, atol=0, rtol=0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        append()
    filled.fill_(math.nan)
    graph.replay()
    torch.testing.assert_close(filled, cache, equal_nan=True, atol=0, rtol=0)


def test_cascade_and_states(device: torch.device) -> None:
    """Levels, and two wrappers whose states are merged, against one batch."""
    shared, own = 96, [(1, 40), (5, 700), (2, 16)]
    whole = serving_batch([(q, shared + kv) for q, kv in own], device, memory="combined")
    rows, begin, pages, last = index(whole, device)
    (cache,) = whole.kv
    prefix = pages[: shared // PAGE_SIZE]
    for i in range(1, len(own)):  # the same keys for all
        cache[pages[begin[i] : begin[i] + len(prefix)].long()] = cache[prefix.long()]
    one = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(device))
    one.plan(rows, begin, pages, last, *SIZES, PAGE_SIZE, causal=True, q_data_type=DTYPE)
    want = one.run(whole.q, cache)

    counts = (begin[1:] - begin[:-1] - len(prefix)).tolist()
    rest = [pages[int(begin[i]) + len(prefix) : int(begin[i + 1])] for i in range(len(own))]
    int32 = {"dtype": torch.int32, "device": device}
    top = [torch.tensor(x, **int32) for x in ([0, len(whole.q)], [0, len(prefix)], [PAGE_SIZE])]
    bottom = (rows, torch.tensor(indptr(counts), **int32), torch.cat(rest), last)
    levels = flashinfer.MultiLevelCascadeAttentionWrapper(2, workspace(device))
    levels.plan(
        [top[0], bottom[0]], [top[1], bottom[1]], [prefix, bottom[2]], [top[2], bottom[3]],
        *SIZES, PAGE_SIZE, causal=True, q_data_type=DTYPE,
    )  # fmt: skip
    torch.testing.assert_close(levels.run(whole.q, cache), want, atol=2e-2, rtol=2e-2)

    one.plan(*bottom, *SIZES, PAGE_SIZE, causal=True, q_data_type=DTYPE)
    suffix = one.run_return_lse(whole.q, cache)
    # All shared keys lie before every query, so causal is full with the prefix behind the queries.
    keys, values = (cache[prefix.long(), i].flatten(0, 1) for i in range(2))
    first = flashinfer.single_prefill_with_kv_cache(whole.q, keys, values, return_lse=True)
    merged, _ = flashinfer.merge_state(*first, *suffix)
    torch.testing.assert_close(merged, want, atol=2e-2, rtol=2e-2)
    flashinfer.merge_state_in_place(*first, *suffix)
    assert torch.equal(first[0], merged)
