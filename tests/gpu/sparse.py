"""Sparse KV for any device: lists of pages and patterns of each KV head, masks within blocks; and
the kernels that they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from cute_attn import (
    BatchAttention,
    BlockSparseKV,
    BlockTableKV,
    KernelSpec,
    PerHeadKV,
    Problem,
    Variant,
    choose,
    custom_mask,
    full,
)
from cute_attn.abi import UNBOUNDED
from cute_attn.api.dispatch import FEW_TILES, SMALL_ROWS, is_long, tiles_per_sm
from cute_attn.formats import KVFormat
from cute_attn.scheduler.constants import H200
from tests.gpu import oracle64

KV_HEADS, GROUP, DIM = 2, 4, 128
HEADS = KV_HEADS * GROUP
DTYPE = torch.bfloat16
SPARE = 5  # pages that no list has


@dataclass
class Batch:
    """Of one case, on a device.

    Attributes:
        rows: qo_indptr, or None.
        kv_format: the format.
        q: (q_tokens, heads, dim).
        kv: what run() takes behind q; NaN where nobody has a key.
        seen: of each KV head: (rows of q, keys (n, dim), values, mask or None) of each list.
    """

    rows: Any
    kv_format: KVFormat
    q: torch.Tensor
    kv: tuple[torch.Tensor, ...]
    seen: list[list[tuple[slice, torch.Tensor, torch.Tensor, torch.Tensor | None]]]


@dataclass(frozen=True)
class SparseCase:
    """What is asked.

    Attributes:
        make: the batch on a device.
        variant: the program.
        schedule: kernel family, or None.
        layout: of K and V.
    """

    make: Callable[[torch.device], Batch]
    variant: Variant = field(default_factory=full)
    schedule: str | None = None
    layout: str = "NHD"


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def lists(
    q_len: list[int], longest: int, page_size: int, layout: str = "NHD"
) -> Callable[[torch.device], Batch]:
    """A list of pages for each request and KV head: the first one has all, some have none."""

    def make(device: torch.device) -> Batch:
        rng = np.random.default_rng(len(q_len))
        count, width = len(q_len), -(-longest // page_size)
        kv_len = rng.integers(0, longest + 1, (count, KV_HEADS))
        kv_len[0, 0], kv_len[-1, 1] = longest, 0
        pages = 2 * width + SPARE
        tables = np.stack(
            [[rng.permutation(pages)[:width] for _ in range(KV_HEADS)] for _ in q_len]
        )
        rows = np.cumsum([0, *q_len])
        own = [random(i, KV_HEADS, pages, page_size, DIM).to(device, DTYPE) for i in range(2)]
        read = np.zeros((KV_HEADS, pages), bool)
        seen: list[list[Any]] = [[] for _ in range(KV_HEADS)]
        for r, h in np.ndindex(count, KV_HEADS):
            used = tables[r, h, : -(-kv_len[r, h] // page_size)]
            read[h, used] = True
            keys, values = (x[h, used].flatten(0, 1)[: kv_len[r, h]] for x in own)
            seen[h].append((slice(rows[r], rows[r + 1]), keys, values, None))
        for x in own:
            x[torch.from_numpy(~read).to(device)] = torch.nan
        order = (1, 0, 2, 3) if layout == "HND" else (1, 2, 0, 3)
        cache = torch.stack([x.permute(order) for x in own], 1).contiguous()
        table = torch.from_numpy(tables.reshape(count * KV_HEADS, -1).astype(np.int32)).to(device)
        kv = PerHeadKV(BlockTableKV(table, kv_len.reshape(-1), page_size), KV_HEADS)
        q = random(2, int(rows[-1]), HEADS, DIM).to(device, DTYPE)
        return Batch(rows, kv, q, (cache,), seen)

    return make


def blocks(
    rng: np.random.Generator,
    rows: int,
    keys: int,
    block: tuple[int, int],
    *,
    masked: bool = False,
    share: float = 0.2,
) -> tuple[BlockSparseKV, np.ndarray]:
    """A pattern with an empty block row and one of every block, and (rows, keys) what is seen."""
    kept = rng.random((-(-rows // block[0]), keys // block[1])) < share
    kept[0], kept[1:2] = True, False
    at = np.nonzero(kept)
    mask = rng.random((at[0].size, *block)) < 0.5 if masked else None
    pointer = np.r_[0, np.cumsum(kept.sum(1))]
    dense = np.zeros((kept.shape[0], block[0], kept.shape[1], block[1]), bool)
    dense[at[0], :, at[1]] = True if mask is None else mask
    kv = BlockSparseKV(pointer, at[1], block, rows, keys, mask=mask)
    return kv, dense.reshape(-1, keys)[:rows]


def patterned(kv: KVFormat, seen: list[np.ndarray], device: torch.device) -> Batch:
    """`seen`: of each KV head (rows, keys). Keys that no row of a head sees are NaN."""
    rows, keys = seen[0].shape
    k, v = (random(i, keys, KV_HEADS, DIM).to(device, DTYPE) for i in range(2))
    whole = slice(0, rows)
    masks = [torch.from_numpy(own).to(device) for own in seen]
    dense = [[(whole, k[:, h].clone(), v[:, h].clone(), masks[h])] for h in range(KV_HEADS)]
    for h, mask in enumerate(masks):
        unread = ~mask.any(0) if kv.element_mask is None else torch.zeros(keys, dtype=torch.bool)
        k[unread.to(device), h] = v[unread.to(device), h] = torch.nan
    q = random(2, rows, HEADS, DIM).to(device, DTYPE)
    return Batch(None, kv, q, (k, v), dense)


def patterns(
    rows: int, keys: int, *of_heads: tuple[int, int], masked: bool = False, share: float = 0.2
) -> Callable[[torch.device], Batch]:
    """A pattern for each KV head, or one for all."""

    def make(device: torch.device) -> Batch:
        rng = np.random.default_rng(rows)
        made = [blocks(rng, rows, keys, block, masked=masked, share=share) for block in of_heads]
        formats, seen = [kv for kv, _ in made], [dense for _, dense in made]
        if len(formats) == 1:
            return patterned(formats[0], seen * KV_HEADS, device)
        return patterned(PerHeadKV.of_heads(formats), seen, device)

    return make


def any_sizes(device: torch.device) -> Batch:
    """Row and column blocks of many sizes, others for each KV head."""
    rng = np.random.default_rng(9)
    mask = rng.random((KV_HEADS, 5, 7)) < 0.5
    row_sizes = np.stack([rng.permutation([0, 200, 33, 64, 7]) for _ in range(KV_HEADS)])
    sizes = [3, 0, 20, 1, 7, 4, 9]
    column_sizes = 16 * np.stack([rng.permutation(sizes) for _ in range(KV_HEADS)])
    pairs = zip(mask, row_sizes, column_sizes, strict=True)
    seen = [own.repeat(r, 0).repeat(c, 1) for own, r, c in pairs]
    return patterned(PerHeadKV.of_blocks(mask, row_sizes, column_sizes), seen, device)


CASES = {
    "lists, decode": SparseCase(lists([1] * 40, 3000, 16, "HND"), layout="HND"),
    "lists, few decodes": SparseCase(lists([1, 1, 1], 9000, 16)),
    "lists, decode, pages of 1": SparseCase(lists([1] * 40, 700, 1)),
    "lists, prefill": SparseCase(lists([130, 8, 300, 17, 64], 2000, 16)),
    "lists, prefill and decode": SparseCase(lists([1] * 60 + [500, 300], 2000, 16)),
    "lists, prefill, pages of 3": SparseCase(lists([130, 8, 300, 17, 64], 900, 3)),
    "lists, ampere_tile": SparseCase(lists([130, 8, 17], 6000, 16), schedule="ampere_tile"),
    "patterns": SparseCase(patterns(500, 1024, (64, 16), (128, 16))),
    "patterns of single keys": SparseCase(patterns(300, 700, (40, 1), (300, 1))),
    "blocks of any sizes": SparseCase(any_sizes),
    "mask": SparseCase(patterns(500, 1024, (64, 32), masked=True), custom_mask()),
    "masks of each head": SparseCase(
        patterns(500, 1024, (64, 16), (40, 16), masked=True), custom_mask(per_head=True)
    ),
}


def planned(case: SparseCase, batch: Batch, device: torch.device, **options: Any) -> BatchAttention:
    """For `batch`, with the kernels of the tables."""
    if device.type == "cuda":
        options = {"schedule": case.schedule, "tuning": False, **options}
    made = BatchAttention(
        HEADS, KV_HEADS, DIM, dtype=DTYPE, variant=case.variant, kv_layout=case.layout,
        device=device, **options,
    )  # fmt: skip
    return made.plan(batch.rows, batch.kv_format)


def dense(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse in float64, list by list."""
    out = torch.full(batch.q.shape, torch.nan, dtype=torch.float64, device=batch.q.device)
    lse = torch.full_like(out[..., 0], torch.nan)
    for h, own in enumerate(batch.seen):
        heads = slice(h * GROUP, (h + 1) * GROUP)
        for rows, k, v, seen in own:
            found = oracle64.attend(batch.q[rows, heads], k[:, None], v[:, None], seen=seen)
            out[rows, heads], lse[rows, heads] = found
    return out, lse


