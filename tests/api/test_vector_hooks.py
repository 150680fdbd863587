"""Vector hooks through the public calls, on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cute_attn import (
    BatchAttention,
    BlockSparseKV,
    PagedKV,
    RaggedKV,
    RoPE,
    UnsupportedSpecError,
    Variant,
    append_paged_kv,
    attention,
    causal,
    choose,
    qk_norm,
    rope,
    streaming_llm,
)
from cute_attn.api.dispatch import Problem
from tests.gpu.variant_case import (
    random,
)
from tests.gpu.vector_cases import (
    turned,
)

HEADS, KV_HEADS, DIM = 8, 2, 64


def batch_of(variant: Variant, **options: Any) -> BatchAttention:
    return BatchAttention(
        HEADS, KV_HEADS, DIM, dtype=torch.float32, variant=variant, device="cpu", **options
    )


def test_a_cache_that_is_not_rotated_with_rope_is_one_that_is_without() -> None:
    """Appended with and without the rotation, over pages in a shuffled order."""
    lengths, pages = [37, 5], [4, 0, 2, 1]
    kv_format = PagedKV([0, 3, 4], pages, [5, 5], page_size=16)
    k, v = (random(i, sum(lengths), KV_HEADS, DIM) for i in (1, 2))
    batch = torch.tensor([0] * 37 + [1] * 5, dtype=torch.int32)
    positions = torch.cat([torch.arange(n) for n in lengths]).int()
    outs = []
    for variant, rotation in ((causal() & rope(), None), (causal(), RoPE())):
        cache = torch.zeros(5, 2, 16, KV_HEADS, DIM)
        append_paged_kv(k, v, batch, positions, cache, None, kv_format, rope=rotation)
        q = random(0, 4, HEADS, DIM)
        if rotation is not None:
            at = torch.tensor([35, 36, 3, 4])[:, None].expand(4, HEADS)
            q = turned(q.double(), at).float()
        wrapper = batch_of(variant)
        wrapper.plan([0, 2, 4], kv_format)
        outs.append(wrapper.run(q, cache))
    torch.testing.assert_close(outs[0], outs[1], rtol=1e-4, atol=1e-5)


def test_scalars_of_a_hook_at_run() -> None:
    q, k = random(0, 3, HEADS, DIM), random(1, 90, KV_HEADS, DIM)
    batch = batch_of(causal() & rope())
    batch.plan([0, 3], RaggedKV([0, 90]))
    plain = batch.run(q, k, k)
    far = batch.run(q, k, k, scalars={"rope_theta": 1e6})
    assert torch.equal(plain, batch.run(q, k, k)) and not torch.allclose(plain, far)
    batch.plan([0, 3], RaggedKV([0, 90]), scalars={"rope_theta": 1e6})
    assert torch.equal(far, batch.run(q, k, k))


@pytest.mark.parametrize("variant", [causal() & rope(), streaming_llm(sinks=2, window=30)])
def test_batch_invariant(variant: Variant) -> None:
    q, k = random(0, 40, HEADS, DIM), random(1, 300, KV_HEADS, DIM)
    batch = batch_of(variant, batch_invariant=True)
    batch.plan([0, 1, 40], RaggedKV([0, 200, 300]))
    together = batch.run(q, k, k)
    batch.plan([0, 1], RaggedKV([0, 200]))
    assert torch.equal(together[:1], batch.run(q[:1], k[:200], k[:200]))


def test_more_pairs_than_elements() -> None:
    message = r"rotary_dim is 128 .*even number up to head_dim, which is 64"
    with pytest.raises(ValueError, match=message):
        batch_of(rope(rotary_dim=128))
    q = random(0, 1, 4, HEADS, DIM)
    with pytest.raises(ValueError, match=message):
        attention(q, q, q, variant=rope(rotary_dim=128))


def test_weights_of_another_shape() -> None:
    batch, weights = batch_of(qk_norm()), torch.ones(DIM)
    plan = [0, 3], RaggedKV([0, 9])
    good = {"q_norm_weight": weights, "k_norm_weight": weights}
    batch.plan(*plan, tensors=good)
    for wrong, error, message in (
        (weights[:32], IndexError, r"q_norm_weight\[index\] reads outside .* 0 and 63.* \(32,\)"),
        (weights[None], ValueError, r"q_norm_weight has shape \(1, 64\); it takes 1 dims"),
        (weights.double(), TypeError, "q_norm_weight has dtype torch.float64; it takes float32"),
    ):
        with pytest.raises(error, match=message):
            batch.plan(*plan, tensors={**good, "q_norm_weight": wrong})
    places = torch.zeros(1, 8, dtype=torch.int32)
    with pytest.raises(IndexError, match=r"q_positions\[b, pos\] .*index 1 is between 6 and 8"):
        batch_of(rope(positions=True)).plan(
            *plan, tensors={"q_positions": places, "k_positions": places}
        )


def test_keys_without_positions() -> None:
    blocks = BlockSparseKV([0, 1], [0], (4, 4), 4, 4)
    message = "'rope_half' transforms the query by position, but keys have none in BlockSparseKV"
    with pytest.raises(ValueError, match=message):
        batch_of(rope()).plan(None, blocks)


def test_kernels_say_what_they_cannot_pair() -> None:
    problem = Problem("sm_90a", "bf16", DIM, DIM, 4, rope(rotary_dim=24), None)
    with pytest.raises(UnsupportedSpecError, match=r"rotary_dim is 24 .*multiples of 16"):
        choose(problem, rows=None)
