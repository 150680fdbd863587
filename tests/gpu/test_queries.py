"""How the tile kernel brings its queries: every group, any number of tokens, strided, moved.

A tile of packed rows reaches past the end of its request, into the next one's queries or past the
tensor: nothing of that may show.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from cute_attn import BatchAttention
from tests.gpu.batches import Batch, make_batch
from tests.gpu.grid import Family
from tests.gpu.serving import DIM, DTYPE, KV_HEADS, assert_right, serving_case

pytestmark = pytest.mark.gpu

GROUPS = (1, 2, 3, 4, 5, 8)  # 3 and 5 do not divide a tile of 128 rows
LOADERS = {"ragged": 0, "paged": 16, "gather": 3}  # page size


@pytest.fixture(autouse=True)
def _needs_hopper(arch: str) -> None:
    if arch != "sm_90a":
        pytest.skip(f"hopper_tile is for sm_90a; this is {arch}")


def attention(group: int, device: torch.device) -> BatchAttention:
    return BatchAttention(
        group * KV_HEADS, KV_HEADS, DIM, dtype=DTYPE, device=device, schedule="hopper_tile"
    )


def make(
    group: int, requests: list[tuple[int, int]], device: torch.device, **changes: object
) -> Batch:
    family = Family("bf16", DIM, group, DIM)
    case = replace(serving_case(), family=family, page_size=0, table="ragged")
    if changes.get("page_size"):
        changes["table"] = "csr"
    return make_batch(replace(case, **changes), device, requests=requests)  # type: ignore[arg-type]  # fields of Case


def requests_of(tokens: int, rng: random.Random) -> list[tuple[int, int]]:
    """Up to four requests of `tokens` queries in all."""
    cuts = sorted(rng.randint(0, tokens) for _ in range(rng.randint(0, 3)))
    lengths = [end - begin for begin, end in zip([0, *cuts], [*cuts, tokens], strict=True)]
    return [(q, rng.choice((q, q + 50, 700))) for q in lengths]


@pytest.mark.parametrize("memory", ["packed", "strided"])
@pytest.mark.parametrize("group", GROUPS)
def test_any_number_of_tokens(
    group: int, memory: str, device: torch.device, record: Callable[..., None]
) -> None:
    """Plans of other lengths on one object; the map of the queries must follow."""
    rng = random.Random(group)
    wrapper, worst = attention(group, device), 0.0
    counts = [1, 2, 127, 128, 129, 300, *(rng.randint(1, 300) for _ in range(8)), 1]
    for seed, tokens in enumerate(counts):
        batch = make(group, requests_of(tokens, rng), device, memory=memory, seed=seed)
        wrapper.plan(batch.qo_indptr, batch.kv_format)
        out, lse = wrapper.run(batch.q, *batch.kv, return_lse=True)
        worst = max(worst, assert_right(batch, out, lse))
    record("G", f"queries of 1 to 300 tokens, group {group}, {memory}", err=worst)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("group", [1, 4, 5])
def test_tiles_do_not_mix_with_other_requests(
    group: int, loader: str, device: torch.device
) -> None:
    """The queries behind those of a request may be anything, NaN and infinities included."""
    requests = [(1, 300), (40, 700), (2, 90), (150, 150), (3, 3)]
    batch = make(group, requests, device, page_size=LOADERS[loader])
    wrapper = attention(group, device).plan(batch.qo_indptr, batch.kv_format)
    want, want_lse = wrapper.run(batch.q, *batch.kv, return_lse=True)
    assert_right(batch, want, want_lse)
    rows = batch.qo_indptr
    for bad, value in ((1, math.nan), (2, math.inf), (3, -math.inf), (4, math.nan)):
        q = batch.q.clone()
        q[rows[bad] : rows[bad + 1]] = value
        out, lse = wrapper.run(q, *batch.kv, return_lse=True)
        others = [row for row in range(rows[-1]) if not rows[bad] <= row < rows[bad + 1]]
        assert torch.equal(out[others], want[others]) and torch.equal(lse[others], want_lse[others])


@pytest.mark.parametrize("group", [1, 4, 5])
def test_every_run_sees_its_own_queries(group: int, device: torch.device) -> None:
    """Launches follow each other without waiting while addresses and strides change."""
    batch = make(group, [(70, 200), (130, 300)], device)
    wrapper = attention(group, device).plan(batch.qo_indptr, batch.kv_format)
    qs = [batch.q * (1 + i / 8) for i in range(6)]
    fused = torch.full((200, group * KV_HEADS + 3, DIM), math.nan, dtype=DTYPE, device=device)
    qs.append(fused[:, 1:-2])
    qs[-1].copy_(batch.q)
    by_head = (batch.q * 0.5).transpose(0, 1).contiguous().transpose(0, 1)
    one_for_all = batch.q[:, :1].expand(-1, group * KV_HEADS, -1)
    qs += [by_head, one_for_all, qs[0]]
    results = [wrapper.run(q, *batch.kv, return_lse=True) for q in qs]
    for q, (out, lse) in zip(qs, results, strict=True):
        assert_right(batch, out, lse, q=q)


def test_an_empty_batch_after_and_before_others(device: torch.device) -> None:
    wrapper = attention(4, device)
    for tokens in (0, 5, 0):
        batch = make(4, [(tokens, 100)], device)
        wrapper.plan(batch.qo_indptr, batch.kv_format)
        out, lse = wrapper.run(batch.q, *batch.kv, return_lse=True)
        assert out.shape == batch.q.shape
        if tokens:
            assert_right(batch, out, lse)
