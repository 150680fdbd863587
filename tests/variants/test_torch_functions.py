"""torch's and NumPy's functions and methods over traced values: FlexAttention's functions as they
are, against the same function on tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from cute_attn.variants import Variant

F = torch.nn.functional
SCORE = torch.linspace(-3, 3, 30, dtype=torch.float64).reshape(5, 6)
Q, KV, H = torch.arange(5)[:, None], torch.arange(6)[None, :], torch.tensor(2)
B = torch.tensor(1)

SCORE_MODS: list[Callable[..., Any]] = [
    lambda s, b, h, q, k: torch.where(q >= k, s, -float("inf")),
    lambda s, b, h, q, k: s + torch.exp2(-((h + 1) * 8.0 / 12)) * (k - q),
    lambda s, b, h, q, k: 20.0 * torch.tanh(s / 20.0),
    lambda s, b, h, q, k: s * torch.exp(-0.1 * torch.abs(q - k)),
    lambda s, b, h, q, k: s + torch.log(torch.clamp(torch.abs(q - k), min=1.0)),
    lambda s, b, h, q, k: torch.clamp(s, -1.0, 2.0) + torch.clamp(s, max=0.5),
    lambda s, b, h, q, k: torch.maximum(s, torch.zeros_like(s)) - torch.minimum(s, s * 0.5),
    lambda s, b, h, q, k: F.relu(s) + F.softplus(s) + F.silu(s) + torch.sigmoid(s),
    lambda s, b, h, q, k: torch.sqrt(s.abs() + 1) + torch.rsqrt(s * s + 1) + s.square(),
    lambda s, b, h, q, k: s.sin() + torch.cos(s) + s.pow(2) + torch.pow(s.abs(), 0.5) + s**3,
    lambda s, b, h, q, k: s + (q - k).float() + (q > k).to(torch.float32) + (q == k).int(),
    lambda s, b, h, q, k: s + torch.floor(s) + s.ceil() + s.trunc() + torch.round(s),
    lambda s, b, h, q, k: torch.where((q - k) % 3 == 0, s, s - 1) + (q - k) // 2,
    lambda s, b, h, q, k: torch.remainder(s, 2.0) + torch.floor_divide(s, 2.0),
    lambda s, b, h, q, k: torch.add(s, q) * torch.mul(2.0, s) - torch.sub(s, k) / torch.div(s, 4.0),
    lambda s, b, h, q, k: torch.neg(s) + torch.reciprocal(s + 4) + s.sign() + torch.log2(s + 4),
    lambda s, b, h, q, k: torch.log1p(s + 4) + torch.expm1(s) + torch.log10(s + 4),
    lambda s, b, h, q, k: s * torch.tensor(0.5) + torch.tensor(2) * (q - k) - torch.tensor(3.0) * s,
    lambda s, b, h, q, k: s.where(q > k, 0.0) + s.clamp(0, 1) + s.exp() + s.tanh(),
    lambda s, b, h, q, k: torch.abs(-s) + 1 / (s + 5) + 2 - s + 2**s,
    lambda s, b, h, q, k: F.elu(s, 0.7) + F.celu(s, 1.3) + F.selu(s) + F.leaky_relu(s, 0.2),
    lambda s, b, h, q, k: F.hardtanh(s, -0.5, 2) + F.relu6(3 * s) + F.hardsigmoid(s * 2),
    lambda s, b, h, q, k: F.hardswish(s) + F.mish(s) + F.softsign(s) + F.threshold(s, 0.1, 2.0),
    lambda s, b, h, q, k: F.logsigmoid(s * 20) + torch.clamp_min(s, 0) + s.clamp_max(1),
]  # fmt: skip
MASK_MODS: list[Callable[..., Any]] = [
    lambda b, h, q, k: q >= k,
    lambda b, h, q, k: (q >= k) & (q - k <= 2),
    lambda b, h, q, k: torch.logical_and(q >= k, torch.logical_not(q == k + 1)),
    lambda b, h, q, k: torch.logical_or(q < 2, k < 2) | torch.logical_xor(q > 3, k > 3),
    lambda b, h, q, k: (torch.bitwise_and(q, 1) == 0) & (torch.bitwise_or(k, 2) != 3),
    lambda b, h, q, k: torch.bitwise_xor(q, k) < torch.bitwise_not(k) + 9,
    lambda b, h, q, k: (torch.bitwise_left_shift(q, 1) > k) & (q >> 1 == k >> 1),
    lambda b, h, q, k: torch.ge(q, k) & torch.le(q - k, 3) & torch.ne(q, 4) | torch.eq(k, 5),
    lambda b, h, q, k: torch.greater(q, k) | torch.less(q, 2) | torch.lt(k, 1) | torch.gt(k, 4),
    lambda b, h, q, k: torch.ones_like(q, dtype=torch.bool) & (k >= 0),
    lambda b, h, q, k: q.new_ones((), dtype=torch.bool) & (k >= 0),
    lambda b, h, q, k: torch.where(h == 2, q >= k, k >= q),
    lambda b, h, q, k: (q - k).bool() & ~(q > 3),
    lambda b, h, q, k: torch.abs(q - k) <= torch.maximum(b, h),
]


@pytest.mark.parametrize("mod", SCORE_MODS, ids=range(len(SCORE_MODS)))
def test_score_mods(mod: Callable[..., Any]) -> None:
    hook = Variant("v", logits=mod).logits
    assert hook is not None
    got = hook(SCORE.numpy(), 1, 2, Q.numpy(), KV.numpy())
    expected = torch.broadcast_to(mod(SCORE, B, H, Q, KV), SCORE.shape)
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-6)


@pytest.mark.parametrize("mod", MASK_MODS, ids=range(len(MASK_MODS)))
def test_mask_mods(mod: Callable[..., Any]) -> None:
    hook = Variant("v", mask=mod).mask
    assert hook is not None
    got = np.broadcast_to(hook(1, 2, Q.numpy(), KV.numpy()), (5, 6))
    assert np.array_equal(got, torch.broadcast_to(mod(B, H, Q, KV), (5, 6)).numpy())


def test_numpy_functions() -> None:
    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        bias = np.exp2(np.float32(-0.5) * np.abs(q - k)) + np.clip(s, -1, 1)
        return np.where(np.logical_and(q >= k, k > 0), np.tanh(s) * np.float64(2) + bias, 0)

    hook = Variant("v", logits=mod).logits
    assert hook is not None
    arguments = SCORE.numpy(), 1, 2, Q.numpy(), KV.numpy()
    np.testing.assert_allclose(hook(*arguments), mod(*arguments), rtol=1e-6)
