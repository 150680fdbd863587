"""Tensors of a grid case, poisoned: whatever a kernel must not read or write is NaN.

Unused cache slots and pages, rows past the end of ragged KV, the gaps of strided tensors, keys far
outside the window, workspace; around outputs and lse lie canaries (check.py). Rows of other
requests, which are no poison here, are in test_neighbours.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from cute_attn import (
    BlockSparseKV,
    BlockTableKV,
    PagedKV,
    RaggedKV,
    Variant,
    causal,
    full,
    sliding_window,
    soft_cap,
)
from tests.gpu.grid import LENGTHS, Case

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
WINDOW_MARGIN = 512
"""Keys this far left of what any query sees are poisoned; a KV tile is at most 256 keys."""

Tensor = torch.Tensor


def variant_of(name: str) -> Variant:
    """The variant of a grid name."""
    return {
        "full": full(),
        "causal": causal(),
        "window": sliding_window(),
        "soft_cap": soft_cap(),
        "causal_window": causal() & sliding_window(),
        "causal_soft_cap": causal() & soft_cap(),
    }[name]


@dataclass
class Batch:
    """A case made concrete.

    Attributes:
        q_lens, kv_lens: tokens of every request.
        q: (q_tokens, num_qo_heads, head_dim), maybe strided.
        kv: what `run` takes after q: (cache,) or (k, v).
        keys, values: per request (kv_len, num_kv_heads, head_dim), clean copies for the oracle.
        kv_format: of cute_attn.
        scalars: of the variant.
    """

    q_lens: list[int]
    kv_lens: list[int]
    q: Tensor
    kv: tuple[Tensor, ...]
    keys: list[Tensor]
    values: list[Tensor]
    kv_format: Any
    scalars: dict[str, float | int]

    @property
    def qo_indptr(self) -> list[int]:
        return indptr(self.q_lens)

    @property
    def oracle_options(self) -> dict[str, Any]:
        """Window and cap for the oracle."""
        return {
            "window_left": self.scalars.get("window_left"),
            "soft_cap": self.scalars.get("logits_soft_cap"),
        }


def indptr(lengths: list[int]) -> list[int]:
    """Running sums from 0."""
    return list(accumulate(lengths, initial=0))


def nans(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full(shape, math.nan, dtype=dtype, device=device)


class Maker:
    """Random tensors of one case on one device."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case = case
        self.device = device
        self.dtype = DTYPES[case.family.dtype]
        self.dim, self.dim_vo = case.family.head_dim, case.family.head_dim_vo
        self.heads = case.num_kv_heads
        self.generator = torch.Generator(device).manual_seed(case.seed)

    def normal(self, *shape: int) -> Tensor:
        wide = torch.randn(shape, generator=self.generator, device=self.device)
        return wide.to(self.dtype)

    def ints(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    def q(self, tokens: int) -> Tensor:
        """Queries; a slice of a fused QKV projection for "strided"."""
        data = self.normal(tokens, self.case.num_qo_heads, self.dim)
        if self.case.memory != "strided":
            return data
        heads = self.case.num_qo_heads + 2 * self.heads
        fused = nans((tokens, heads, self.dim), self.dtype, self.device)
        q = fused[:, : self.case.num_qo_heads]
        q.copy_(data)
        return q

    def rows(self, count: int, dim: int, extra: int) -> Tensor:
        """(tokens, heads, dim) view of NaN memory in the case's layout; `extra` widens it."""
        pad = extra if self.case.memory == "strided" else 0
        if self.case.layout == "HND":
            whole = nans((self.heads, count + pad, dim + 8 * pad), self.dtype, self.device)
            return whole[:, :count, :dim].transpose(0, 1)
        whole = nans((count, self.heads + pad, dim + 8 * pad), self.dtype, self.device)
        return whole[:, : self.heads, :dim]

    def pages(self, count: int) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        """(what run takes, k view, v view): NaN caches, views (pages, page_size, heads, dim)."""
        size, heads = self.case.page_size, self.heads
        inner = (size, heads) if self.case.layout == "NHD" else (heads, size)
        if self.case.memory == "combined":
            cache = nans((count, 2, *inner, self.dim), self.dtype, self.device)
            given: tuple[Tensor, ...] = (cache,)
            parts = [cache[:, 0], cache[:, 1]]
        else:
            parts = []
            for dim, extra in ((self.dim, 1), (self.dim_vo, 2)):
                pad = extra if self.case.memory == "strided" else 0
                shape = (count, inner[0] + pad, inner[1], dim + 8 * pad)
                whole = nans(shape, self.dtype, self.device)
                parts.append(whole[:, : inner[0], :, :dim])
            given = tuple(parts)
        k, v = (x if self.case.layout == "NHD" else x.transpose(1, 2) for x in parts)
        return given, k, v


def make_batch(
    case: Case,
    device: torch.device,
    longest: int = LENGTHS[-1],
    requests: list[tuple[int, int]] | None = None,
) -> Batch:
    """Builds a case.

    Args:
        case: of the grid, or made by hand.
        device: where.
        longest: cuts the case's lengths.
        requests: (q_len, kv_len) pairs instead of the case's own.
    """
    maker = Maker(case, device)
    if case.table == "bsr":
        return _block_sparse(maker)
    pairs = case.requests(longest) if requests is None else requests
    q_lens, kv_lens = [q for q, _ in pairs], [kv for _, kv in pairs]
    q = maker.q(sum(q_lens))
    keys = [maker.normal(n, maker.heads, maker.dim) for n in kv_lens]
    values = [maker.normal(n, maker.heads, maker.dim_vo) for n in kv_lens]
    place = _ragged if case.page_size == 0 else _paged
    kv, kv_format = place(maker, q_lens, keys, values)
    scalars: dict[str, float | int] = {}
    if "window" in case.variant:
        scalars["window_left"] = case.window_left
    if "cap" in case.variant:
        scalars["logits_soft_cap"] = case.soft_cap
    return Batch(q_lens, kv_lens, q, kv, keys, values, kv_format, scalars)


def _first_used(case: Case, q_len: int, kv_len: int) -> int:
    """Keys before this one are far outside of every query's window."""
    if "window" not in case.variant:
        return 0
    return max(0, min(kv_len, kv_len - q_len - case.window_left - WINDOW_MARGIN))


def _poisoned(maker: Maker, q_lens: list[int], tensors: list[Tensor]) -> Tensor:
    """Rows of all requests one after the other, NaN where no query looks."""
    parts = []
    for q_len, x in zip(q_lens, tensors, strict=True):
        first = _first_used(maker.case, q_len, x.shape[0])
        parts.append(x)
        if first:
            parts[-1] = x.clone()
            parts[-1][:first] = math.nan
    return torch.cat(parts)


def _ragged(
    maker: Maker, q_lens: list[int], keys: list[Tensor], values: list[Tensor]
) -> tuple[tuple[Tensor, ...], RaggedKV]:
    rows = indptr([x.shape[0] for x in keys])
    spare = 64  # rows past the end
    k = maker.rows(rows[-1] + spare, maker.dim, 1)
    v = maker.rows(rows[-1] + spare, maker.dim_vo, 2)
    k[: rows[-1]] = _poisoned(maker, q_lens, keys)
    v[: rows[-1]] = _poisoned(maker, q_lens, values)
    if maker.case.layout == "HND":
        k, v = k.transpose(0, 1), v.transpose(0, 1)
    return (k, v), RaggedKV(rows)


def _paged(
    maker: Maker, q_lens: list[int], keys: list[Tensor], values: list[Tensor]
) -> tuple[tuple[Tensor, ...], PagedKV | BlockTableKV]:
    size, case = maker.case.page_size, maker.case
    kv_lens = [x.shape[0] for x in keys]
    counts = [-(-n // size) for n in kv_lens]
    total = sum(counts) + 5
    order = torch.randperm(total, generator=maker.generator, device=maker.device)
    numbers = order[: sum(counts)].split(counts)
    given, k, v = maker.pages(total)
    if sum(kv_lens):
        at = [torch.arange(n, device=maker.device) for n in kv_lens]
        page = torch.cat([p[i // size] for p, i in zip(numbers, at, strict=True) if len(i)])
        slot = torch.cat([i % size for i in at])
        k[page, slot] = _poisoned(maker, q_lens, keys)
        v[page, slot] = _poisoned(maker, q_lens, values)
    where = maker.device if case.device_table else torch.device("cpu")
    if case.table == "csr":
        last = [n - (c - 1) * size if c else 0 for n, c in zip(kv_lens, counts, strict=True)]
        flat = order[: sum(counts)].int().to(where)
        return given, PagedKV(indptr(counts), flat, last, size)
    # Entries past a request's pages are never read: page numbers far outside of the cache.
    table = torch.full((len(counts), max(counts) + 3), 1 << 30, dtype=torch.int32, device=where)
    for row, own in zip(table, numbers, strict=True):
        row[: len(own)] = own.int()
    return given, BlockTableKV(table, kv_lens, size)


def _block_sparse(maker: Maker) -> Batch:
    case, size = maker.case, maker.case.page_size
    rows, columns, pattern = case.bsr()
    num_rows = rows * len(pattern) - rows // 2  # the last block row is short
    q_lens = [rows] * (len(pattern) - 1) + [num_rows - rows * (len(pattern) - 1)]
    q = maker.q(num_rows)
    dims = (maker.dim, maker.dim_vo)
    keys, values = (maker.normal(columns * size, maker.heads, dim) for dim in dims)
    views = []
    for x, extra in ((keys, 1), (values, 2)):
        view = maker.rows(columns * size, x.shape[-1], extra)
        used = torch.zeros(columns, dtype=torch.bool, device=maker.device)
        used[maker.ints(sorted({c for blocks in pattern for c in blocks}))] = True
        view[used.repeat_interleave(size)] = x[used.repeat_interleave(size)]
        views.append(view.transpose(0, 1) if case.layout == "HND" else view)
    where = maker.device if case.device_table else torch.device("cpu")
    indices = torch.tensor([c for blocks in pattern for c in blocks], dtype=torch.int32)
    kv_format = BlockSparseKV(
        indptr([len(blocks) for blocks in pattern]),
        indices.to(where),
        (rows, size),
        num_rows,
        columns * size,
    )
    split = [x.view(columns, size, maker.heads, -1) for x in (keys, values)]
    own = [[x[maker.ints(blocks)].flatten(0, 1) for blocks in pattern] for x in split]
    scalars: dict[str, float | int] = {}
    if "cap" in case.variant:
        scalars["logits_soft_cap"] = case.soft_cap
    kv_lens = [len(blocks) * size for blocks in pattern]
    return Batch(q_lens, kv_lens, q, tuple(views), own[0], own[1], kv_format, scalars)
