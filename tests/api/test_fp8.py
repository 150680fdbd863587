"""e4m3 tensors: calls on the executor, scales, quantisation, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cute_attn import (
    BatchAttention,
    BundleError,
    CompositeAttention,
    PagedKV,
    Problem,
    RaggedKV,
    causal,
    export_bundle,
    head_scales,
    quantize_e4m3,
    rotate_heads,
)
from cute_attn.tuning.step import TuneStep
from tests import oracle

E4M3 = torch.float8_e4m3fn
HEADS, KV_HEADS, DIM = 4, 2, 64


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(E4M3)


def one_request(variant: Any = "causal", q_len: int = 7, kv_len: int = 40) -> Any:
    batch = BatchAttention(HEADS, KV_HEADS, DIM, dtype=E4M3, variant=variant, device="cpu")
    q = numbers(q_len, HEADS, DIM)
    k, v = (numbers(kv_len, KV_HEADS, DIM, seed=i) for i in (1, 2))
    return batch, q, k, v


def wanted(q: Any, k: Any, v: Any, sm_scale: float = DIM**-0.5) -> Any:
    wide = [x.float() for x in (q, k, v)]
    return oracle.attend(*wide, mask=oracle.mask_of("causal"), sm_scale=sm_scale)


def test_numbers_are_what_they_are() -> None:
    batch, q, k, v = one_request()
    batch.plan([0, 7], RaggedKV([0, 40]))
    out, lse = batch.run(q, k, v, return_lse=True)
    want, want_lse = wanted(q, k, v)
    assert out.dtype == torch.bfloat16
    np.testing.assert_allclose(out.float().numpy(), want, atol=2e-2)
    np.testing.assert_allclose(lse.numpy(), want_lse, atol=1e-4)


def test_a_paged_cache() -> None:
    batch, q, k, v = one_request()
    cache = torch.zeros(4, 2, 16, KV_HEADS, DIM).to(E4M3)
    for page, begin in ((2, 0), (0, 16), (3, 32)):
        for part, x in enumerate((k, v)):
            rows = x.view(torch.uint8)[begin : begin + 16]
            cache.view(torch.uint8)[page, part, : len(rows)] = rows
    batch.plan([0, 7], PagedKV([0, 3], [2, 0, 3], [8], 16))
    np.testing.assert_allclose(batch.run(q, cache).float(), wanted(q, k, v)[0], atol=2e-2)


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_scales_of_tensors(scale: float) -> None:
    batch, q, k, v = one_request()
    batch.plan([0, 7], RaggedKV([0, 40]))
    own = scale * DIM**-0.5
    out, lse = batch.run(q, k, v, return_lse=True, sm_scale=own, v_scale=1 / scale)
    want, want_lse = wanted(q, k, v, own)
    np.testing.assert_allclose(out.float().numpy(), want / scale, atol=4e-2)
    np.testing.assert_allclose(lse.numpy(), want_lse, atol=1e-4)
    plain = batch.run(q, k, v)
    assert torch.equal(plain, batch.run(q, k, v, v_scale=1.0))


def test_scales_of_heads() -> None:
    """Quantised head by head, the result is that of the numbers that were meant."""
    batch, *_ = one_request(causal() & head_scales())
    size = torch.tensor([0.1, 20.0])
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(7, HEADS, DIM, generator=generator)
    k, v = (torch.randn(40, KV_HEADS, DIM, generator=generator) for _ in range(2))
    k, v = k * size.flip(0)[:, None] ** 0.3, v * size[:, None]
    q8, q_scale = quantize_e4m3(q)
    (k8, k_scale), (v8, v_scale) = (quantize_e4m3(x, per_head=True) for x in (k, v))
    group = HEADS // KV_HEADS
    tensors = {
        "score_scale": q_scale * k_scale.repeat_interleave(group),
        "value_scale": v_scale.repeat_interleave(group),
    }
    batch.plan([0, 7], RaggedKV([0, 40]), tensors=tensors)
    want, _ = oracle.attend(q, k, v, mask=oracle.mask_of("causal"))
    got = batch.run(q8, k8, v8).float().numpy()
    for head in range(HEADS):
        error = np.linalg.norm(got[:, head] - want[:, head]) / np.linalg.norm(want[:, head])
        assert error < 0.06, head


@pytest.mark.parametrize("per_head", [False, True])
def test_quantised_numbers_are_within_half_a_step(per_head: bool) -> None:
    x = torch.randn(50, 3, 32, generator=torch.Generator().manual_seed(0)) * 7
    x[:, 1] = 0
    numbers8, scale = quantize_e4m3(x, per_head=per_head)
    factor = scale[:, None] if isinstance(scale, torch.Tensor) else scale
    assert numbers8.float().abs().max() == 448
    back = numbers8.float() * factor
    step = torch.maximum(x.abs() * 2**-4, torch.as_tensor(factor) * 2.0**-10)
    assert bool(((back - x).abs() <= step * 1.0001).all())


def test_zeros_and_no_tokens_have_scale_one() -> None:
    assert quantize_e4m3(torch.zeros(4, 2, 8))[1] == 1
    assert quantize_e4m3(torch.zeros(0, 2, 8))[1] == 1
    assert quantize_e4m3(torch.zeros(0, 2, 8), per_head=True)[1].tolist() == [1, 1]


def test_numbers_that_are_not_finite_or_tiny() -> None:
    x = torch.ones(2, 1, 4)
    x[0, 0, 0], x[1, 0, 1], x[1, 0, 2] = math.nan, math.inf, -math.inf
    numbers8, scale = quantize_e4m3(x)
    back = numbers8.float()
    assert scale == pytest.approx(1 / 448) and bool(back[0, 0, 0].isnan())
    assert back[1, 0].tolist() == [448, 448, -448, 448]
    tiny, scale = quantize_e4m3(torch.full((2, 1, 4), 1e-44))
    assert bool(tiny.float().isfinite().all()) and scale > 0


def test_a_rotation_keeps_scores_and_evens_out_outliers() -> None:
    """One number in a thousand is ten times the others (FlashAttention-3, section 4.3): what
    rounding queries and keys does to the output is less than half."""
    generator = torch.Generator().manual_seed(1)

    def drawn() -> torch.Tensor:
        usual, outliers, where = (
            f((512, 1, 128), generator=generator) for f in (torch.randn, torch.randn, torch.rand)
        )
        return usual + 10 * outliers * (where < 1e-3)

    q, k, v = drawn(), drawn(), drawn()
    want, _ = oracle.attend(q, k, v)
    turned = rotate_heads(q), rotate_heads(k)
    np.testing.assert_allclose(oracle.attend(*turned, v)[0], want, atol=1e-4)

    def lost(q: torch.Tensor, k: torch.Tensor) -> float:
        (q8, q_scale), (k8, k_scale) = quantize_e4m3(q), quantize_e4m3(k)
        sm_scale = q_scale * k_scale * 128**-0.5
        return oracle.relative_error(
            oracle.attend(q8.float(), k8.float(), v, sm_scale=sm_scale)[0], want
        )

    assert lost(*turned) < 0.5 * lost(q, k) < 0.05


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: quantize_e4m3(torch.zeros(3, 4)), ValueError, r"x has shape \(3, 4\)"),
        (lambda: quantize_e4m3(torch.zeros(3, 4, 5, dtype=torch.int32)), TypeError, "int32"),
        (lambda: rotate_heads(torch.zeros(3, 96)), ValueError, "power of two"),
        (lambda: rotate_heads("x"), TypeError, "x is a str"),
    ],
)
def test_bad_input(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_what_takes_no_e4m3(tmp_path: Any) -> None:
    with pytest.raises(TypeError, match=r"dtype is torch.float8_e4m3fn; levels take"):
        CompositeAttention(HEADS, KV_HEADS, DIM, dtype=E4M3, device="cpu")
    with pytest.raises(BundleError, match="dtype 'e4m3'; bundles take bf16, fp16"):
        export_bundle(tmp_path / "b", [Problem("sm_90a", "e4m3", 128, 128, 4, causal(), 16)])
    with pytest.raises(ValueError, match="dtype is 'e4m3'; tuning takes"):
        TuneStep("x", (1,), (1,), 4, 2, 64, dtype="e4m3")


def test_operators_know_the_dtype_of_the_output() -> None:
    batch, q, k, v = one_request()
    batch.plan([0, 7], RaggedKV([0, 40]))
    operator = torch.ops.cute_attn.forward
    real = operator(batch.handle, q, k, v, True)
    with FakeTensorMode() as mode:
        fake = operator(batch.handle, *map(mode.from_tensor, (q, k, v)), True)
    for a, b in zip(real, fake, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)


def test_what_run_refuses() -> None:
    batch, q, k, v = one_request()
    batch.plan([0, 7], RaggedKV([0, 40]))
    with pytest.raises(
        TypeError, match=r"k has dtype torch.bfloat16; it takes torch.float8_e4m3fn"
    ):
        batch.run(q, k.bfloat16(), v.bfloat16())
    with pytest.raises(
        TypeError, match=r"out has dtype torch.float8_e4m3fn; it takes torch.bfloat16"
    ):
        batch.run(q, k, v, out=torch.empty_like(q))
    for wrong in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="v_scale"):
            batch.run(q, k, v, v_scale=wrong)
    plain = BatchAttention(HEADS, KV_HEADS, DIM, device="cpu")
    plain.plan([0, 7], RaggedKV([0, 40]))
    with pytest.raises(ValueError, match=r"v_scale is 2.0, but dtype is torch.bfloat16"):
        plain.run(q.bfloat16(), k.bfloat16(), v.bfloat16(), v_scale=2.0)
    with pytest.raises(TypeError, match=r"dtype is torch.float8_e5m2"):
        BatchAttention(HEADS, KV_HEADS, DIM, dtype=torch.float8_e5m2, device="cpu")
