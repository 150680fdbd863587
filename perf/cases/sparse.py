"""Sparse KV: block-sparse prefill beside a dense one (section SB), and decode that reads some of
the pages, others for each KV head (SL). head_dim 128, bf16, no mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from cute_attn import (
    BlockSparseKV,
    BlockTableKV,
    KernelSpec,
    PerHeadKV,
    Problem,
    RaggedKV,
    full,
)
from cute_attn.api.heads_apart import heads_apart
from cute_attn.api.launches import Part, parts_of_step, timing_of
from cute_attn.api.shape import BatchShape
from cute_attn.api.step import make_step
from cute_attn.formats import KVFormat
from cute_attn.scheduler import BUILT_IN, simulate_plans
from cute_attn.scheduler.constants import H200

DIM = 128
LENGTH = 16384
PAGE_SIZE = 16
REQUESTS, CONTEXT = 64, 8192


@dataclass(frozen=True)
class SparseCase:
    """What is common.

    Attributes:
        sec, cfg: section and name.
        num_qo_heads, num_kv_heads: heads.
    """

    sec: str
    cfg: str
    num_qo_heads: int
    num_kv_heads: int

    @property
    def kv(self) -> KVFormat:
        """The keys, page numbers on the host."""
        raise NotImplementedError

    @property
    def rows(self) -> list[int] | None:
        """qo_indptr; None: the pattern's."""
        return None

    @property
    def layout(self) -> str:
        return "NHD"

    @property
    def pairs(self) -> int:
        """(query, key) pairs of all query heads."""
        kv = self.kv
        length = kv.query_rows(self.rows).length
        heads = self.num_qo_heads // (kv.heads_in_ids or 1)
        return int((length * kv.kv_len).sum()) * heads

    @property
    def flops(self) -> float:
        return 4.0 * DIM * self.pairs

    def problem(self, arch: str) -> Problem:
        """What its kernels are chosen by, beside the lengths."""
        kv = self.kv
        group, per_head = self.num_qo_heads // self.num_kv_heads, kv.heads_in_ids > 0
        page_size = kv.page_size if kv.paged else None
        return Problem(arch, "bf16", DIM, DIM, group, full(), page_size, per_head)

    def parts(self, arch: str, *, apart: bool = True) -> list[Part]:
        """The launches that serve it on a device of `arch` with as many SMs as an H200; `apart`:
        KV heads may be planned apart."""
        step = make_step(self.rows, self.kv, full(), None, torch.device("cpu"))
        asked = self.problem(arch)
        parted = heads_apart(step, self._shape, BUILT_IN) if apart else None
        if parted is not None:
            step, asked = parted, replace(asked, per_head=True)
        heads = self.num_kv_heads
        return parts_of_step(step, asked, num_kv_heads=heads, num_sms=H200.sms)

    @property
    def _shape(self) -> BatchShape:
        return BatchShape.checked(
            self.num_qo_heads,
            self.num_kv_heads,
            DIM,
            head_dim_vo=None,
            dtype=torch.bfloat16,
            variant="full",
            sm_scale=None,
            kv_layout=self.layout,
            device="cpu",
        )

    @property
    def predicted_us(self) -> float:
        """Time on an H200, by the simulator."""
        parts = self.parts("sm_90a")
        timings = [timing_of(part.spec) for part in parts]
        reports = simulate_plans([part.plan() for part in parts], timings)
        return max(report.predicted_us for report in reports)


@dataclass(frozen=True)
class SparsePrefill(SparseCase):
    """16k queries that see some of 16k keys.

    Attributes:
        block: query rows and keys of a block; 0: dense.
        density: share of the blocks, rounded up, the same for every block row; which ones is
            random.
        per_head: every KV head sees others.
    """

    block: int = 0
    density: float = 1.0
    per_head: bool = False

    @property
    def rows(self) -> list[int] | None:
        return None if self.block else [0, LENGTH]

    @property
    def dense(self) -> SparsePrefill:
        """The same queries, which see all keys."""
        return replace(self, cfg="dense", block=0, density=1.0, per_head=False)

    @property
    def kept(self) -> float:
        """Share of the (query, key) pairs that are seen."""
        return self.pairs / self.dense.pairs

    @cached_property
    def kv(self) -> KVFormat:
        if not self.block:
            return RaggedKV([0, LENGTH])
        if not self.per_head:
            return self._pattern(0)
        return PerHeadKV.of_heads([self._pattern(head) for head in range(self.num_kv_heads)])

    def _pattern(self, seed: int) -> BlockSparseKV:
        count = LENGTH // self.block
        kept = math.ceil(self.density * count)
        every = np.tile(np.arange(count), (count, 1))
        columns = np.random.default_rng(seed).permuted(every, axis=1)[:, :kept]
        indices = np.sort(columns, axis=1).reshape(-1)
        pointer = np.arange(count + 1) * kept
        return BlockSparseKV(pointer, indices, (self.block, self.block), LENGTH, LENGTH)


