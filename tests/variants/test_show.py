"""`Variant.show()` and the operations it counts."""

from __future__ import annotations

from cute_attn.variants import (
    Hook,
    Variant,
    alibi,
    causal,
    chunked_local,
    full,
    sliding_window,
    soft_cap,
)
from cute_attn.variants import functions as f
from cute_attn.variants.cost import operations
from cute_attn.variants.program import Program


def test_everything_is_shown() -> None:
    assert (
        (causal() & sliding_window() & alibi(12)).show()
        == """\
variant causal_window_alibi
  scalar window_left: i32 = 1073741824, 0 or more  (keys kept before the query's position)
  scalar alibi_heads: i32 = 8, 1 or more  (largest power of two of heads)
  band: q_idx - window_left <= kv_idx <= q_idx; all of the mask

mask(b, h, q_idx, kv_idx): causal and sliding window
  traced
    %0: bool = le(kv_idx, q_idx)
    %1: i32 = sub(q_idx, window_left)
    %2: bool = ge(kv_idx, %1)
    %3: bool = and(%0, %2)
    return %3
  C++
    return (kv_idx <= q_idx) && (kv_idx >= q_idx - window_left);
  operations per score: 3 INT
  operations per row: 1 INT

logits(score, b, h, q_idx, kv_idx): alibi
  traced
    %0: f32 = to_f32(alibi_heads)
    %1: f32 = div(-8.0f, %0)
    %2: bool = lt(h, alibi_heads)
    %3: i32 = add(h, 1)
    %4: f32 = to_f32(%3)
    %5: i32 = sub(h, alibi_heads)
    %6: f32 = to_f32(%5)
    %7: f32 = add(%6, 0.5f)
    exponent: f32 = where(%2, %4, %7)
    %9: f32 = mul(%1, exponent)
    slope: f32 = exp2(%9)
    %11: i32 = sub(kv_idx, q_idx)
    %12: f32 = to_f32(%11)
    %13: f32 = mul(slope, %12)
    %14: f32 = add(score, %13)
    return %14
  C++, once per query row: logits_slope
    float const t0 = h < alibi_heads ? float(h + 1) : float(h - alibi_heads) + 0.5f;
    return exp2_approx(-8.0f * fast_reciprocal(float(alibi_heads)) * t0);
  C++
    return score + lag.times(-values.logits_slope);
  operations per score: 2 FP32, 2 INT
  operations per row: 3 FP32, 1 MUFU, 5 INT
  operations per launch: 1 FP32, 1 MUFU, 1 INT"""
    )


def test_bands_and_texts() -> None:
    assert full().show() == "variant full\n  every key of the request is visible"
    chunks = (causal() & chunked_local()).show()
    assert "band: q_idx - (chunk_size - 1) <= kv_idx <= q_idx; inside it the mask decides" in chunks
    text = Hook("even", "kv_idx % 2 == 0")
    shown = (causal() & Variant("even", mask=text)).show()
    assert "band: kv_idx <= q_idx; inside it the mask decides" in shown
    assert "  C++\n    return kv_idx <= q_idx;" in shown
    assert "  C++, written by hand (even)\n    return kv_idx % 2 == 0;" in shown
    assert "operations" not in shown
    assert "band: no limits" in Variant("even", mask=text).show()


def test_factors_of_the_score_are_shown() -> None:
    shown = soft_cap().show()
    assert "  sm_scale is multiplied with fast_reciprocal(logits_soft_cap)\n" in shown
    assert "  C++\n    return fast_tanh(score);\n" in shown
    assert "  what it returns is multiplied with logits_soft_cap\n" in shown


def test_operations_by_class() -> None:
    def counts(function: object) -> dict[str, dict[str, int]]:
        hook = Variant("v", logits=function).logits  # type: ignore[arg-type]
        assert hook is not None and isinstance(hook.program, Program)
        return {k: dict(v) for k, v in operations(hook.program.result).items() if v}

    assert counts(lambda s, b, h, q, k: f.exp2(s) + 1.0) == {"score": {"MUFU": 1, "FP32": 1}}
    assert counts(lambda s, b, h, q, k: s / 8.0) == {"score": {"FP32": 1}}
    assert counts(lambda s, b, h, q, k: s / (s + 1)) == {"score": {"MUFU": 1, "FP32": 2}}
    assert counts(lambda s, b, h, q, k: s + k // 8) == {"score": {"FP32": 1, "INT": 2}}
    assert counts(lambda s, b, h, q, k: s + q // 3) == {
        "score": {"FP32": 1},
        "row": {"INT": 5},
    }
