"""Single requests against the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
import torch

import cute_attn.flashinfer as flashinfer
from tests.flashinfer.cases import check, random

WINDOW, CAP = 6, 3.0


def rotated(x: Any, first: int, scale: float, theta: float) -> Any:
    """Rotary embedding in float64 (Su et al., RoFormer, eq. 34), halves as pairs."""
    x = oracle.to64(x)
    half = x.shape[-1] // 2
    angle = (first + np.arange(len(x)))[:, None, None] / scale * theta ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    cosine, sine = np.cos(angle), np.sin(angle)
    return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(
    "options", [{}, {"window_left": WINDOW}, {"logits_soft_cap": CAP}], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_decode(layout: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    q, k, v = random(0, 6, 64, dtype=dtype), *(random(i, 33, 2, 64, dtype=dtype) for i in (1, 2))
    given = (k, v) if layout == "NHD" else (k.transpose(0, 1), v.transpose(0, 1))
    out, lse = flashinfer.single_decode_with_kv_cache(q, *given, layout, return_lse=True, **options)
    mask = oracle.mask_of("window", WINDOW) if "window_left" in options else None
    cap = options.get("logits_soft_cap")
    expected = oracle.attend(q[None], k, v, mask=mask, soft_cap=cap)
    check((out, lse), (expected[0][0], expected[1][0]), dtype, bound=200 if cap else 1)
    plain = flashinfer.single_decode_with_kv_cache(q, *given, layout, **options)
    assert torch.equal(plain, out)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (5, 5), (7, 40), (9, 4)])
def test_prefill(causal: bool, q_len: int, kv_len: int) -> None:
    q, k, v = random(0, q_len, 4, 64), random(1, kv_len, 4, 64), random(2, kv_len, 4, 32)
    got = flashinfer.single_prefill_with_kv_cache_return_lse(q, k, v, causal=causal, sm_scale=0.2)
    mask = oracle.mask_of("causal") if causal else None
    check(got, oracle.attend(q, k, v, mask=mask, sm_scale=0.2))


def test_masks_as_bools_and_bits() -> None:
    q, k, v = random(0, 5, 4, 64), random(1, 11, 2, 64), random(2, 11, 2, 64)
    seen = torch.rand(5, 11, generator=torch.Generator().manual_seed(3)) > 0.4
    seen[2] = False  # a row that sees nothing
    expected = oracle.attend(q, k, v, mask=lambda qi, ki: seen.numpy()[qi - 6, ki])
    got = flashinfer.single_prefill_with_kv_cache(
        q, k, v, custom_mask=seen, causal=True, return_lse=True
    )
    check(got, expected)
    assert (got[0][2] == 0).all() and torch.isneginf(got[1][2]).all()
    bits = flashinfer.packbits(seen.view(-1), bitorder="little")
    packed = flashinfer.single_prefill_with_kv_cache(q, k, v, packed_custom_mask=bits)
    assert torch.equal(packed, got[0])
    windowed = flashinfer.single_prefill_with_kv_cache(q, k, v, custom_mask=seen, window_left=3)
    both = oracle.attend(q, k, v, mask=lambda a, b: seen.numpy()[a - 6, b] & (b >= a - 3))
    check(windowed, both)


@pytest.mark.parametrize("scale", [None, 4.0, 0.5])
def test_rope(scale: float | None) -> None:
    q, k, v = random(0, 5, 4, 64), random(1, 20, 2, 64), random(2, 20, 2, 64)
    got = flashinfer.single_prefill_with_kv_cache(
        q, k, v, causal=True, pos_encoding_mode="ROPE_LLAMA", rope_scale=scale, rope_theta=5e4,
        return_lse=True,
    )  # fmt: skip
    turned = (rotated(x, first, scale or 1.0, 5e4) for x, first in ((q, 15), (k, 0)))
    check(got, oracle.attend(*turned, v, mask=oracle.mask_of("causal")), bound=4)


@pytest.mark.parametrize("cap", [None, CAP])
@pytest.mark.parametrize("heads", [4, 6])
def test_alibi(cap: float | None, heads: int) -> None:
    q, k, v = random(0, 3, heads, 64), random(1, 20, heads, 64), random(2, 20, heads, 64)
    got = flashinfer.single_prefill_with_kv_cache(
        q, k, v, pos_encoding_mode="ALIBI", logits_soft_cap=cap
    )
    slopes = [2.0 ** (-2 * (h + 1)) for h in range(4)] + [2.0 ** (-2 * h - 1) for h in range(2)]
    distance = np.arange(20) - (17 + np.arange(3))[:, None]
    for h in range(heads):
        s = oracle.to64(q[:, h]) @ oracle.to64(k[:, h]).T / 8 + slopes[h] * distance
        s = s if cap is None else cap * np.tanh(s / cap)
        p = np.exp(s - s.max(1, keepdims=True))
        expected = p / p.sum(1, keepdims=True) @ oracle.to64(v[:, h])
        assert oracle.relative_error(got[:, h], expected) < (1e-5 if cap is None else 1e-3)


def test_scales_and_output_types() -> None:
    q, k, v = random(0, 4, 64), random(1, 20, 2, 64), random(2, 20, 2, 64)
    got = flashinfer.single_decode_with_kv_cache(q, k, v, q_scale=0.5, k_scale=3.0, v_scale=0.25)
    expected = oracle.attend(q[None] * 1.5, k, v * 0.25)[0][0]
    assert oracle.relative_error(got, expected) < 1e-6
    rows = random(3, 2, 4, 64)
    out = flashinfer.single_prefill_with_kv_cache(
        rows, k, v, k_scale=2.0, v_scale=0.5, sm_scale=0.1, o_dtype=torch.bfloat16
    )
    check(out, oracle.attend(rows, k, 0.5 * v, sm_scale=0.2), torch.bfloat16)


def test_refusals_say_what_to_do() -> None:
    q, k = random(0, 3, 4, 64), random(1, 20, 4, 64)
    single = flashinfer.single_prefill_with_kv_cache
    with pytest.raises(NotImplementedError, match=r"scale_k is of shape \(4,\).*convert the ten"):
        single(q, k, k, scale_k=torch.ones(4))
    with pytest.raises(NotImplementedError, match=r"k is torch\.float8_e4m3fn; cute_attn takes"):
        single(q, k.to(torch.float8_e4m3fn), k)
    with pytest.raises(
        NotImplementedError, match="backend is 'trtllm-gen'; cute_attn takes 'auto'"
    ):
        single(q, k, k, backend="trtllm-gen")
    with pytest.raises(ValueError, match="pos_encoding_mode is 'ROPE'; it takes 'NONE' or"):
        single(q, k, k, pos_encoding_mode="ROPE")
    with pytest.raises(ValueError, match="kv_layout is 'DHN'"):
        single(q, k, k, kv_layout="DHN")
    with pytest.raises(ValueError, match=r"custom_mask has 59 elements; .* 60 pairs"):
        single(q, k, k, custom_mask=torch.ones(59, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"packed_custom_mask has 7 elements of torch\.uint8"):
        single(q, k, k, packed_custom_mask=torch.ones(7, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"q has shape \(3, 4, 64\); it takes \(num_qo_heads"):
        flashinfer.single_decode_with_kv_cache(q, k, k)
    with pytest.raises(ValueError, match="logits_soft_cap is -1"):
        single(q, k, k, logits_soft_cap=-1)
    with pytest.raises(NotImplementedError, match="has no xqa_mla: absorbed"):
        flashinfer.xqa_mla(q)
    with pytest.raises(AttributeError, match=r"rmsnorm.*docs/flashinfer\.md"):
        flashinfer.rmsnorm  # noqa: B018
