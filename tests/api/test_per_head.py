"""Lists of pages and sparse patterns of each KV head: against the oracle, head by head."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
import torch

from cute_attn import (
    BatchAttention,
    BlockSparseKV,
    BlockTableKV,
    CompositeAttention,
    Level,
    PagedKV,
    PerHeadKV,
    Variant,
)

HEADS, GROUP, DIM = 3, 2, 16


def tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator) for shape in shapes]


def attention(variant: Any = "full", **options: Any) -> BatchAttention:
    options = {"dtype": torch.float32, "device": "cpu", **options}
    return BatchAttention(HEADS * GROUP, HEADS, DIM, variant=variant, **options)


def check(out: Any, lse: Any, want: Any, want_lse: Any) -> None:
    assert oracle.relative_error(out, want) < 1e-5
    assert oracle.lse_error(lse, want_lse) < 1e-5


class Selected:
    """Requests whose KV heads read pages of their own, some of them none."""

    page_size = 4

    def __init__(self, seed: int, q_len: list[int], longest: int = 90) -> None:
        rng = np.random.default_rng(seed)
        count = len(q_len)
        self.q_len, self.rows = q_len, np.r_[0, np.cumsum(q_len)]
        self.kv_len = rng.integers(0, longest, (count, HEADS))
        self.kv_len[0, 1] = 0
        self.kv_len[-1] = 0
        width = -(-longest // self.page_size)
        self.pages = width + 37
        self.tables = np.stack(
            [[rng.permutation(self.pages)[:width] for _ in range(HEADS)] for _ in q_len]
        )

    @property
    def kv(self) -> PerHeadKV:
        tables = self.tables.reshape(len(self.q_len) * HEADS, -1)
        return PerHeadKV(BlockTableKV(tables, self.kv_len.reshape(-1), self.page_size), HEADS)

    def dense(self, q: Any, k: Any, v: Any, layout: str, mask: str) -> tuple[Any, Any]:
        """out and lse of the oracle."""
        out = np.full(q.shape, np.nan)
        lse = np.full(q.shape[:2], np.nan)
        for r in range(len(self.q_len)):
            rows = slice(self.rows[r], self.rows[r + 1])
            for h in range(HEADS):
                heads = slice(h * GROUP, (h + 1) * GROUP)
                pages, length = self.tables[r, h], int(self.kv_len[r, h])
                keys, values = oracle.gather_paged(k, v, pages, length, layout)
                out[rows, heads], lse[rows, heads] = oracle.attend(
                    q[rows, heads], keys[:, h : h + 1], values[:, h : h + 1],
                    mask=oracle.mask_of(mask),
                )  # fmt: skip
        return out, lse


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("q_len", [[1] * 7, [5, 0, 1, 40, 3]], ids=["decode", "prefill"])
def test_a_list_of_pages_for_each_head(layout: str, mask: str, q_len: list[int]) -> None:
    step = Selected(1, q_len)
    inner = (step.page_size, HEADS) if layout == "NHD" else (HEADS, step.page_size)
    shape = (step.pages, *inner, DIM)
    q, k, v = tensors((sum(q_len), HEADS * GROUP, DIM), shape, shape)
    made = attention(mask, kv_layout=layout).plan(step.rows, step.kv)
    out, lse = made.run(q, k, v, return_lse=True)
    check(out, lse, *step.dense(q, k, v, layout, mask))


def test_split_lists_are_merged() -> None:
    step = Selected(2, [1, 1], longest=5001)
    step.kv_len[0, 0] = 5000
    shape = (step.pages, step.page_size, HEADS, DIM)
    q, k, v = tensors((2, HEADS * GROUP, DIM), shape, shape)
    made = attention().plan(step.rows, step.kv)
    assert made.last_plan is not None and made.last_plan.num_split_tiles
    out, lse = made.run(q, k, v, return_lse=True)
    check(out, lse, *step.dense(q, k, v, "NHD", "full"))


def test_explain_shows_requests_and_their_heads() -> None:
    step = Selected(3, [1, 2, 3])
    explanation = attention().plan(step.rows, step.kv).explain()
    items = [item for launch in explanation.launches for b in launch.blocks for item in b.items]
    assert {(item.request, item.kv_head) for item in items} == {
        (r, h) for r in range(3) for h in range(HEADS)
    }
    read = sum(item.key_end - item.key_begin for item in items if item.row_begin == 0)
    assert read == step.kv_len.sum()


def test_hooks_are_given_the_request() -> None:
    """And the query head, where heads of a request are planned apart."""

    def by_place(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score * 0 + (b + 0.1 * h) * (kv_idx == 0)

    step = Selected(4, [2, 1, 1])
    step.kv_len[:] = 2  # of two keys the first one has the score, the other 0
    shape = (step.pages, step.page_size, HEADS, DIM)
    q, k, v = tensors((4, HEADS * GROUP, DIM), shape, shape)
    made = attention(Variant("by_place", logits=by_place)).plan(step.rows, step.kv)
    _, lse = made.run(q, k, v, return_lse=True)
    request = np.array([0, 0, 1, 2])[:, None]
    wanted = np.log(np.exp(request + 0.1 * np.arange(HEADS * GROUP)) + 1)
    assert np.allclose(lse.numpy(), wanted, atol=1e-5)


def by_keys(q: Any, k: Any, v: Any, seen: Any) -> tuple[Any, Any]:
    """The oracle, with seen (KV heads, query rows, keys)."""
    outs, lses = [], []
    for h in range(HEADS):
        heads = slice(h * GROUP, (h + 1) * GROUP)
        pattern = seen[h]
        out, lse = oracle.attend(
            q[:, heads], k[:, h : h + 1], v[:, h : h + 1],
            mask=lambda i, j, pattern=pattern: pattern[i, j], q_pos=0,
        )  # fmt: skip
        outs.append(out)
        lses.append(lse)
    return np.concatenate(outs, 1), np.concatenate(lses, 1)


def test_a_pattern_for_each_head() -> None:
    rng = np.random.default_rng(5)
    rows, keys = 70, 96
    patterns, seen = [], np.zeros((HEADS, rows, keys), bool)
    for h, (r, c) in enumerate([(32, 8), (16, 8), (70, 8)]):
        blocks = rng.random((-(-rows // r), keys // c)) < 0.3
        blocks[0] = h == 0
        at = np.nonzero(blocks)
        pointer = np.r_[0, np.cumsum(blocks.sum(1))]
        patterns.append(BlockSparseKV(pointer, at[1], (r, c), rows, keys))
        seen[h] = blocks.repeat(r, 0)[:rows].repeat(c, 1)
    q, k, v = tensors((rows, HEADS * GROUP, DIM), (keys, HEADS, DIM), (keys, HEADS, DIM))
    made = attention().plan(None, PerHeadKV.of_heads(patterns))
    out, lse = made.run(q, k, v, return_lse=True)
    check(out, lse, *by_keys(q, k, v, seen))


@pytest.mark.parametrize("unit", [1, 16])
def test_blocks_of_any_sizes(unit: int) -> None:
    rng = np.random.default_rng(unit)
    mask = rng.random((HEADS, 4, 5)) < 0.4
    row_sizes = np.stack([rng.permutation([0, 30, 17, 3]) for _ in range(HEADS)])
    column_sizes = unit * np.stack([rng.permutation([3, 0, 1, 4, 2]) for _ in range(HEADS)])
    kv = PerHeadKV.of_blocks(mask, row_sizes, column_sizes)
    pairs = zip(mask, row_sizes, column_sizes, strict=True)
    seen = np.stack([own.repeat(r, 0).repeat(c, 1) for own, r, c in pairs])
    q, k, v = tensors((50, HEADS * GROUP, DIM), *[(10 * unit, HEADS, DIM)] * 2)
    out, lse = attention().plan(None, kv).run(q, k, v, return_lse=True)
    check(out, lse, *by_keys(q, k, v, seen))


def test_faults() -> None:
    step = Selected(6, [1, 1])
    with pytest.raises(ValueError, match="tables for 3 KV heads each; num_kv_heads is 2"):
        BatchAttention(4, 2, DIM, dtype=torch.float32, device="cpu").plan(step.rows, step.kv)
    with pytest.raises(ValueError, match="batch_invariant is True; it takes formats in which"):
        attention(batch_invariant=True).plan(step.rows, step.kv)
    with pytest.raises(ValueError, match="qo_indptr describes 3 requests, kv_format 2"):
        attention().plan([0, 1, 2, 3], step.kv)
    with pytest.raises(TypeError, match="PerHeadKV, whose requests share nothing"):
        CompositeAttention(6, 3, DIM, device="cpu").plan(step.rows, step.kv)
    with pytest.raises(TypeError, match="kv is a PerHeadKV; it takes PagedKV, BlockTableKV or Rag"):
        Level(step.kv)
    pattern = BlockSparseKV([0, 1], [0], (4, 4), 4, 20)
    with pytest.raises(ValueError, match="masks by position, but keys have none in PerHeadKV"):
        attention("causal").plan(None, PerHeadKV.of_heads([pattern] * 3))
    pages = tensors((step.pages - 1, step.page_size, HEADS, DIM))[0]
    kv = PerHeadKV(PagedKV([0, 1, 2, 3], [1, 2, step.pages - 1], [1, 1, 1], step.page_size), HEADS)
    with pytest.raises(ValueError, match="holds page 59 but the cache has 59 pages"):
        attention().plan([0, 1], kv).run(tensors((1, 6, DIM))[0], pages, pages)
