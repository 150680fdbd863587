"""Softmax off, hooks on a row's log-sum-exp and on its output: tracing, combination, errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from cute_attn.variants import (
    Hook,
    Scalar,
    Tensor,
    TraceError,
    Variant,
    alibi,
    attention_sinks,
    causal,
    functions,
    sigmoid_attention,
    sliding_window,
    soft_cap,
)
from cute_attn.variants.cost import operations

GATE = Tensor("gate", "f32", 2, "(heads, columns)")


def gated(out: Any, b: Any, h: Any, q_idx: Any, d: Any, *, gate: Any, shift: float = 1.0) -> Any:
    return out * gate[h, d] + shift * (q_idx - b)


def floored(lse: Any, b: Any, h: Any, q_idx: Any, *, floor: float = -1.0) -> Any:
    return functions.maximum(lse, floor + h)


def gate() -> Variant:
    return Variant("gate", output=gated, params=[GATE])


def test_traced_hooks_compute() -> None:
    hook = gate().output
    assert hook is not None and hook.program is not None and hook.program.role == "output"
    assert hook.cpp == "out * gate(params, h, d) + shift * float(q_idx - b)"
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    out = np.random.default_rng(0).standard_normal((5, 4))
    got = hook(out, 1, 2, np.arange(5)[:, None], np.arange(4)[None], gate=table, shift=0.5)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, out * table[2] + 0.5 * (np.arange(5)[:, None] - 1))
    state = Variant("floor", row_state=floored).row_state
    assert state is not None and state.cpp == "fmaxf(lse, floor + float(h))"
    lse = np.array([-np.inf, 3.0], np.float32)
    assert state(lse, 0, np.array([0, 1]), 7, floor=-1.0).tolist() == [-1.0, 3.0]


def test_sinks() -> None:
    hook = attention_sinks().row_state
    assert hook is not None
    sink = np.array([-np.inf, np.inf, -1e30, 1e30, 0.0, 2.5, -80.0, 80.0], np.float32)
    h = np.arange(8)
    for lse in (-np.inf, -90.0, 0.0, 7.0, 1e4):
        got = hook(np.full(8, lse), 0, h, 0, sink=sink)
        np.testing.assert_allclose(got, np.logaddexp(lse, sink.astype(np.float64)), 1e-12, 1e-12)
    assert np.isneginf(hook(np.array([-np.inf]), 0, 0, 0, sink=sink)).all()


def test_sigmoid() -> None:
    variant = sigmoid_attention(1024)
    assert not variant.softmax and variant.values() == {"sigmoid_bias": -math.log(1024)}
    score = np.linspace(-20, 20, 9)
    assert variant.logits is not None
    got = variant.logits(score, 0, 0, 0, 0, sigmoid_bias=-2.0)
    np.testing.assert_allclose(got, 1 / (1 + np.exp(2.0 - score)))
    with pytest.raises(ValueError, match="keys is 0; it takes 1 or more"):
        sigmoid_attention(0)


def test_they_combine() -> None:
    both = causal() & soft_cap() & attention_sinks() & gate() & sliding_window()
    assert list(both.hooks) == ["mask", "logits", "row_state", "output"] and both.softmax
    assert both.band.left == "window_left" and both.band_is_mask
    assert [p.name for p in (*both.scalars, *both.tensors)] == [
        "logits_soft_cap", "shift", "window_left", "sink", "gate",
    ]  # fmt: skip
    sigmoid = sigmoid_attention(8) & causal()
    assert not sigmoid.softmax and not (causal() & sigmoid_attention(8)).softmax
    for one, what in (
        (attention_sinks(), "row state"),
        (gate(), "output"),
        (soft_cap(), "logits"),
    ):
        with pytest.raises(ValueError, match=f"both transform {what}"):
            one & one
    with pytest.raises(ValueError, match="both transform logits"):
        sigmoid & alibi(8)
    with pytest.raises(ValueError, match="'sigmoid_sinks' has a row_state hook and softmax=False"):
        sigmoid_attention(8) & attention_sinks()
    with pytest.raises(ValueError, match="'v' has a row_state hook and softmax=False"):
        Variant("v", row_state=floored, softmax=False)


def test_what_concerns_finished_rows() -> None:
    assert causal().finish is None and (causal() & alibi(8)).finish is None
    sinks = (causal() & attention_sinks()).finish
    assert sinks is not None and sinks == (sliding_window() & attention_sinks()).finish
    assert list(sinks.hooks) == ["row_state"] and [t.name for t in sinks.tensors] == ["sink"]
    everything = (soft_cap() & gate() & attention_sinks()).finish
    assert everything is not None and list(everything.hooks) == ["row_state", "output"]
    assert [s.name for s in everything.scalars] == ["shift"]
    off = (causal() & sigmoid_attention(4)).finish
    assert off is not None and not off.softmax and off.hooks == {} and off.scalars == ()
    assert off == sigmoid_attention(9).finish


def test_plain_variants_are_shown_as_before() -> None:
    text = repr(causal() & soft_cap())
    assert not any(word in text for word in ("row_state", "output", "softmax=", "tensors"))
    assert "softmax=False" in repr(sigmoid_attention(4))
    assert "row_state=Hook" in repr(attention_sinks()) and "output=Hook" in repr(gate())
    assert hash(causal() & gate()) == hash(causal() & gate()) and causal() != causal() & gate()


def test_baked() -> None:
    baked = (gate() & causal()).bake(shift=2.0)
    assert baked.scalars == () and baked.output is not None and baked.tensors == (GATE,)
    assert baked.output.cpp == "out * gate(params, h, d) + 2.0f * float(q_idx - b)"
    weights = sigmoid_attention(4).bake(sigmoid_bias=-1.0)
    assert not weights.softmax and weights.logits is not None and weights.scalars == ()
    state = Variant("floor", row_state=floored).bake(floor=0.5).row_state
    assert state is not None and state.cpp == "fmaxf(lse, 0.5f + float(h))"


def test_shown() -> None:
    shown = (sigmoid_attention(4) & gate()).show()
    assert "  no softmax: scores weigh the values as they are" in shown
    assert "output(out, b, h, q_idx, d): gated" in shown
    assert "  operations per element: 2 FP32, 4 INT, 1 LOAD" in shown
    assert "  operations per row: 1 FP32, 2 INT" in shown
    sinks = attention_sinks().show()
    assert "row_state(lse, b, h, q_idx): attention sinks" in sinks
    assert "  operations per row: 10 FP32, 3 MUFU, 2 INT, 1 LOAD" in sinks
    assert "per score" not in sinks and "per element" not in sinks


def test_one_mufu_operation_per_weight() -> None:
    hook = sigmoid_attention(4).logits
    assert hook is not None and hook.program is not None
    assert operations(hook.program.result)["score"]["MUFU"] == 1


@pytest.mark.parametrize(
    ("logits", "between"),
    [
        (sigmoid_attention(4).logits, (0.0, 1.0)),
        (lambda s, b, h, q, k: functions.clamp(s, -3, 70000), (-3.0, 70000.0)),
        (lambda s, b, h, q, k: s * functions.maximum(s, 0), (-1.16e77, 1.16e77)),
        (None, (-math.inf, math.inf)),
    ],
)
def test_bounds_of_weights(logits: Any, between: tuple[float, float]) -> None:
    low, high = Variant("v", logits=logits, softmax=False).weights_between() or (0.0, 0.0)
    assert low == pytest.approx(between[0], 1e-2, 1e-3) and high == pytest.approx(between[1], 1e-2)
    text = Variant("v", logits=Hook("t", "score"), softmax=False)
    assert text.weights_between() is None


def check(variant: Variant, shape: tuple[int, ...]) -> None:
    rows = {"b": (0.0, 1.0), "h": (0.0, 2.0), "q_idx": (-2.0, 9.0), "d": (0.0, 63.0)}
    variant.check_indices({"gate": shape}, None, variant.values(), rows)


def test_indices() -> None:
    check(gate(), (3, 64))
    with pytest.raises(IndexError, match=r"gate\[h, d\] reads outside gate: index 1 .* 0 and 63"):
        check(gate(), (3, 63))
    by_position = Variant("v", output=lambda out, b, h, q, d, gate: out * gate[b, q], params=[GATE])
    with pytest.raises(IndexError, match="index 1 is between -2 and 9"):
        check(by_position, (2, 10))
    by_position.check_indices({"gate": (1, 1)}, {}, {})  # no rows


def test_errors() -> None:
    with pytest.raises(TraceError, match=r"the output function takes 4 arguments; .*q_idx, d\)"):
        Variant("v", output=lambda out, b, h, q: out)
    with pytest.raises(TraceError, match="row_state function returns a truth value; it takes a lo"):
        Variant("v", row_state=lambda lse, b, h, q: lse > 0)
    with pytest.raises(TraceError, match="output function returns None"):
        Variant("v", output=lambda out, b, h, q, d: None)
    with pytest.raises(TypeError, match=r"row_state of variant 'v' is a int; .*\(lse, b, h,"):
        Variant("v", row_state=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the output of variant 'v' is hook 'attention sinks', wh"):
        Variant("v", output=attention_sinks().row_state)
    for name in ("lse", "out", "d"):
        with pytest.raises(ValueError, match=f"called '{name}'"):
            Scalar(name, "f32", 0.0)
