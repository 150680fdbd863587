"""Batches of e4m3 tensors, and the kernels that serve them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from cute_attn import (
    KernelSpec,
    PagedKV,
    Problem,
    RaggedKV,
    Variant,
    attention_sinks,
    causal,
    choose,
    full,
    head_scales,
    sliding_window,
    soft_cap,
)
from tests.gpu.batches import indptr

E4M3 = torch.float8_e4m3fn
MOST_ERROR = 0.03
"""Frobenius-relative: probabilities have three bits behind the point, so each is 2 % off."""
_KEPT_BITS = 13
"""Of a sum that `wgmma` keeps while it adds 32 products of e4m3 at a time (an H200: scores of
head_dim 256 are up to 2e-3 off, of 64 4e-4; the further bits are cut, so steps add up)."""
LENGTHS = [
    (129, 1024), (1, 1), (97, 97), (300, 300), (0, 17), (1, 300), (17, 2), (64, 128), (1, 0),
    (200, 127), (1, 129),
]  # fmt: skip
"""(q_len, kv_len) around borders of tiles; empty requests, and more queries than keys."""
SPLIT = [(40, 9000), (1, 3000)]
"""So few tiles that their keys are split over thread blocks."""


@dataclass(frozen=True)
class Fp8Case:
    """Sizes of a case; page_size 0: ragged KV."""

    dim: int
    group: int
    page_size: int
    variant: str

    def __str__(self) -> str:
        return f"d{self.dim} group {self.group} page {self.page_size} {self.variant}"


VARIANTS: dict[str, Variant] = {
    "full": full(),
    "causal": causal(),
    "window": causal() & sliding_window(),
    "soft cap": causal() & soft_cap(),
    "sinks": causal() & attention_sinks(),
    "head scales": causal() & head_scales(),
}
CASES = [
    *(Fp8Case(dim, 4, page, "causal") for dim in (64, 128, 256) for page in (0, 16, 3)),
    *(Fp8Case(dim, 1, 64, "full") for dim in (64, 128, 256)),
    Fp8Case(128, 5, 0, "window"),
    Fp8Case(128, 7, 16, "causal"),
    Fp8Case(128, 7, 3, "causal"),
    Fp8Case(256, 5, 16, "causal"),
    Fp8Case(128, 2, 0, "soft cap"),
    Fp8Case(128, 2, 0, "sinks"),
    Fp8Case(128, 2, 0, "head scales"),
    Fp8Case(256, 2, 16, "head scales"),
]


def kernels(arch: str) -> list[KernelSpec]:
    """Of all cases; there are none for other architectures."""
    if arch != "sm_90a":
        return []
    return [
        choose(
            Problem(
                arch,
                "e4m3",
                case.dim,
                case.dim,
                case.group,
                VARIANTS[case.variant],
                case.page_size or None,
            ),
            rows=None,
        )
        for case in CASES
    ]


@dataclass
class Fp8Batch:
    """A case made concrete: what `run` takes, and clean copies of keys and values."""

    q: torch.Tensor
    kv: tuple[torch.Tensor, ...]
    kv_format: Any
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    q_lens: list[int]

    @property
    def qo_indptr(self) -> list[int]:
        return indptr(self.q_lens)


def numbers(shape: tuple[int, ...], device: torch.device, generator: Any) -> torch.Tensor:
    """Normal numbers in e4m3."""
    return torch.randn(shape, device=device, generator=generator).to(E4M3)


def make(
    case: Fp8Case, requests: list[tuple[int, int]], heads: int, device: torch.device, seed: int = 0
) -> Fp8Batch:
    """Tensors of a case; slots that no key is in hold NaN.

    Args:
        case: sizes.
        requests: (q_len, kv_len).
        heads: KV heads.
        device: where.
        seed: of the numbers.
    """
    generator = torch.Generator(device).manual_seed(seed)
    q_lens, kv_lens = [q for q, _ in requests], [kv for _, kv in requests]
    q = numbers((sum(q_lens), heads * case.group, case.dim), device, generator)
    keys, values = (
        [numbers((n, heads, case.dim), device, generator) for n in kv_lens] for _ in range(2)
    )
    if not case.page_size:
        k, v = (nans((sum(kv_lens) + 64, heads, case.dim), device) for _ in range(2))
        for begin, own_k, own_v in zip(indptr(kv_lens), keys, values, strict=False):
            as_bytes(k)[begin : begin + len(own_k)] = as_bytes(own_k)
            as_bytes(v)[begin : begin + len(own_v)] = as_bytes(own_v)
        return Fp8Batch(q, (k, v), RaggedKV(indptr(kv_lens)), keys, values, q_lens)
    size = case.page_size
    counts = [-(-n // size) for n in kv_lens]
    order = torch.randperm(sum(counts) + 5, generator=torch.Generator().manual_seed(seed))
    cache = nans((len(order), 2, size, heads, case.dim), device)
    for begin, own in zip(indptr(counts), zip(keys, values, strict=True), strict=False):
        for part, x in enumerate(own):
            for first in range(0, len(x), size):
                rows = as_bytes(x)[first : first + size]
                page = int(order[begin + first // size])
                as_bytes(cache)[page, part, : len(rows)] = rows
    last = [n - (c - 1) * size if c else 0 for n, c in zip(kv_lens, counts, strict=True)]
    used = order[: sum(counts)].int()
    return Fp8Batch(q, (cache,), PagedKV(indptr(counts), used, last, size), keys, values, q_lens)


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """A view of its bytes, which more operations know."""
    return x.view(torch.uint8)


def nans(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """NaN everywhere."""
    return torch.full(shape, 0x7F, dtype=torch.uint8, device=device).view(E4M3)


def dequantised(batch: Fp8Batch, k_scale: float = 1.0, v_scale: float = 1.0) -> dict[str, Any]:
    """Arguments of `oracle64.attend_batch`."""
    return {
        "q": batch.q.double(),
        "q_lens": batch.q_lens,
        "keys": [k_scale * k.double() for k in batch.keys],
        "values": [v_scale * v.double() for v in batch.values],
    }


def lse_bound(dim: int, want_lse: torch.Tensor) -> float:
    """What scores, and so a log-sum-exp, may be off by: bits that each step of 32 products cuts of
    the largest, which no log-sum-exp is below."""
    largest = want_lse[want_lse.isfinite()].abs().max().item()
    return dim / 32 * 2.0**-_KEPT_BITS * max(largest, 1.0)


def sinks_of(heads: int, device: torch.device) -> torch.Tensor:
    """A sink of every query head."""
    return torch.linspace(-1, 2, heads, device=device)


def with_sinks(out: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor) -> Any:
    """What a sink makes of the oracle's result."""
    total = torch.logaddexp(lse, sinks.double().expand_as(lse))
    return out * torch.exp(lse - total).nan_to_num(0)[..., None], total
