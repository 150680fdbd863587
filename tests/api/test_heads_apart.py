"""Patterns whose KV heads are planned apart: the same attention, in another order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from cute_attn import BlockSparseKV, PagedKV, PerHeadKV, custom_mask, full
from cute_attn.api.heads_apart import heads_apart
from cute_attn.api.shape import BatchShape
from cute_attn.api.step import make_step
from cute_attn.formats import KVFormat
from cute_attn.reference import execute
from cute_attn.scheduler import BUILT_IN, Geometry, plan_batch
from cute_attn.variants import Variant

CPU = torch.device("cpu")


def shape(kv_heads: int, head_dim: int = 128, group: int = 1) -> BatchShape:
    return BatchShape.checked(
        kv_heads * group, kv_heads, head_dim, head_dim_vo=None, dtype=torch.bfloat16,
        variant="full", sm_scale=None, kv_layout="NHD", device="cpu",
    )  # fmt: skip


def pattern(rows: int, keys: int, block: tuple[int, int], *, masked: bool = False) -> BlockSparseKV:
    rng = np.random.default_rng(0)
    kept = rng.random((rows // block[0], keys // block[1])) < 0.5
    at = np.nonzero(kept)
    mask = rng.random((at[0].size, *block)) < 0.5 if masked else None
    pointer = np.r_[0, np.cumsum(kept.sum(1))]
    return BlockSparseKV(pointer, at[1], block, rows, keys, mask=mask)


def step_of(kv: KVFormat, variant: Variant | None = None) -> Any:
    rows = [0, 4096] if isinstance(kv, PagedKV) else None
    return make_step(rows, kv, variant or full(), None, CPU)


def test_which_steps() -> None:
    large = step_of(pattern(4096, 16384, (128, 128)))
    apart = heads_apart(large, shape(32), BUILT_IN)
    assert apart is not None and isinstance(apart.kv_format, PerHeadKV)
    assert apart.requests.num_requests == 32 * 32 and apart.requests.common_keys == 16384
    assert apart.kv_kind.per_head and apart.q_rows == large.q_rows
    assert apart.page_table is large.page_table
    assert heads_apart(large, shape(32), BUILT_IN, max_requests=1023) is None
    assert heads_apart(large, shape(1), BUILT_IN) is None
    assert heads_apart(step_of(pattern(4096, 1024, (128, 128))), shape(32), BUILT_IN) is None
    paged = PagedKV([0, 1024], np.arange(1024), [16], 16)
    assert heads_apart(step_of(paged), shape(32), BUILT_IN) is None


@pytest.mark.parametrize("masked", [False, True])
def test_the_same_attention(masked: bool) -> None:
    heads, group, dim = 3, 2, 16
    kv = pattern(96, 120, (16, 8), masked=masked)
    variant = custom_mask() if masked else full()
    assert isinstance(kv, BlockSparseKV)
    apart = PerHeadKV.of_pattern(kv, heads)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(96, heads * group, dim, generator=generator)
    k, v = (torch.randn(120, heads, dim, generator=generator) for _ in range(2))
    tensors = None if kv.element_mask is None else kv.element_mask.arrays(group)
    results = []
    for own in (kv, apart):
        geometry = Geometry(16, 16, group=group, num_kv_heads=heads)
        if own is apart:
            geometry = replace(geometry, num_kv_heads=1, heads_in_ids=heads)
        plan = plan_batch(step_of(own, variant).requests, geometry, 7)
        results.append(execute(plan, q, k, v, own, variant, tensors=tensors))
    for one, other in zip(*results, strict=True):
        assert np.allclose(one, other, atol=1e-5, equal_nan=True)
