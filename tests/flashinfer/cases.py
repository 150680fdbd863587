"""Batches for the tests of `cute_attn.flashinfer`: tensors as engines have them, and the oracle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import oracle
import torch

ERROR = {torch.float32: 3e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}


def random(seed: int, *size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal numbers."""
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def int32(*values: int) -> torch.Tensor:
    """A tensor of int32."""
    return torch.tensor(values, dtype=torch.int32)


def indptr(lengths: Sequence[int]) -> torch.Tensor:
    """(len(lengths) + 1,) int32."""
    return int32(0, *np.cumsum(lengths).tolist())


def workspace() -> torch.Tensor:
    """A float workspace."""
    return torch.zeros(4096, dtype=torch.uint8)


class Cache:
    """A paged cache with pages in random order; unused slots hold NaN.

    Attributes:
        indptr, indices, last: index tensors.
        whole: one tensor (pages, 2, ...).
        keys, values: of each request, (kv_len, num_kv_heads, head_dim).
    """

    def __init__(
        self,
        kv_len: Sequence[int],
        heads: int,
        dim: int,
        page_size: int,
        *,
        layout: str = "NHD",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        counts = [-(-n // page_size) for n in kv_len]
        order = np.random.default_rng(1).permutation(sum(counts) + 3)
        self.indptr, self.page_size = indptr(counts), page_size
        self.indices = int32(*order[: sum(counts)].tolist())
        self.last = int32(*(n - (c - 1) * page_size if c else 0
                            for n, c in zip(kv_len, counts, strict=True)))  # fmt: skip
        shape = (page_size, heads, dim) if layout == "NHD" else (heads, page_size, dim)
        self.whole = torch.full((len(order), 2, *shape), float("nan"), dtype=dtype)
        self.keys = [random(10 + i, n, heads, dim, dtype=dtype) for i, n in enumerate(kv_len)]
        self.values = [random(50 + i, n, heads, dim, dtype=dtype) for i, n in enumerate(kv_len)]
        for i, n in enumerate(kv_len):
            for t in range(n):
                page = int(self.indices[int(self.indptr[i]) + t // page_size])
                slot = self.whole[page]
                rows = slot if layout == "NHD" else slot.transpose(1, 2)
                rows[0, t % page_size] = self.keys[i][t]
                rows[1, t % page_size] = self.values[i][t]

    @property
    def index(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """indptr, indices, last_page_len."""
        return self.indptr, self.indices, self.last

    @property
    def pair(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(k, v)."""
        return self.whole[:, 0], self.whole[:, 1]


def check(got: Any, expected: Any, dtype: torch.dtype = torch.float32, bound: float = 1.0) -> None:
    """Raises unless (out, lse to base 2), or out, is what the oracle says (lse natural)."""
    if isinstance(got, tuple):
        out, lse = got
        assert lse.dtype == torch.float32 and lse.shape == out.shape[:-1]
        limit = {torch.float32: 2e-5}.get(dtype, 2e-2)
        assert oracle.lse_error(lse, expected[1] / math.log(2.0)) < limit * bound
    else:
        out = got
    assert out.dtype == dtype and out.shape == expected[0].shape
    assert oracle.relative_error(out, expected[0]) < ERROR[dtype] * bound
