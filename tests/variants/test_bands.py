"""Bands that are derived from masks: those of known masks, and safety for random ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cute_attn.abi import UNBOUNDED
from cute_attn.codegen.hooks import cpp_band
from cute_attn.variants import Hook, Scalar, Variant, functions
from tests.variants.test_programs import PARAMS
from tests.variants.trees import SCALARS, TRACED, run, truths

INF = UNBOUNDED
Q, KV = np.arange(-40, 60)[:, None], np.arange(0, 60)[None, :]


def scalar(name: str, default: int = 8, lower: int | None = None) -> Scalar:
    return Scalar(name, "i32", default, "", lower=lower)


W, W1, LEFT, RIGHT, C = (
    scalar("w"), scalar("w", lower=1), scalar("left", lower=0), scalar("right", lower=0),
    scalar("c", lower=1),
)  # fmt: skip


@pytest.mark.parametrize(
    ("mask", "params", "band", "exact"),
    [
        (lambda b, h, q, k: True, [], (INF, INF), True),
        (lambda b, h, q, k: False, [], (0, 0), False),
        (lambda b, h, q, k: k <= q, [], (INF, 0), True),
        (lambda b, h, q, k: q >= k, [], (INF, 0), True),
        (lambda b, h, q, k: ~(k > q), [], (INF, 0), True),
        (lambda b, h, q, k: k < q, [], (INF, 0), False),  # not even the query's own
        (lambda b, h, q, k: k < q + 1, [], (INF, 0), True),
        (lambda b, h, q, k: k == q, [], (0, 0), True),
        (lambda b, h, q, k: k != q, [], (INF, INF), False),
        (lambda b, h, q, k: q - k <= 5, [], (5, INF), True),
        (lambda b, h, q, k: 2 * q - 2 * k <= 5, [], (2, INF), True),
        (lambda b, h, q, k: (q - k) << 1 <= 5, [], (2, INF), True),
        (lambda b, h, q, k: 2 * q - k <= 5, [], (INF, INF), False),
        (lambda b, h, q, k, *, w: k >= q - w, [W], (8, INF), False),  # w may be negative
        (lambda b, h, q, k, *, w: k > q - w, [W1], (7, INF), True),
        (lambda b, h, q, k, *, w: (k <= q) & (k > q - w), [W1], (7, 0), True),
        (lambda b, h, q, k, *, w: abs(q - k) <= w, [scalar("w", lower=0)], (8, 8), False),
        (lambda b, h, q, k, *, w: abs(q - k) < w, [W1], (7, 7), False),
        (lambda b, h, q, k, *, w: functions.maximum(q - k, k - q) < w, [W1], (7, 7), False),
        (lambda b, h, q, k, *, w: k <= functions.minimum(q, q + w), [W1], (INF, 0), False),
        (lambda b, h, q, k, *, left, right: (k >= q - left) & (k <= q + right), [LEFT, RIGHT],
         (8, 8), True),
        (lambda b, h, q, k: q // 16 == k // 16, [], (15, 15), False),
        (lambda b, h, q, k: q >> 4 == k >> 4, [], (15, 15), False),
        (lambda b, h, q, k: (k <= q) & (q // 16 == k // 16), [], (15, 0), False),
        (lambda b, h, q, k: (k <= q) & (k >= q - q % 16), [], (15, 0), False),
        (lambda b, h, q, k: (k <= q) & (k >= q // 16 * 16), [], (15, 0), False),
        (lambda b, h, q, k, *, c: (k <= q) & (q // c == k // c), [C], (7, 0), False),
        (lambda b, h, q, k, *, c: (k <= q) & (q // c - k // c <= 1), [C], (15, 0), False),
        (lambda b, h, q, k, *, c: (k <= q) & (k >= q - q % c), [C], (7, 0), False),
        (lambda b, h, q, k, *, w: (k <= q) | (k < w), [W], (INF, INF), False),  # prefix LM
        (lambda b, h, q, k: (k <= q) | (k <= q + 4), [], (INF, 4), False),
        (lambda b, h, q, k: (k <= q) & ((k < 4) | (k > q - 8)), [], (INF, 0), False),
        (lambda b, h, q, k: functions.where(h < 2, k <= q, k <= q + 3), [], (INF, 3), False),
        (lambda b, h, q, k: k <= q - h, [], (INF, 0), False),
        (lambda b, h, q, k: k <= q + h, [], (INF, INF), False),
        (lambda b, h, q, k: (k <= q) & (k % 2 == 0), [], (INF, 0), False),
        (lambda b, h, q, k: (k <= q) & (k * 0.5 < 7.0), [], (INF, 0), False),
        (lambda b, h, q, k: (k <= q) & (k * q < 99), [], (INF, 0), False),
        (lambda b, h, q, k, *, w: (k >= q - w) & (k >= q - 5), [scalar("w", 3, 0)], (3, INF), True),
        (lambda b, h, q, k: (k <= q) ^ (h == 0), [], (INF, INF), False),
    ],
)  # fmt: skip
def test_known_masks(mask: Any, params: list[Scalar], band: tuple[int, int], exact: bool) -> None:
    variant = Variant("v", mask=mask, params=params)
    assert variant.band.resolve(variant.values()) == band
    assert variant.band_is_mask is exact
    check(variant, variant.values())


def check(variant: Variant, scalars: dict[str, Any]) -> None:
    """Visible keys are in the band; if it is the mask, all in it are visible."""
    left, right = variant.band.resolve(scalars)
    inside = (Q - left <= KV) & (Q + right >= KV)
    assert variant.mask is not None
    for h in (0, 1, 3):
        visible = np.broadcast_to(variant.mask(0, h, Q, KV, **scalars), inside.shape)
        assert not (visible & ~inside).any()
        if variant.band_is_mask:
            assert np.array_equal(visible, inside)


@given(tree=truths())
@settings(max_examples=300, deadline=None)
def test_random_masks(tree: Any) -> None:
    check_tree(tree)


near = st.tuples(
    st.sampled_from(("lt", "le", "gt", "ge", "eq")),
    st.sampled_from(
        ("kv_idx", ("floordiv", "kv_idx", "size"), ("sub", "kv_idx", ("mod", "kv_idx", 7)),
         ("sub", "kv_idx", "q_idx"), ("abs", ("sub", "kv_idx", "q_idx")),
         ("mul", ("floordiv", "kv_idx", 4), 4))
    ),
    st.sampled_from(
        ("q_idx", ("add", "q_idx", "shift"), ("sub", "q_idx", "size"),
         ("floordiv", "q_idx", "size"), ("sub", "q_idx", ("mod", "q_idx", 7)),
         ("minimum", "q_idx", ("add", "q_idx", "shift")), "size", ("sub", "size", "h"),
         ("mul", ("floordiv", "q_idx", 4), 4))
    ),
)  # fmt: skip
near_masks = st.recursive(
    near,
    lambda less: st.one_of(
        st.tuples(st.sampled_from(("and_", "and_", "or_")), less, less),
        st.tuples(st.just("not_"), less),
        st.tuples(st.just("where"), less, less, less),
    ),
    max_leaves=4,
)


@given(tree=near_masks, size=st.integers(1, 20), shift=st.integers(-20, 20))
@settings(max_examples=500, deadline=None)
def test_random_masks_near_the_diagonal(tree: Any, size: int, shift: int) -> None:
    check_tree(tree, size=size, shift=shift)


def check_tree(tree: Any, **scalars: Any) -> None:
    def function(b: Any, h: Any, q_idx: Any, kv_idx: Any, **named: Any) -> Any:
        return run(tree, {"b": b, "h": h, "q_idx": q_idx, "kv_idx": kv_idx, **named}, TRACED)

    variant = Variant("v", mask=function, params=PARAMS)
    check(variant, {**SCALARS, **scalars})


def test_limits_in_cpp() -> None:
    def mask(b: Any, h: Any, q: Any, k: Any, *, w: int, left: int) -> Any:
        return (k > q - w) & (k >= q - left)

    variant = Variant("v", mask=mask, params=[W1, LEFT])
    assert cpp_band(variant.band, variant.scalars) == (
        "min(min(params.w - 1, params.left), 1 << 30)",
        None,
    )
    assert variant.band.resolve({"w": 5, "left": 9}) == (4, INF)
    assert variant.band.resolve({"w": 5, "left": 1}) == (1, INF)
    maybe = Variant("v", mask=lambda b, h, q, k, *, w: k >= q - w, params=[W])
    assert cpp_band(maybe.band, maybe.scalars)[0] == "min(max(params.w, 0), 1 << 30)"
    assert maybe.band.resolve({"w": -3}) == (0, INF)


def test_bands_of_cpp_masks_are_given() -> None:
    text = Hook("near", "kv_idx >= q_idx - 3")
    assert not Variant("v", mask=text).band_is_mask
    assert Variant("v", mask=text).band.resolve({}) == (INF, INF)
