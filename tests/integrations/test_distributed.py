"""Attention over ranks: gloo processes on the CPU executor, against the oracle and one rank."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from cute_attn import BatchAttention, PagedKV, RaggedKV
from cute_attn.integrations.distributed import (
    KVParallelAttention,
    gather_heads,
    merge_over_ranks,
    shard_heads,
    split_keys,
)
from tests.oracle import attend_batch, mask_of

_PAGE = Path(__file__).parents[2] / "docs" / "distributed.md"
HEADS, KV_HEADS, DIM, PAGE = 4, 2, 16, 4
STEPS = {
    "decode": ([1, 1, 1, 1], [9, 1, 40, 3]),
    "prefill": ([5, 1, 7, 3], [5, 30, 20, 2]),  # the last has more queries than keys
}


def indptr(lengths: Any) -> list[int]:
    return [0, *np.cumsum(lengths).tolist()]


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def paged(k: list[torch.Tensor], v: list[torch.Tensor]) -> tuple[torch.Tensor, PagedKV]:
    counts = [-(-len(own) // PAGE) for own in k]
    cache = torch.full((sum(counts) + 1, 2, PAGE, KV_HEADS, DIM), torch.nan)
    for begin, own_k, own_v in zip(indptr(counts), k, v, strict=False):
        for part, own in enumerate((own_k, own_v)):
            for first in range(0, len(own), PAGE):
                rows = own[first : first + PAGE]
                cache[begin + first // PAGE, part, : len(rows)] = rows
    last = [(len(own) - 1) % PAGE + 1 if len(own) else 0 for own in k]
    return cache, PagedKV(indptr(counts), np.arange(sum(counts)), last, PAGE)


def check_keys_by_rank(rank: int, world: int, is_causal: bool, name: str) -> None:
    q_lens, kv_lens = STEPS[name]
    if is_causal:
        kv_lens = [max(kv, q) for q, kv in zip(q_lens, kv_lens, strict=True)]
    q = random(0, sum(q_lens), HEADS, DIM)
    keys = [random(i + 1, n, KV_HEADS, DIM) for i, n in enumerate(kv_lens)]
    values = [random(i + 100, n, KV_HEADS, DIM) for i, n in enumerate(kv_lens)]
    parts = split_keys(kv_lens, q_lens, world, multiple=PAGE)
    ends = np.cumsum(parts, axis=0)[rank]
    own = [
        (k[end - n : end], v[end - n : end])
        for k, v, end, n in zip(keys, values, ends, parts[rank], strict=True)
    ]
    own_k, own_v = [k for k, _ in own], [v for _, v in own]
    want, want_lse = attend_batch(
        q, indptr(q_lens), keys, values, mask=mask_of("causal" if is_causal else "full")
    )
    attention = KVParallelAttention(
        HEADS, KV_HEADS, DIM, causal=is_causal, dtype=torch.float32, device="cpu"
    )
    cache, kv_format = paged(own_k, own_v)
    ragged = RaggedKV(indptr(parts[rank]))
    for form, kv in ((kv_format, (cache,)), (ragged, (torch.cat(own_k), torch.cat(own_v)))):
        attention.plan(indptr(q_lens), form)
        out, lse = attention.run(q, *kv)
        np.testing.assert_allclose(out.numpy(), want, atol=2e-5)
        np.testing.assert_allclose(lse.numpy(), want_lse, atol=2e-5)
        bits = [torch.empty_like(out) for _ in range(world)]
        dist.all_gather(bits, out)
        assert all(torch.equal(x, out) for x in bits)


def check_heads_by_rank(rank: int, world: int) -> None:
    heads, kv_heads = 2 * world, world
    q, k, v = (random(i, 7, n, DIM) for i, n in enumerate((heads, kv_heads, kv_heads)))
    shard = shard_heads(heads, kv_heads)

    def run(qo: slice, kv: slice) -> torch.Tensor:
        own = q[:, qo]
        batch = BatchAttention(
            own.shape[1], k[:, kv].shape[1], DIM, dtype=torch.float32, device="cpu"
        )
        out: torch.Tensor = batch.plan([0, 7], RaggedKV([0, 7])).run(own, k[:, kv], v[:, kv])
        return out

    got = gather_heads(run(*shard))
    torch.testing.assert_close(got, run(slice(None), slice(None)), atol=1e-6, rtol=0)


def check_a_group_and_ranks_without_keys(rank: int, world: int) -> None:
    group = dist.new_group([0, 1])
    if rank > 1:
        return
    out, lse = random(rank, 3, 2, DIM), random(rank + 10, 3, 2)
    if rank == 1:
        out[1], lse[1] = 0, -torch.inf  # no key for this row
    lse[2] = -torch.inf  # nobody has one
    out[2] = 0
    merged, total = merge_over_ranks(out, lse, group)
    own = [torch.empty_like(out), torch.empty_like(out)]
    logs = [torch.empty_like(lse), torch.empty_like(lse)]
    dist.all_gather(own, out, group=group)
    dist.all_gather(logs, lse, group=group)
    torch.testing.assert_close(total[:2], torch.logaddexp(*logs)[:2])
    weights = torch.exp(torch.stack(logs)[:, :2] - total[:2])[..., None]
    torch.testing.assert_close(merged[:2], (weights * torch.stack(own)[:, :2]).sum(0))
    assert torch.equal(merged[1], own[0][1])
    assert (merged[2] == 0).all() and (total[2] == -torch.inf).all()


def check_too_few_keys_at_the_end(rank: int, world: int) -> None:
    attention = KVParallelAttention(HEADS, KV_HEADS, DIM, dtype=torch.float32, device="cpu")
    if rank == world - 1:
        with pytest.raises(ValueError, match="1 keys of request 1, which has 2 query tokens"):
            attention.plan([0, 1, 3], RaggedKV([0, 4, 5]))
    else:
        attention.plan([0, 1, 3], RaggedKV([0, 4, 5]))
    with pytest.raises(TypeError, match="variant is given"):
        KVParallelAttention(HEADS, KV_HEADS, DIM, variant="full")


def check_the_example_of_the_page(rank: int, world: int) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", _PAGE.read_text(), re.S)
    given: dict[str, Any] = {"device": "cpu"}
    exec(code, given)
    assert given["out"].shape == (2, 32, 128) and given["out"].isfinite().all()


def _rank(rank: int, world: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        for name in STEPS:
            for is_causal in (True, False):
                check_keys_by_rank(rank, world, is_causal, name)
        check_heads_by_rank(rank, world)
        check_a_group_and_ranks_without_keys(rank, world)
        check_too_few_keys_at_the_end(rank, world)
        check_the_example_of_the_page(rank, world)
    finally:
        dist.destroy_process_group()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("world", [3, pytest.param(2, marks=pytest.mark.slow)])
def test_ranks(world: int, tmp_path: Path) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    mp.spawn(_rank, args=(world, str(tmp_path / "store")), nprocs=world)


@pytest.mark.parametrize(
    "heads, world, want",
    [
        ((32, 8), 4, [(0, 8, 0, 2), (8, 16, 2, 4), (16, 24, 4, 6), (24, 32, 6, 8)]),
        ((8, 2), 4, [(0, 2, 0, 1), (2, 4, 0, 1), (4, 6, 1, 2), (6, 8, 1, 2)]),
        ((6, 3), 1, [(0, 6, 0, 3)]),
    ],
)
def test_heads_of_ranks(
    heads: tuple[int, int], world: int, want: list[tuple[int, int, int, int]]
) -> None:
    for rank, (qo_begin, qo_end, kv_begin, kv_end) in enumerate(want):
        shard = shard_heads(*heads, rank, world)
        assert shard == (slice(qo_begin, qo_end), slice(kv_begin, kv_end))
        group = heads[0] // heads[1]
        assert {h // group for h in range(qo_begin, qo_end)} == set(range(kv_begin, kv_end))


def test_bad_input_names_the_argument() -> None:
    with pytest.raises(ValueError, match="num_kv_heads is 8; 3 ranks"):
        shard_heads(24, 8, 0, 3)
    with pytest.raises(ValueError, match="num_qo_heads is 6; 4 ranks"):
        shard_heads(6, 2, 0, 4)
    with pytest.raises(ValueError, match="num_qo_heads is 5 and num_kv_heads 2"):
        shard_heads(5, 2, 0, 1)
    with pytest.raises(ValueError, match="rank is 2"):
        shard_heads(4, 2, 2, 2)
    with pytest.raises(ValueError, match="world_size is 0"):
        split_keys([1], [1], 0)
    with pytest.raises(ValueError, match="kv_lens has shape"):
        split_keys([1, 2], [1], 2)


def test_ranges_add_up_and_the_last_holds_the_queries() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        world, multiple = int(rng.integers(1, 6)), int(rng.choice([1, 3, 16]))
        queries = rng.integers(0, 50, 7)
        keys = rng.integers(0, 300, 7)
        parts = split_keys(keys, queries, world, multiple=multiple)
        assert parts.shape == (world, 7) and (parts >= 0).all()
        assert (parts.sum(0) == keys).all()
        assert (parts[-1] >= np.minimum(queries, keys)).all()
        assert (parts[:-1] % multiple == 0).all()
        assert (parts[:-1] <= keys // world + multiple).all()