def errors(name: str, device: torch.device) -> tuple[float, float, float, bool]:
    """Of one case, as `oracle64.errors`; also that a second run gives the same bits."""
    case = CASES[name]
    batch = case.make(device)
    made = planned(case, batch, device)
    out, lse = made.run(batch.q, *batch.kv, return_lse=True)
    again = made.run(batch.q, *batch.kv)
    found = oracle64.errors(out, lse, *dense(batch))
    return (*found[:3], bool(found[3]) and torch.equal(out, again))


def kernels(arch: str) -> list[KernelSpec]:
    """What the cases take on an H200."""
    found = []
    for case in CASES.values():
        batch = case.make(torch.device("cpu"))
        kv = batch.kv_format
        per_head = kv.heads_in_ids > 0
        problem = Problem(arch, "bf16", DIM, DIM, GROUP, case.variant, kv.page_size, per_head)
        q_len = kv.query_rows(batch.rows).length
        rows = int(q_len.max()) * GROUP
        tiles = tiles_per_sm(q_len, rows, 1 if per_head else KV_HEADS, H200.sms)
        long = is_long(problem, q_len, kv.kv_len, (UNBOUNDED, UNBOUNDED))
        spec = choose(problem, rows=rows, tiles_per_sm=tiles, long=long, schedule=case.schedule)
        found.append(spec)
        few = int(q_len[q_len * GROUP <= SMALL_ROWS].max(initial=0)) * GROUP
        if 0 < few < rows:  # the decodes may have a launch of their own
            numbers = (*range(1, FEW_TILES + 1), None)
            found += [choose(problem, rows=few, tiles_per_sm=number) for number in numbers]
    return list(dict.fromkeys(found))