@dataclass(frozen=True)
class PageLists(SparseCase):
    """64 decodes over 8k keys each, of which every KV head reads some pages.

    Attributes:
        share: of the pages.
        kv_layout: of the cache.
    """

    share: float = 1.0
    kv_layout: str = "NHD"

    @property
    def rows(self) -> list[int]:
        return list(range(REQUESTS + 1))

    @property
    def layout(self) -> str:
        return self.kv_layout

    @property
    def num_pages(self) -> int:
        return REQUESTS * CONTEXT // PAGE_SIZE

    @cached_property
    def kv(self) -> PerHeadKV:
        rng = np.random.default_rng(0)
        own = CONTEXT // PAGE_SIZE
        numbers = rng.permutation(self.num_pages).reshape(REQUESTS, 1, own)
        chosen = rng.random((REQUESTS, self.num_kv_heads, own)).argsort(axis=2)
        chosen = np.sort(chosen[..., : round(self.share * own)], axis=2)
        tables = np.take_along_axis(numbers, chosen, axis=2).reshape(-1, chosen.shape[2])
        kv_len = np.full(len(tables), PAGE_SIZE * tables.shape[1])
        return PerHeadKV(BlockTableKV(tables, kv_len, PAGE_SIZE), self.num_kv_heads)

    @property
    def kv_bytes(self) -> int:
        """K and V that are read."""
        return 2 * 2 * DIM * int(self.kv.kv_len.sum())


HEADS = ((32, 8), (32, 32))
BLOCKS = (64, 128)
DENSITIES = (0.05, 0.10, 0.25, 0.50)


def sparse_prefill() -> list[SparsePrefill]:
    """Section SB."""
    found = [
        SparsePrefill("SB", f"{q}/{kv} block {block} {density:.0%}", q, kv, block, density)
        for q, kv in HEADS
        for block in BLOCKS
        for density in DENSITIES
    ]
    own = ("SB", "32/8 block 128 25% of each head", 32, 8)
    return [*found, SparsePrefill(*own, block=128, density=0.25, per_head=True)]


def page_lists() -> list[PageLists]:
    """Section SL."""
    wanted = [((32, 8), "NHD"), ((32, 8), "HND"), ((32, 32), "NHD")]
    return [
        PageLists("SL", f"{q}/{kv} {layout} 1/{part} of 8k, b64", q, kv, 1 / part, layout)
        for (q, kv), layout in wanted
        for part in (8, 4)
    ]


def all_sparse() -> list[SparsePrefill | PageLists]:
    return [*sparse_prefill(), *page_lists()]


def _run_in(case: SparsePrefill | PageLists) -> list[SparsePrefill | PageLists]:
    """What is run for a case."""
    return [case, case.dense] if isinstance(case, SparsePrefill) else [case]


def problems(arch: str) -> list[Problem]:
    """What the kernels of the cases are chosen by; not those of heads planned apart."""
    cases = [one for case in all_sparse() for one in _run_in(case)]
    return list(dict.fromkeys(case.problem(arch) for case in cases))


def sparse_specs(arch: str) -> list[KernelSpec]:
    """Attention kernels of the cases; also those of patterns in the order of their rows."""
    cases = [one for case in all_sparse() for one in _run_in(case)]
    every = [(case, apart) for case in cases for apart in (True, False)]
    parts = (part for case, apart in every for part in case.parts(arch, apart=apart))
    return list(dict.fromkeys(part.spec for part in parts))
