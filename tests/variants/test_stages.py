"""Hooks of scores in stages: together they are the hook, and each is done where it belongs."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cute_attn.variants import Scalar, Tensor, Variant, alibi, chunked_local, functions, soft_cap
from cute_attn.variants.evaluate import evaluate
from cute_attn.variants.stages import Stages
from tests.variants.test_programs import PARAMS
from tests.variants.trees import SCALARS, TRACED, floats, run, truths

POINTS = {
    "score": np.array([0.5, -3.0, 7.0, 0.0]),
    "b": np.array([0, 1, 2, 3]),
    "h": np.array([3, 0, 1, 2]),
    "q_idx": np.array([-4, 0, 17, 90]),
    "kv_idx": np.array([0, 5, 17, 40]),
}


def stages_of(variant: Variant, role: str) -> Stages:
    program = variant.hooks[role].program
    assert program is not None
    return program.stages


def together(stages: Stages, scalars: dict[str, Any]) -> Any:
    """The stages one after the other, in float64."""
    known = {**POINTS, **scalars}

    def value(x: Any, more: dict[str, Any]) -> Any:
        return evaluate(x, {**known, **more}, np.float64)

    rows = {f"values.{name}": value(x, {}) for name, x in stages.rows.items()}
    factor = 1.0 if stages.factor is None else value(stages.factor, {})
    result = value(stages.score, {**rows, "score": POINTS["score"] * factor})
    return result if stages.exponent is None else result * value(stages.exponent, {})


def check(role: str, tree: Any) -> None:
    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any, **named: Any) -> Any:
        return run(tree, {"b": b, "h": h, "q_idx": q_idx, "kv_idx": kv_idx, **named}, TRACED)

    def logits(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, **named: Any) -> Any:
        own = {"score": score, "b": b, "h": h, "q_idx": q_idx, "kv_idx": kv_idx}
        return run(tree, {**own, **named}, TRACED) + 0.0 * score

    variant = Variant("v", **{role: mask if role == "mask" else logits}, params=PARAMS)  # type: ignore[arg-type]  # one hook of either kind
    stages = stages_of(variant, role)
    for value in stages.rows.values():
        assert value.reads.isdisjoint(("score", "kv_idx"))
    program = variant.hooks[role].program
    assert program is not None
    whole = evaluate(program.result, {**POINTS, **SCALARS}, np.float64)
    np.testing.assert_allclose(
        np.broadcast_to(together(stages, SCALARS), (4,)),
        np.broadcast_to(whole, (4,)),
        rtol=1e-9,
        atol=1e-9,
    )


@given(tree=truths())
@settings(max_examples=200, deadline=None)
def test_stages_of_masks_are_the_mask(tree: Any) -> None:
    check("mask", tree)


@given(
    tree=st.one_of(
        floats(),
        st.tuples(st.just("mul"), st.floats(0.5, 4, width=16), floats()),
        st.tuples(st.just("tanh"), st.tuples(st.just("mul"), st.just("score"), st.just("slope"))),
    )
)
@settings(max_examples=200, deadline=None)
def test_stages_of_logits_are_the_hook(tree: Any) -> None:
    check("logits", tree)


def test_factors_go_to_the_host() -> None:
    stages = stages_of(soft_cap(), "logits")
    assert repr(stages.factor) == "div(1.0, logits_soft_cap)"
    assert repr(stages.exponent) == "logits_soft_cap" and repr(stages.score) == "tanh_approx(score)"
    # A factor that may be negative would turn the largest score into the smallest.
    signed = Variant("signed", logits=lambda s, b, h, i, j, *, by=2.0: by * functions.tanh(s))
    assert stages_of(signed, "logits").exponent is None


def test_factors_in_tensors_stay_on_the_device() -> None:
    tensor = Tensor("t", "f32", 1)
    one = Variant("v", logits=lambda s, b, h, i, j, *, t: s * t[0], params=[tensor])
    two = Variant("v", logits=lambda s, b, h, i, j, *, t: t[0] * (s / t[1]), params=[tensor])
    for variant in (one, two):
        stages = stages_of(variant, "logits")
        assert stages.factor is None and stages.exponent is None
        assert any("t" in value.reads for value in stages.rows.values())  # read once per row


def test_what_is_worth_a_register_of_each_row() -> None:
    assert list(stages_of(alibi(8), "logits").rows) == ["logits_slope"]
    # `start + chunk_size` is a sum of what is there.
    assert list(stages_of(chunked_local(), "mask").rows) == ["mask_start"]
    near = Variant("near", mask=lambda b, h, i, j, *, w: j > i - w, params=[Scalar("w", "i32", 3)])
    assert not stages_of(near, "mask").rows
