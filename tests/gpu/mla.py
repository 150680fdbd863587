"""Batches of latent rows, and the kernels that serve them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from cute_attn import (
    KernelSpec,
    PagedKV,
    Problem,
    RaggedKV,
    causal,
    choose,
    full,
    sliding_window,
)
from tests.gpu.batches import indptr

VARIANTS = {"causal": causal(), "full": full(), "window": causal() & sliding_window()}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
BORDERS = [*range(1, 70), *range(120, 136), *range(185, 200), 255, 256, 257, 299, 300]
"""Lengths around the borders of KV blocks."""
SPLIT = [9000, 3000]
"""So few tiles that their keys are split over thread blocks."""


@dataclass(frozen=True)
class LatentCase:
    """Sizes of a case; page_size 0: ragged."""

    heads: int
    page_size: int
    dtype: str = "bf16"
    variant: str = "causal"
    tokens: tuple[int, ...] = field(default=(1, 2, 3, 4))

    def __str__(self) -> str:
        return f"h{self.heads} page {self.page_size} {self.dtype} {self.variant}"


CASES = [
    *(LatentCase(heads, page) for heads in (16, 128) for page in (64, 16, 1, 0)),
    LatentCase(32, 64),
    LatentCase(64, 3),
    LatentCase(96, 16),  # no part of a tile, no multiple: rows come one by one
    LatentCase(12, 64, tokens=(1, 5)),
    LatentCase(12, 1),
    LatentCase(128, 64, "fp16"),
    LatentCase(16, 64, variant="full"),
    LatentCase(16, 64, variant="window"),
]


DELAYED = [
    LatentCase(128, 64),
    LatentCase(16, 16),
    LatentCase(128, 1),
    LatentCase(12, 1),
    LatentCase(96, 16),
    LatentCase(16, 0),
]
"""Cases that run with random delays: every loader, queries by boxes and row by row."""


def kernels(arch: str) -> list[KernelSpec]:
    """Of all cases; there are none for other architectures."""
    if arch != "sm_90a":
        return []
    return [spec_of(case, arch) for case in CASES] + [
        replace(spec_of(case, arch), delays=True) for case in DELAYED
    ]


def spec_of(case: LatentCase, arch: str) -> KernelSpec:
    """The kernel of a case."""
    variant, page_size = VARIANTS[case.variant], case.page_size or None
    return choose(Problem(arch, case.dtype, 576, 512, case.heads, variant, page_size), rows=None)


@dataclass
class Latents:
    """A case made concrete.

    Attributes:
        q: (q_tokens, heads, 576).
        cache: (pages, page_size, 576), or (kv_tokens, 576); NaN where no key is.
        kv_format: where the rows are.
        rows: (kv_len, 576) of each request.
        q_lens: query tokens.
    """

    q: torch.Tensor
    cache: torch.Tensor
    kv_format: PagedKV | RaggedKV
    rows: list[torch.Tensor]
    q_lens: list[int]

    @property
    def qo_indptr(self) -> list[int]:
        return indptr(self.q_lens)


def make(case: LatentCase, kv_lens: Sequence[int], device: torch.device, seed: int = 0) -> Latents:
    """Random rows; requests have the case's numbers of query tokens in turn."""
    generator = torch.Generator(device).manual_seed(seed)
    dtype, size = DTYPES[case.dtype], case.page_size

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, generator=generator).to(dtype)

    q_lens = [case.tokens[i % len(case.tokens)] for i in range(len(kv_lens))]
    q, rows = normal(sum(q_lens), case.heads, 576), [normal(n, 576) for n in kv_lens]
    kv_format: PagedKV | RaggedKV
    if not size:
        cache = torch.full((sum(kv_lens) + 64, 576), torch.nan, dtype=dtype, device=device)
        cache[: sum(kv_lens)] = torch.cat(rows)
        return Latents(q, cache, RaggedKV(indptr(list(kv_lens))), rows, q_lens)
    counts = [-(-n // size) for n in kv_lens]
    order = torch.randperm(sum(counts) + 5, generator=torch.Generator().manual_seed(seed))
    cache = torch.full((len(order), size, 576), torch.nan, dtype=dtype, device=device)
    for begin, own in zip(indptr(counts), rows, strict=False):
        for first in range(0, len(own), size):
            part = own[first : first + size]
            cache[int(order[begin + first // size]), : len(part)] = part
    last = [n - (c - 1) * size if c else 0 for n, c in zip(kv_lens, counts, strict=True)]
    kv_format = PagedKV(indptr(counts), order[: sum(counts)].int(), last, size)
    return Latents(q, cache, kv_format, rows, q_lens)


def oracle_arguments(batch: Latents) -> dict[str, Any]:
    """Of `oracle64.attend_batch`."""
    keys = [rows.double()[:, None] for rows in batch.rows]
    return {
        "q": batch.q.double(),
        "q_lens": batch.q_lens,
        "keys": keys,
        "values": [k[..., :512] for k in keys],
    }
