"""`BatchAttention` on CPU tensors against the dense oracle."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import oracle
import pytest
import torch

from cute_attn import (
    BatchAttention,
    BlockSparseKV,
    BlockTableKV,
    PagedKV,
    RaggedKV,
    causal,
    sliding_window,
)

ERROR = {torch.float32: 2e-6, torch.float16: 6e-4, torch.bfloat16: 4e-3}


def indptr(lengths: list[int]) -> list[int]:
    return [0, *np.cumsum(lengths).tolist()]


def random(seed: int, *size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Paged:
    """A paged cache with random pages; unused slots hold NaN."""

    def __init__(
        self,
        kv_len: list[int],
        heads: int,
        dim: int,
        page_size: int,
        layout: str = "NHD",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        counts = [-(-n // page_size) for n in kv_len]
        order = np.random.default_rng(1).permutation(sum(counts) + 3)
        self.kv_len, self.page_size = kv_len, page_size
        self.indptr = indptr(counts)
        self.indices = order[: sum(counts)].astype(np.int32)
        self.last = [
            n - (c - 1) * page_size if n else 0 for n, c in zip(kv_len, counts, strict=True)
        ]
        shape = (page_size, heads, dim) if layout == "NHD" else (heads, page_size, dim)
        self.cache = torch.full((len(order), 2, *shape), float("nan"), dtype=dtype)
        self.keys = [random(10 + i, n, heads, dim, dtype=dtype) for i, n in enumerate(kv_len)]
        self.values = [random(50 + i, n, heads, dim, dtype=dtype) for i, n in enumerate(kv_len)]
        for i, n in enumerate(kv_len):
            for t in range(n):
                page = int(self.indices[self.indptr[i] + t // page_size])
                for which, rows in enumerate((self.keys[i], self.values[i])):
                    place = self.cache[page, which]
                    if layout == "HND":
                        place = place.transpose(0, 1)
                    place[t % page_size] = rows[t]

    def format(self) -> PagedKV:
        return PagedKV(self.indptr, self.indices, self.last, self.page_size)

    def tables(self) -> BlockTableKV:
        width = max(np.diff(self.indptr).max(), 1)
        tables = np.full((len(self.kv_len), width), -1, np.int32)
        for i in range(len(self.kv_len)):
            own = self.indices[self.indptr[i] : self.indptr[i + 1]]
            tables[i, : own.size] = own
        return BlockTableKV(tables, self.kv_len, self.page_size)


def check(out: torch.Tensor, lse: torch.Tensor, expected: Any, dtype: torch.dtype) -> None:
    assert out.dtype == dtype and lse.dtype == torch.float32
    assert oracle.relative_error(out, expected[0]) < ERROR[dtype]
    assert oracle.lse_error(lse, expected[1]) < 1e-4


@pytest.mark.parametrize("dtype", list(ERROR))
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_mixed_ragged_batch(mask: str, dtype: torch.dtype) -> None:
    """Prefill, append, decode, empty requests and more queries than keys, in one call."""
    q_len, kv_len = [17, 3, 1, 0, 5, 9, 1], [17, 130, 97, 12, 0, 4, 1]
    q = random(0, sum(q_len), 6, 40, dtype=dtype)
    k, v = (random(s, sum(kv_len), 2, 40, dtype=dtype) for s in (1, 2))
    batch = BatchAttention(6, 2, 40, dtype=dtype, variant=mask, device="cpu")
    out, lse = batch.plan(indptr(q_len), RaggedKV(indptr(kv_len))).run(q, k, v, return_lse=True)
    rows = indptr(kv_len)
    split = [slice(a, b) for a, b in itertools.pairwise(rows)]
    expected = oracle.attend_batch(
        q, indptr(q_len), [k[s] for s in split], [v[s] for s in split], mask=oracle.mask_of(mask)
    )
    check(out, lse, expected, dtype)
    assert batch.last_plan is not None and batch.last_plan.num_requests == len(q_len)


@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("tables", [False, True])
def test_paged(page_size: int, layout: str, tables: bool) -> None:
    q_len, kv_len = [4, 1, 0, 2], [21, 33, 5, 0]
    paged = Paged(kv_len, 2, 32, page_size, layout)
    q = random(0, sum(q_len), 8, 32)
    batch = BatchAttention(8, 2, 32, dtype=torch.float32, kv_layout=layout, device="cpu")
    batch.plan(indptr(q_len), paged.tables() if tables else paged.format())
    expected = oracle.attend_batch(
        q, indptr(q_len), paged.keys, paged.values, mask=oracle.mask_of("causal")
    )
    out, lse = batch.run(q, paged.cache, return_lse=True)
    check(out, lse, expected, torch.float32)
    # The same cache as a pair of strided views gives the same bits.
    pair = paged.cache[:, 0], paged.cache[:, 1]
    assert torch.equal(batch.run(q, *pair), out) and torch.equal(batch.run(q, pair), out)


def test_long_decode_is_split_and_merged() -> None:
    kv_len = [1500, 70]
    q = random(0, 2, 4, 64)
    k, v = random(1, sum(kv_len), 1, 64), random(2, sum(kv_len), 1, 64)
    batch = BatchAttention(4, 1, 64, dtype=torch.float32, device="cpu")
    batch.plan([0, 1, 2], RaggedKV(indptr(kv_len)))
    assert batch.last_plan is not None and batch.last_plan.num_split_tiles > 0
    out, lse = batch.run(q, k, v, return_lse=True)
    expected = oracle.attend_batch(q, [0, 1, 2], [k[:1500], k[1500:]], [v[:1500], v[1500:]])
    check(out, lse, expected, torch.float32)


def test_out_and_lse_are_written_in_place() -> None:
    q, k = random(0, 3, 2, 16), random(1, 9, 2, 16)
    batch = BatchAttention(2, 2, 16, dtype=torch.float32, device="cpu")
    batch.plan([0, 3], RaggedKV([0, 9]))
    wide = torch.full((3, 2, 32), float("nan"))
    out, lse = wide[..., :16], torch.full((3, 2), float("nan"))
    got = batch.run(q, k, k, out=out, lse=lse)
    assert got[0] is out and got[1] is lse
    assert torch.equal(out, batch.run(q, k, k)) and not lse.isnan().any()
    assert wide[..., 16:].isnan().all()


def test_q_as_a_slice_of_fused_qkv() -> None:
    fused = random(0, 6, 4 + 2 + 2, 32)
    q, k, v = fused[:, :4], fused[:, 4:6], fused[:, 6:]
    batch = BatchAttention(4, 2, 32, dtype=torch.float32, device="cpu")
    out = batch.plan([0, 6], RaggedKV([0, 6])).run(q, k, v)
    assert torch.equal(out, batch.run(q.contiguous(), k.contiguous(), v.contiguous()))


def test_one_plan_serves_many_layers_and_replanning() -> None:
    q, k = random(0, 2, 2, 16), random(1, 8, 2, 16)
    batch = BatchAttention(2, 2, 16, dtype=torch.float32, device="cpu")
    batch.plan([0, 1, 2], RaggedKV([0, 5, 8]))
    first = [batch.run(q, k, layer * k) for layer in (1, 2)]
    assert torch.allclose(2 * first[0], first[1])
    batch.plan([0, 2], RaggedKV([0, 8]))
    expected = oracle.attend(q, k, k, mask=oracle.mask_of("causal"))[0]
    assert oracle.relative_error(batch.run(q, k, k), expected) < 1e-6


def test_window_comes_from_the_plan() -> None:
    variant = causal() & sliding_window()
    q, k = random(0, 20, 2, 16), random(1, 300, 2, 16)
    batch = BatchAttention(2, 2, 16, dtype=torch.float32, variant=variant, device="cpu")
    batch.plan([0, 20], RaggedKV([0, 300]), scalars={"window_left": 30})
    expected = oracle.attend(q, k, k, mask=oracle.mask_of("causal_window", 30))[0]
    assert oracle.relative_error(batch.run(q, k, k), expected) < 1e-6
    with pytest.raises(ValueError, match=r"window_left.*give them to plan"):
        batch.run(q, k, k, scalars={"window_left": 31})


def test_soft_cap_at_run() -> None:
    q, k = 5 * random(0, 3, 2, 16), random(1, 30, 2, 16)
    batch = BatchAttention(2, 2, 16, dtype=torch.float32, variant="soft_cap", device="cpu")
    batch.plan([0, 3], RaggedKV([0, 30]))
    for cap in (2.0, 30.0):
        out = batch.run(q, k, k, scalars={"logits_soft_cap": cap})
        assert oracle.relative_error(out, oracle.attend(q, k, k, soft_cap=cap)[0]) < 1e-5


def test_softmax_scale_at_run() -> None:
    q, k, v = random(1, 3, 4, 64), random(2, 40, 2, 64), random(3, 40, 2, 64)
    batch = BatchAttention(4, 2, 64, dtype=torch.float32, device="cpu")
    batch.plan([0, 3], RaggedKV([0, 40]))
    for scale in (0.5, None, 0.02):
        out, lse = batch.run(q, k, v, return_lse=True, sm_scale=scale)
        expected, log = oracle.attend(q, k, v, mask=oracle.mask_of("causal"), sm_scale=scale)
        assert oracle.relative_error(out, expected) < ERROR[torch.float32]
        assert oracle.lse_error(lse, log) < 1e-5
    with pytest.raises(ValueError, match="sm_scale is 0; it takes a positive finite number"):
        batch.run(q, k, v, sm_scale=0)


def test_block_sparse() -> None:
    """Block rows of 4 queries see chosen blocks of 8 keys."""
    rows, cols, chosen = 10, 40, [[0, 3], [], [1, 2, 4]]
    q, k, v = random(0, rows, 4, 16), random(1, cols, 2, 16), random(2, cols, 2, 16)
    pattern = BlockSparseKV(
        indptr([len(c) for c in chosen]), list(itertools.chain(*chosen)), (4, 8), rows, cols
    )
    batch = BatchAttention(4, 2, 16, dtype=torch.float32, variant="full", device="cpu")
    out = batch.plan(None, pattern).run(q, k, v)
    for i, blocks in enumerate(chosen):
        keys = [key for block in blocks for key in range(8 * block, 8 * block + 8)]
        own = slice(4 * i, min(4 * i + 4, rows))
        assert oracle.relative_error(out[own], oracle.attend(q[own], k[keys], v[keys])[0]) < 1e-6
    with pytest.raises(ValueError, match=r"causal.*masks by position"):
        BatchAttention(4, 2, 16, device="cpu").plan(None, pattern)
