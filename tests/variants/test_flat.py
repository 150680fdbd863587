"""Flat KV blocks: where the test says so, what hooks read at keys is one number of each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cute_attn.variants import (
    Tensor,
    Variant,
    alibi,
    causal,
    document_mask,
    full,
    functions,
    relative_bias,
    sigmoid_attention,
    soft_cap,
    tree_mask,
)
from cute_attn.variants.band import Band
from cute_attn.variants.evaluate import evaluate
from cute_attn.variants.expression import constant
from cute_attn.variants.flat import rows_in_band, shift_of
from cute_attn.variants.program import Program

REACH = 5
SCALARS = {"bias_reach": REACH}
TABLE = Tensor("table", "f32", 2, "(heads, numbers)")
KIND = Tensor("kind", "i32", 1, "(keys,)")


def by_chunk(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, table: Any) -> Any:
    return score + table[h, functions.minimum(kv_idx // 16, 3)]


def near_and_far(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, table: Any) -> Any:
    distance = functions.abs(q_idx - kv_idx)
    return score * 2 + table[h, functions.where(distance < 6, distance, 6)]


def scaled(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, table: Any) -> Any:
    return score * table[h, functions.clamp(q_idx - kv_idx, 0, 4)]


def two(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, table: Any, kind: Any) -> Any:
    return score + table[h, functions.clamp(kind[kv_idx], 0, 3)]


def program(variant: Variant, role: str) -> Program:
    found = variant.hooks[role].program
    assert found is not None
    return found


VARIANTS: dict[str, tuple[Variant, dict[str, Any]]] = {
    "relative": (relative_bias(REACH), SCALARS),
    "by_chunk": (Variant("by_chunk", logits=by_chunk, params=[TABLE]), {}),
    "near_and_far": (Variant("near_and_far", logits=near_and_far, params=[TABLE]), {}),
    "scaled": (causal() & Variant("scaled", logits=scaled, params=[TABLE]), {}),
    "document": (causal() & document_mask(), {}),
    "both": (causal() & document_mask() & relative_bias(REACH), SCALARS),
}
ARRAYS = {
    "bias": np.random.default_rng(0).standard_normal((4, 2 * REACH + 1)).astype(np.float32),
    "table": np.random.default_rng(1).standard_normal((4, 7)).astype(np.float32),
    "document": np.repeat(np.arange(8, dtype=np.int32), 40)[None].repeat(2, 0),
}


def is_flat(name: str, corners: dict[str, int]) -> bool:
    variant, scalars = VARIANTS[name]
    test = variant.flat_test
    assert test is not None
    given: dict[str, Any] = {f"params.{s}": value for s, value in scalars.items()}
    if variant.block_test is not None:
        given |= {t.name: t.over(ARRAYS[t.tensor]) for t in variant.block_test.tables}
    return bool(evaluate(test.flat, {**given, **corners, **scalars}))


@given(
    name=st.sampled_from(sorted(VARIANTS)),
    q=st.tuples(st.integers(0, 250), st.integers(1, 40)),
    kv=st.tuples(st.integers(0, 250), st.integers(1, 60)),
    heads=st.tuples(st.integers(0, 3), st.integers(1, 2)),
    b=st.integers(0, 1),
)
@settings(max_examples=400, deadline=None)
def test_elements_of_flat_blocks_are_one_number_of_a_row(
    name: str, q: tuple[int, int], kv: tuple[int, int], heads: tuple[int, int], b: int
) -> None:
    h_last = min(heads[0] + heads[1] - 1, 3)
    corners = {"b": b, "h_first": heads[0], "h_last": h_last}
    corners |= {"q_first": q[0], "q_last": q[0] + q[1] - 1}
    corners |= {"kv_first": kv[0], "kv_last": kv[0] + kv[1] - 1}
    if not is_flat(name, corners):
        return
    variant, scalars = VARIANTS[name]
    places = {
        "b": b,
        "h": np.arange(heads[0], h_last + 1)[:, None, None],
        "q_idx": np.arange(q[0], q[0] + q[1])[:, None],
        "kv_idx": np.arange(kv[0], kv[0] + kv[1]),
    }
    for hook in variant.hooks.values():
        assert hook.program is not None
        for element in hook.program.stages.elements.values():
            found = np.asarray(evaluate(element, {**places, **ARRAYS, **scalars}))
            found = np.broadcast_to(found, (h_last + 1 - heads[0], q[1], kv[1]))
            assert (found == found[..., :1]).all()


@pytest.mark.parametrize(
    ("name", "q", "kv", "flat"),
    [
        ("relative", (100, 120), (0, 100 - REACH), True),
        ("relative", (100, 120), (0, 101 - REACH), False),
        ("relative", (0, 9), (9 + REACH, 60), True),
        ("by_chunk", (0, 9), (16, 31), True),
        ("by_chunk", (0, 9), (16, 32), False),
        ("by_chunk", (0, 9), (48, 200), True),
        ("near_and_far", (50, 60), (0, 44), True),
        ("near_and_far", (50, 60), (0, 45), False),
        ("document", (0, 300), (164, 190), True),
        ("document", (0, 300), (64, 95), False),
    ],
)
def test_blocks(name: str, q: tuple[int, int], kv: tuple[int, int], flat: bool) -> None:
    corners = {"b": 0, "h_first": 0, "h_last": 3, "q_first": q[0], "q_last": q[1]}
    assert is_flat(name, {**corners, "kv_first": kv[0], "kv_last": kv[1]}) is flat


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_a_flat_hook_is_the_hook(name: str) -> None:
    variant, scalars = VARIANTS[name]
    places = {
        "score": np.array([0.5, -2.0, 3.0]),
        "b": np.array([0, 1, 1]),
        "h": np.array([0, 3, 2]),
        "q_idx": np.array([9, 80, 200]),
        "kv_idx": np.array([7, 90, 20]),
    }
    for role, hook in variant.hooks.items():
        assert hook.program is not None
        stages = hook.program.stages
        known = {**places, **ARRAYS, **scalars}
        known |= {f"values.{n}": evaluate(x, known) for n, x in stages.rows.items()}
        if stages.factor is not None:
            known["score"] = places["score"] * evaluate(stages.factor, known)
        elements = {f"flat.{n}": evaluate(x, known) for n, x in stages.elements.items()}
        np.testing.assert_array_equal(
            evaluate(stages.flat, {**known, **elements}), evaluate(stages.score, known), role
        )


def flat_of(name: str, role: str) -> Any:
    return program(VARIANTS[name][0], role).stages.flat


def test_what_is_left_of_hooks_in_flat_blocks() -> None:
    assert str(shift_of(flat_of("relative", "logits"))) == "flat.logits_bias"
    assert shift_of(flat_of("scaled", "logits")) is None
    # A factor of the score is multiplied elsewhere, and what is added first is added all the same.
    assert str(shift_of(flat_of("near_and_far", "logits"))) == "flat.logits_table"

    def minus(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, table: Any) -> Any:
        return (1.0 + score) - table[h, kv_idx // 16]

    both = shift_of(program(Variant("v", logits=minus, params=[TABLE]), "logits").stages.flat)
    assert str(both) == "sub(1.0, flat.logits_table)"
    rows = rows_in_band(flat_of("document", "mask"))
    assert rows is not None and rows.band == Band(None, 0)
    assert str(rows.rows) == "eq(values.mask_0, flat.mask_document)"
    assert rows_in_band(program(causal(), "mask").result) == (constant(True), Band(None, 0))


LOADS: list[tuple[Callable[[], Variant], str]] = [
    (full, "nothing reads a tensor"),
    (lambda: causal() & alibi(4), "nothing reads a tensor"),
    (lambda: causal() & soft_cap(), "nothing reads a tensor"),
    (lambda: Variant("v", logits=two, params=[TABLE, KIND]), "an index is an element"),
    (lambda: tree_mask(), "bits of keys follow the key"),
    (lambda: Variant("v", logits=lambda s, b, h, q, k, *, table: s + table[h, k], params=[TABLE]),
     "another element for each key"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "why"), LOADS, ids=[why for _, why in LOADS])
def test_nothing_to_ask(make: Callable[[], Variant], why: str) -> None:
    assert make().flat_test is None, why


def test_without_softmax_nothing_is_added_by_rows() -> None:
    from cute_attn.codegen.flat_hooks import flat_hooks

    weights = causal() & relative_bias(REACH)
    assert flat_hooks(weights, mask=False).shift
    variant = Variant("v", logits=by_chunk, params=[TABLE], softmax=False)
    found = flat_hooks(variant, mask=False)
    assert found.logits and not found.shift
    assert not flat_hooks(causal() & sigmoid_attention(64), mask=False)
