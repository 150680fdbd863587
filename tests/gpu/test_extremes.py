"""Batches without work, and memory beyond what 32 bits address."""

from __future__ import annotations

import pytest
import torch

from cute_attn import PagedKV, RaggedKV
from tests.gpu.batches import Batch
from tests.gpu.serving import (
    DIM,
    DTYPE,
    KV_HEADS,
    PAGE_SIZE,
    QO_HEADS,
    assert_right,
    serving_attention,
    serving_batch,
)

pytestmark = pytest.mark.gpu

FAR = 2**31 + 2**28
"""Elements: past what a signed 32-bit offset reaches."""


@pytest.mark.parametrize("page_size", [PAGE_SIZE, 0])
@pytest.mark.parametrize("requests", [[(1, 0)] * 3, [(70, 0), (0, 50)], [(0, 0)], [(0, 100)]])
def test_batches_that_see_no_key(
    requests: list[tuple[int, int]], page_size: int, device: torch.device
) -> None:
    batch = serving_batch(requests, device, page_size=page_size)
    wrapper = serving_attention(device).plan(batch.qo_indptr, batch.kv_format)
    out = torch.full_like(batch.q, torch.nan)
    lse = torch.full(out.shape[:2], torch.nan, device=device)
    wrapper.run(batch.q, *batch.kv, out=out, lse=lse)
    assert (out == 0).all() and (lse == -torch.inf).all()


@pytest.mark.parametrize("q_len", [1, 40], ids=["decode", "prefill"])
def test_pages_far_away(q_len: int, device: torch.device) -> None:
    """Page numbers times page stride pass 2^31 elements."""
    kv_len = 300
    pages = -(-kv_len // PAGE_SIZE)
    page_elements = PAGE_SIZE * KV_HEADS * DIM
    total = FAR // page_elements + pages
    k, v = (
        torch.empty(total, PAGE_SIZE, KV_HEADS, DIM, dtype=DTYPE, device=device) for _ in range(2)
    )
    numbers = torch.arange(total - pages, total)
    for x in (k, v):
        x[: 2 * pages] = torch.nan  # where offsets that lost their upper half would land
        x[total - pages :] = torch.randn(pages, *x.shape[1:], device=device).to(DTYPE)
    q = torch.randn(q_len, QO_HEADS, DIM, device=device).to(DTYPE)
    last = kv_len - (pages - 1) * PAGE_SIZE
    kv_format = PagedKV([0, pages], numbers.int(), [last], PAGE_SIZE)
    keys, values = ([x[total - pages :].flatten(0, 1)[:kv_len]] for x in (k, v))
    batch = Batch([q_len], [kv_len], q, (k, v), keys, values, kv_format, {})
    wrapper = serving_attention(device).plan(batch.qo_indptr, batch.kv_format)
    assert_right(batch, *wrapper.run(q, k, v, return_lse=True))


@pytest.mark.parametrize("q_len", [1, 40], ids=["decode", "prefill"])
def test_ragged_rows_far_away(q_len: int, device: torch.device) -> None:
    """The second request's keys begin past 2^31 elements."""
    kv_len = 300
    before = FAR // (KV_HEADS * DIM)
    k, v = (
        torch.empty(before + kv_len, KV_HEADS, DIM, dtype=DTYPE, device=device) for _ in range(2)
    )
    for x in (k, v):
        x[before:] = torch.randn(kv_len, KV_HEADS, DIM, device=device).to(DTYPE)
    q = torch.randn(q_len, QO_HEADS, DIM, device=device).to(DTYPE)
    kv_format = RaggedKV([0, before, before + kv_len])
    batch = Batch([q_len], [kv_len], q, (k, v), [k[before:]], [v[before:]], kv_format, {})
    wrapper = serving_attention(device).plan([0, 0, q_len], kv_format)
    assert_right(batch, *wrapper.run(q, k, v, return_lse=True))
