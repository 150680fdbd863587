"""What functions can be traced, the scalars they declare, and the C++ that comes out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cute_attn.variants import Hook, Scalar, TraceError, Variant, functions
from cute_attn.variants.expression import argument, constant
from cute_attn.variants.traced import Traced

SCORE, Q, KV = (np.linspace(-4, 4, 9)[:, None], np.arange(9)[:, None], np.arange(9)[None, :])


def logits(function: Any, *params: Scalar) -> Hook:
    hook = Variant("v", logits=function, params=params).logits
    assert hook is not None
    return hook


def mask(function: Any, *params: Scalar) -> Hook:
    hook = Variant("v", mask=function, params=params).mask
    assert hook is not None
    return hook


def test_equal_expressions_are_one() -> None:
    q, kv = Traced(argument("q_idx")), Traced(argument("kv_idx"))
    assert ((q + 1) * kv).expression is ((q + 1) * kv).expression
    assert (q + 1).expression is not (q + 1.0).expression
    assert constant(0.0) is not constant(-0.0)
    assert constant(1) is not constant(True)


@pytest.mark.parametrize(
    ("function", "cpp"),
    [
        (lambda s, b, h, q, k: s + 0, "score"),
        (lambda s, b, h, q, k: s * 1 - 0.0, "score"),
        (lambda s, b, h, q, k: 2 * 3 + 0.5 - 4, "2.5f"),
        (lambda s, b, h, q, k: s + 2 * (q - 1), "score + float(2 * (q_idx - 1))"),
        (lambda s, b, h, q, k: s - (q - k), "score - float(q_idx - kv_idx)"),
        (lambda s, b, h, q, k: s / 8, "score * (1.0f / 8.0f)"),
        (lambda s, b, h, q, k: s / (1 + q), "__fdividef(score, float(1 + q_idx))"),
        (lambda s, b, h, q, k: s + q // 64, "score + float(q_idx >> 6)"),
        (lambda s, b, h, q, k: s + q % 64, "score + float(q_idx & 63)"),
        (lambda s, b, h, q, k: s + k // 3, "score + float(kv_idx / 3)"),
        (lambda s, b, h, q, k: s + k % 3, "score + float(kv_idx % 3)"),
        (lambda s, b, h, q, k: s + q // 3, "score + float(floor_div(q_idx, 3))"),
        (lambda s, b, h, q, k: s + q % 3, "score + float(floor_mod(q_idx, 3))"),
        (lambda s, b, h, q, k: s + q % -4, "score + float(floor_mod(q_idx, -4))"),
        (lambda s, b, h, q, k: s**2, "score * score"),
        (lambda s, b, h, q, k: 2**s, "exp2_approx(score)"),
        (lambda s, b, h, q, k: (s + 1) ** -0.5, "rsqrtf(score + 1.0f)"),
        (lambda s, b, h, q, k: -(s + 1), "-(score + 1.0f)"),
        (lambda s, b, h, q, k: abs(q - k) * s, "float(abs(q_idx - kv_idx)) * score"),
        (lambda s, b, h, q, k: s // 2, "floorf(score * (1.0f / 2.0f))"),
        (lambda s, b, h, q, k: s + (q > k), "score + float(q_idx > kv_idx)"),
        (lambda s, b, h, q, k: s + ((q >> 2) & 3 | 8), "score + float(((q_idx >> 2) & 3) | 8)"),
        (
            lambda s, b, h, q, k: functions.where(q > k, s, -float("inf")),
            "q_idx > kv_idx ? score : neg_infinity()",
        ),
    ],
)
def test_printed_logits(function: Any, cpp: str) -> None:
    assert logits(function).cpp == cpp


@pytest.mark.parametrize(
    ("function", "cpp"),
    [
        (lambda b, h, q, k: True, "true"),
        (lambda b, h, q, k: (q >= k) & True, "q_idx >= kv_idx"),
        (lambda b, h, q, k: (q >= k) | True, "true"),
        (lambda b, h, q, k: ~(~(q >= k)), "q_idx >= kv_idx"),
        (lambda b, h, q, k: ~(q >= k), "!(q_idx >= kv_idx)"),
        (lambda b, h, q, k: (q > k) ^ (h == 0), "(q_idx > kv_idx) != (h == 0)"),
        (lambda b, h, q, k: ~q < k, "~q_idx < kv_idx"),
        (
            lambda b, h, q, k: functions.where(h < 2, q >= k, q > k),
            "h < 2 ? q_idx >= kv_idx : q_idx > kv_idx",
        ),
    ],
)
def test_printed_masks(function: Any, cpp: str) -> None:
    assert mask(function).cpp == cpp


def test_local_names_and_shared_values_become_statements() -> None:
    def bend(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        distance = q_idx - kv_idx
        double = functions.exp(score) + 1.0
        score = score * distance + functions.log(double) * double
        return functions.sqrt(h + 2) * functions.sqrt(h + 2) + score

    assert logits(bend).cpp.split("\n") == [
        "float const t0 = fast_sqrt(float(h + 2));",
        "int const distance = q_idx - kv_idx;",
        "float const double_ = fast_exp(score) + 1.0f;",
        "float const score_ = score * float(distance) + __logf(double_) * double_;",
        "return t0 * t0 + score_;",
    ]


def test_lines_stay_short() -> None:
    def polynomial(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        total: Any = 0.0
        for i in range(20):
            total = total * score + (i + 0.125)
        return total

    hook = logits(polynomial)
    assert max(map(len, hook.cpp.split("\n"))) < 100
    expected = np.polyval([i + 0.125 for i in range(20)], SCORE[:, 0])
    assert np.allclose(hook(SCORE, 0, 0, 0, 0)[:, 0], expected)


def test_scalars_by_default_and_by_declaration() -> None:
    def biased(
        score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, slope: float = 2, *, span: int = 3
    ) -> Any:
        return score + slope * (kv_idx - span)

    variant = Variant("v", logits=biased)
    assert [(s.name, s.kind, s.default) for s in variant.scalars] == [
        ("slope", "f32", 2),
        ("span", "i32", 3),
    ]
    declared = Scalar("span", "i32", 7, "keys", lower=1)
    variant = Variant("v", logits=biased, params=[declared])
    assert variant.scalars[0] is declared and variant.scalars[1].name == "slope"
    assert variant.logits is not None
    got = variant.logits(SCORE, 0, 0, Q, KV, slope=0.5, span=2)
    assert np.array_equal(got, SCORE + 0.5 * (KV - 2))

    def unused(score: Any, b: Any, h: Any, q: Any, kv: Any, *, slope: float = 1.0) -> Any:
        return score

    assert Variant("v", logits=unused).scalars == ()

    def everything(score: Any, b: Any, h: Any, q: Any, kv: Any, **scalars: Any) -> Any:
        return score * scalars["span"]

    assert Variant("v", logits=everything, params=[declared]).scalars == (declared,)

    def star(*arguments: Any) -> Any:
        return arguments[0] * 2

    assert logits(star).cpp == "score * 2.0f"


def test_scalar_limits_are_checked() -> None:
    span = Scalar("span", "i32", 4, "", lower=1, upper=8)
    with pytest.raises(ValueError, match="span is 0; it takes 1 or more"):
        span.check(0)
    with pytest.raises(ValueError, match="span is 9; it takes 8 or less"):
        span.check(9)
    with pytest.raises(ValueError, match="span is 20; it takes 8 or less"):
        Scalar("span", "i32", 20, "", upper=8)
    with pytest.raises(TypeError, match="span is a str; it takes a number"):
        span.check("4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cap is NaN"):
        Scalar("cap", "f32", 1.0, "").check(float("nan"))
    with pytest.raises(ValueError, match="span is inf; it takes a 32-bit integer"):
        span.check(float("inf"))


def test_numpy_evaluation_keeps_the_scores_type() -> None:
    hook = logits(lambda s, b, h, q, k: s * 0.1 + functions.exp2(-1.0 * h))
    heads = np.array([[0], [1], [2], [3]])
    for dtype in (np.float32, np.float64):
        got = hook(SCORE[:4].astype(dtype), 1, heads, Q[:4], KV)
        assert got.dtype == dtype and got.shape == (4, 1)
    assert np.allclose(got, SCORE[:4] * 0.1 + 0.5**heads, rtol=1e-12)
    # A hook that forgets its score still gives one for each.
    assert logits(lambda s, b, h, q, k: 1)(SCORE * KV, 0, 0, Q, KV).shape == (9, 9)


def test_conversions() -> None:
    score = np.array([-2.5, -0.5, 0.0, 0.5, 2.5])
    hook = logits(lambda s, b, h, q, k: s.to(torch.int32) + s.bool().float())
    assert hook(score, 0, 0, 0, 0).tolist() == [-1, 1, 0, 1, 3]
    assert hook.cpp == "float(int(score)) + float(score != 0.0f)"
    with pytest.raises(TraceError, match=r"torch\.bfloat16 is no type of traced values"):
        logits(lambda s, b, h, q, k: s.to(torch.bfloat16))
