"""Public calls on a GPU beside the sampled grid of `tests/gpu`: graphs, streams, merge, append."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import oracle
import pytest
import torch

from cute_attn import (
    BatchAttention,
    BlockTableKV,
    PagedKV,
    RaggedKV,
    RoPE,
    append_paged_kv,
    attention,
    merge_states,
    single_decode,
)

pytestmark = pytest.mark.gpu

BF16 = torch.bfloat16
PAGE = 16
HEADS, KV_HEADS, DIM = 8, 2, 128


def random(seed: int, *size: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*size, generator=generator, device="cuda").to(dtype)


class Pool:
    """A paged cache of random contents; the lengths of a step choose the pages."""

    def __init__(self, pages: int, seed: int = 0) -> None:
        self.cache = random(seed, pages, 2, PAGE, KV_HEADS, DIM)
        self.pages = pages

    def step(self, kv_len: list[int], seed: int) -> tuple[PagedKV, list[Any]]:
        counts = [-(-n // PAGE) for n in kv_len]
        order = np.random.default_rng(seed).permutation(self.pages)[: sum(counts)]
        indptr = np.cumsum([0, *counts])
        last = [n - (c - 1) * PAGE if n else 0 for n, c in zip(kv_len, counts, strict=True)]
        own = [order[a:b] for a, b in itertools.pairwise(indptr)]
        return PagedKV(indptr, order.astype(np.int32), last, PAGE), own


def expect(
    pool: Pool, q: torch.Tensor, q_len: list[int], kv_len: list[int], own: list[Any]
) -> tuple[Any, Any]:
    gathered = [
        oracle.gather_paged(pool.cache[:, 0], pool.cache[:, 1], pages, n)
        for pages, n in zip(own, kv_len, strict=True)
    ]
    keys, values = zip(*gathered, strict=True)
    indptr = np.cumsum([0, *q_len])
    return oracle.attend_batch(q, indptr, keys, values, mask=oracle.mask_of("causal"))


@pytest.mark.parametrize("prefill", [False, True])
def test_captured_once_replayed_with_other_lengths(prefill: bool) -> None:
    """Three layers in one graph; 20 replays, each after a plan() with random lengths."""
    rng = np.random.default_rng(3)
    rows, pools = 160 if prefill else 8, [Pool(400, seed) for seed in range(3)]
    batch = BatchAttention(
        HEADS, KV_HEADS, DIM, dtype=BF16, cuda_graph=True, max_requests=8, max_pages=400
    )

    def step(seed: int) -> tuple[list[int], list[int], list[Any]]:
        kv_len = rng.integers(0, 700, 8).tolist()
        q_len = rng.integers(0, 21, 8).tolist() if prefill else rng.integers(0, 2, 8).tolist()
        kv_format, own = pools[0].step(kv_len, seed)
        batch.plan(np.cumsum([0, *q_len]), kv_format)
        return q_len, kv_len, own

    q = random(9, rows, HEADS, DIM)
    outs = [torch.empty_like(q) for _ in pools]
    lses = [torch.empty(rows, HEADS, device="cuda") for _ in pools]

    def layers() -> None:
        for pool, out, lse in zip(pools, outs, lses, strict=True):
            batch.run(q, pool.cache, out=out, lse=lse)

    step(0)
    layers()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layers()
    for seed in range(20):
        q_len, kv_len, own = step(seed)
        for out in outs:
            out.fill_(float("nan"))
        graph.replay()
        used = sum(q_len)
        for pool, out, lse in zip(pools, outs, lses, strict=True):
            expected, expected_lse = expect(pool, q[:used], q_len, kv_len, own)
            assert oracle.relative_error(out[:used], expected) < 4e-3
            assert oracle.lse_error(lse[:used], expected_lse) < 1e-3
            assert out[used:].isnan().all()  # rows of no request are left alone


def test_plans_given_ahead_of_a_busy_stream_do_not_overwrite_each_other() -> None:
    pool, batch = Pool(300), BatchAttention(HEADS, KV_HEADS, DIM, dtype=BF16)
    q = random(1, 4, HEADS, DIM)
    lengths = [[5, 900, 33, 1], [1000, 2, 2, 77], [16, 16, 16, 16], [400, 1, 800, 3]] * 3
    steps = [pool.step(kv_len, seed) for seed, kv_len in enumerate(lengths)]
    batch.plan(range(5), steps[0][0]).run(q, pool.cache)
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)
    outs = [batch.plan(range(5), kv_format).run(q, pool.cache) for kv_format, _ in steps[:4]]
    for out, kv_len, (_, own) in zip(outs, lengths, steps, strict=False):
        expected, _ = expect(pool, q, [1] * 4, kv_len, own)
        assert oracle.relative_error(out, expected) < 4e-3


def test_planned_on_one_stream_run_on_another() -> None:
    pool, batch = Pool(300), BatchAttention(HEADS, KV_HEADS, DIM, dtype=BF16)
    q = random(1, 4, HEADS, DIM)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    for seed, kv_len in enumerate([[5, 900, 33, 1], [1000, 2, 2, 77], [16, 16, 16, 16]]):
        kv_format, own = pool.step(kv_len, seed)
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
            batch.plan(range(5), kv_format)
        out = batch.run(q, pool.cache)
        expected, _ = expect(pool, q, [1] * 4, kv_len, own)
        assert oracle.relative_error(out, expected) < 4e-3


@pytest.mark.parametrize("tables", [False, True])
def test_page_table_on_the_device(tables: bool) -> None:
    pool, kv_len = Pool(100), [100, 17, 0, 333]
    kv_format, own = pool.step(kv_len, 1)
    q = random(1, 4, HEADS, DIM)
    on_device: PagedKV | BlockTableKV
    if tables:
        table = torch.full((4, 30), -1, dtype=torch.int32)
        for i, pages in enumerate(own):
            table[i, : len(pages)] = torch.from_numpy(pages)
        on_device = BlockTableKV(table.cuda()[:, :25], kv_len, PAGE)
    else:
        counts = [len(pages) for pages in own]
        last = [n - (c - 1) * PAGE if n else 0 for n, c in zip(kv_len, counts, strict=True)]
        indices = torch.from_numpy(kv_format.page_table).cuda()
        on_device = PagedKV(np.cumsum([0, *counts]), indices, last, PAGE)
    expected, _ = expect(pool, q, [1] * 4, kv_len, own)
    for graph in (False, True):
        batch = BatchAttention(HEADS, KV_HEADS, DIM, dtype=BF16, cuda_graph=graph)
        out = batch.plan(range(5), on_device).run(q, pool.cache)
        assert oracle.relative_error(out, expected) < 4e-3


def test_dense_and_single() -> None:
    q, k, v = random(0, 2, 70, HEADS, DIM), random(1, 2, 300, 2, DIM), random(2, 2, 300, 2, DIM)
    out, lse = attention(q, k, v, variant="causal", return_lse=True)
    for i in range(2):
        expected = oracle.attend(q[i], k[i], v[i], mask=oracle.mask_of("causal"))
        assert oracle.relative_error(out[i], expected[0]) < 4e-3
        assert oracle.lse_error(lse[i], expected[1]) < 1e-3
    last = single_decode(q[1, -1], k[1], v[1])
    assert oracle.relative_error(last, oracle.attend(q[1, -1:], k[1], v[1])[0][0]) < 4e-3


def test_one_kernel_and_at_most_one_merge_serve_a_mixed_batch() -> None:
    batch = BatchAttention(HEADS, KV_HEADS, DIM, dtype=BF16)
    q_len, kv_len = [300, 40, 1, 1, 1], [300, 900, 5000, 17, 1]
    rows = np.cumsum([0, *kv_len])
    q, k = random(0, sum(q_len), HEADS, DIM), random(1, sum(kv_len), KV_HEADS, DIM)
    batch.plan(np.cumsum([0, *q_len]), RaggedKV(rows))
    batch.run(q, k, k)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        batch.run(q, k, k)
        torch.cuda.synchronize()
    names = [e.name for e in profile.events() if e.device_type == torch.profiler.DeviceType.CUDA]
    assert len([n for n in names if n.startswith(("hopper_", "ampere_"))]) == 1
    assert len([n for n in names if n.startswith("merge_")]) <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BF16])
@pytest.mark.parametrize(("states", "dim"), [(1, 64), (3, 128), (9, 256), (130, 96)])
def test_merge_states(dtype: torch.dtype, states: int, dim: int) -> None:
    v = random(0, states, 37, 5, dim + 8, dtype=dtype)[..., :dim]  # strided rows
    lse = 5 * random(1, states, 37, 5, dtype=torch.float32)
    lse[0, 3] = lse[:, 4] = -torch.inf
    out, out_lse = merge_states(v, lse)
    weights = torch.softmax(lse.double(), 0).nan_to_num()
    expected = (weights[..., None] * v.double()).sum(0)
    error = {torch.float32: 1e-5, torch.float16: 6e-4, BF16: 4e-3}[dtype]
    assert oracle.relative_error(out, expected.cpu().numpy()) < error
    total = torch.logsumexp(lse.double(), 0).cpu().numpy()
    assert oracle.lse_error(out_lse, total) < 1e-5 * max(1, np.abs(total[np.isfinite(total)]).max())
    assert (out[4] == 0).all() and torch.equal(out, merge_states(v, lse)[0])


@pytest.mark.parametrize("rope", [None, RoPE(), RoPE("interleaved", theta=5e5, scale=4.0)])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_append_equals_the_cpu(rope: RoPE | None, layout: str, page_size: int) -> None:
    rng = np.random.default_rng(0)
    requests, tokens, heads, dim = 3, 50, 2, 128
    lengths = [1_000_000, 70, 5]
    counts = [-(-n // page_size) for n in lengths]
    pages, indptr = 64, np.cumsum([0, *counts])
    table = rng.integers(0, pages, indptr[-1]).astype(np.int32)
    last = [n - (c - 1) * page_size for n, c in zip(lengths, counts, strict=True)]
    # Every written place is another one: pages of the written positions are numbered through.
    places = [(0, 999_999 - 7 * i) for i in range(20)] + [(1, 3 * i) for i in range(20)]
    used = {}
    for request, position in places:
        entry = indptr[request] + position // page_size
        table[entry] = used.setdefault(entry, len(used))
    places += [(-1, 0)] * (tokens - len(places))
    where = torch.tensor(places, dtype=torch.int32)
    shape = (page_size, heads, dim) if layout == "NHD" else (heads, page_size, dim)
    on_host = torch.zeros(pages, 2, *shape, dtype=torch.float16)
    on_gpu = on_host.cuda()
    key, value = random(0, tokens, heads, 2 * dim, dtype=torch.float16).chunk(2, dim=-1)
    for cache, device in ((on_host, "cpu"), (on_gpu, "cuda")):
        append_paged_kv(
            key.to(device),
            value.to(device),
            where[:, 0].contiguous().to(device),
            where[:, 1].contiguous().to(device),
            cache,
            None,
            PagedKV(indptr, table, last, page_size),
            kv_layout=layout,
            rope=rope,
        )
    assert requests == len(lengths) and on_host.count_nonzero() > 0
    torch.testing.assert_close(on_gpu.cpu(), on_host, atol=2e-3, rtol=2e-3)
    if rope is None:
        assert torch.equal(on_gpu.cpu(), on_host)
