"""Attention by sparse patterns with masks within their blocks, against the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
import torch

from cute_attn import BatchAttention, PerHeadKV, causal, custom_mask, from_sparse, soft_cap
from tests.formats.test_element_mask import pattern

HEADS, GROUP, DIM = 2, 3, 16


def tensors(rows: int, keys: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((rows, HEADS * GROUP, DIM), (keys, HEADS, DIM), (keys, HEADS, DIM))
    return [torch.randn(*shape, generator=generator) for shape in shapes]


def attention(variant: Any) -> BatchAttention:
    return BatchAttention(
        HEADS * GROUP, HEADS, DIM, dtype=torch.float32, variant=variant, device="cpu"
    )


def check(kv: Any, variant: Any, seen: list[np.ndarray], soft_cap: float | None = None) -> None:
    """`seen`: of each KV head (rows, keys)."""
    scalars = None if soft_cap is None else {"logits_soft_cap": soft_cap}
    rows, keys = seen[0].shape
    q, k, v = tensors(rows, keys)
    made = attention(variant).plan(None, kv, scalars=scalars)
    out, lse = made.run(q, k, v, return_lse=True)
    for h, own in enumerate(seen):
        heads = slice(h * GROUP, (h + 1) * GROUP)
        want, want_lse = oracle.attend(
            q[:, heads], k[:, h : h + 1], v[:, h : h + 1],
            mask=lambda i, j, own=own: own[i, j], q_pos=0, soft_cap=soft_cap,
        )  # fmt: skip
        assert oracle.relative_error(out[:, heads], want) < 1e-5
        assert oracle.lse_error(lse[:, heads], want_lse) < 1e-5


@pytest.mark.parametrize("block", [(16, 8), (64, 16), (1, 1), (7, 3)])
def test_one_mask_for_all_heads(block: tuple[int, int]) -> None:
    kv, dense = pattern(0, 100, block, 240)
    check(kv, custom_mask(), [dense] * HEADS)


def test_with_hooks_on_scores() -> None:
    kv, dense = pattern(1, 70, (32, 8), 80)
    check(kv, custom_mask() & soft_cap(), [dense] * HEADS, soft_cap=5.0)


def test_a_mask_for_each_head() -> None:
    (first, seen), (second, other) = pattern(2, 70, (32, 8), 80), pattern(3, 70, (16, 8), 80)
    kv = PerHeadKV.of_heads([first, second])
    check(kv, custom_mask(per_head=True), [seen, other])


def test_tensors_are_copied_once() -> None:
    kv, _ = pattern(4, 40, (8, 8), 80)
    made = attention(custom_mask())
    made.plan(None, kv)
    first = made._parameters.planned["mask_bits"]
    assert made.plan(None, kv)._parameters.planned["mask_bits"] == first


def test_faults() -> None:
    kv, _ = pattern(5, 40, (8, 8), 80)
    with pytest.raises(ValueError, match=r"'full' reads no mask; it takes custom_mask\(\), alone"):
        attention("full").plan(None, kv)
    with pytest.raises(ValueError, match="masks by something else"):
        attention(causal() & custom_mask()).plan(None, kv)
    per_head = PerHeadKV.of_heads([kv] * HEADS)
    with pytest.raises(ValueError, match=r"it takes custom_mask\(per_head=True\)"):
        attention(custom_mask()).plan(None, per_head)
    with pytest.raises(ValueError, match="tensors holds 'mask_bits', but kv_format has a mask"):
        attention(custom_mask()).plan(None, kv, tensors={"mask_bits": torch.zeros(1)})
    whole, _ = pattern(5, 40, (8, 8), 80, masked=False)
    with pytest.raises(ValueError, match="'custom_mask' masks by position, but keys have none"):
        attention(custom_mask()).plan(None, whole)


def test_a_sparse_array_with_zeros() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    dense = np.tril(np.ones((48, 48)))  # blocks on the diagonal store zeros
    kv = from_sparse(sparse.bsr_array(dense, blocksize=(16, 16)))
    check(kv, custom_mask(), [dense != 0] * HEADS)
