"""Rectangles of scores: full, partial or empty, from interval analysis of the mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cute_attn.variants import (
    EMPTY,
    FULL,
    PARTIAL,
    Band,
    Hook,
    Scalar,
    Variant,
    causal,
    chunked_local,
    full,
    functions,
    prefix_lm,
    sliding_window,
    soft_cap,
)
from tests.variants.test_bands import near_masks
from tests.variants.test_programs import PARAMS
from tests.variants.trees import RECTANGLES, SCALARS, TRACED, promise, run, truths

TILE = 16


def tiles(variant: Variant, length: int = 128, **scalars: Any) -> Any:
    """(query tiles, KV tiles) kinds of a square of `length`."""
    first = np.arange(0, length, TILE)
    q, kv = (first[:, None], first[:, None] + TILE - 1), (first[None, :], first[None, :] + TILE - 1)
    return variant.classify(q, kv, scalars)


def exact(variant: Variant, length: int = 128, **scalars: Any) -> Any:
    """The same by looking at every score."""
    q, kv = np.arange(length)[:, None], np.arange(length)[None, :]
    assert variant.mask is not None
    visible = variant.mask(0, 0, q, kv, **variant.values(scalars))
    visible = np.broadcast_to(visible, (length, length))
    blocks = visible.reshape(length // TILE, TILE, length // TILE, TILE)
    return np.where(blocks.all((1, 3)), FULL, np.where(blocks.any((1, 3)), PARTIAL, EMPTY))


CHUNKED = Variant("chunked", mask=lambda b, h, q, k, *, c=32: (k <= q) & (q // c == k // c),
                  params=[Scalar("c", "i32", 32, "", lower=1)])  # fmt: skip
PREFIX = Variant("prefix", mask=lambda b, h, q, k, *, n=40: (k <= q) | (k < n))
SINKS = Variant("sinks", mask=lambda b, h, q, k, *, n=4, w=20: (k <= q) & ((k < n) | (k > q - w)))
DILATED = Variant("dilated", mask=lambda b, h, q, k: (k <= q) & ((q - k) // 32 % 2 == 0))
FLOATS = Variant("floats", mask=lambda b, h, q, k: functions.exp2((k - q) * 0.1) < 1.0)


@pytest.mark.parametrize(
    ("variant", "scalars"),
    [
        (causal(), {}),
        (sliding_window(), {"window_left": 20}),
        (causal() & sliding_window(), {"window_left": 0}),
        (causal() & sliding_window(), {"window_left": 33}),
        (chunked_local() & causal(), {"chunk_size": 24}),
        (chunked_local(), {"chunk_size": 32}),
        (prefix_lm() & sliding_window(right=True), {"prefix_length": 40, "window_right": 70}),
        (CHUNKED, {}),
        (CHUNKED, {"c": 24}),
        (PREFIX, {}),
        (PREFIX, {"n": 0}),
        (SINKS, {}),
        (SINKS, {"n": 0, "w": 64}),
        (FLOATS, {}),
        (Variant("all", mask=lambda b, h, q, k: True), {}),
        (Variant("none", mask=lambda b, h, q, k: False), {}),
    ],
    ids=lambda x: x.name if isinstance(x, Variant) else None,
)
def test_every_tile_is_known(variant: Variant, scalars: dict[str, Any]) -> None:
    assert np.array_equal(tiles(variant, **scalars), exact(variant, **scalars))


def test_what_is_not_known_is_partial() -> None:
    got, true = tiles(DILATED), exact(DILATED)
    assert (got[true == PARTIAL] == PARTIAL).all()
    assert ((got == true) | (got == PARTIAL)).all()
    assert (got[np.triu_indices(8, 1)] == EMPTY).all()
    squares = Variant("squares", mask=lambda b, h, q, k: (q * q + k * k) % 7 < 3)
    assert (tiles(squares) == PARTIAL).all()


def test_heads_and_requests() -> None:
    by_head = Variant("by_head", mask=lambda b, h, q, k: (h < 4) | (k <= q))
    q, kv = (np.array([0]), np.array([15])), (np.array([64]), np.array([79]))
    assert by_head.classify(q, kv).tolist() == [PARTIAL]
    assert by_head.classify(q, kv, h=(0, 3)).tolist() == [FULL]
    assert by_head.classify(q, kv, h=(4, 7)).tolist() == [EMPTY]
    by_request = Variant("by_request", mask=lambda b, h, q, k: (b == 1) & (k <= q))
    assert by_request.classify(q, kv, b=(0, 0)).tolist() == [EMPTY]


def test_variants_without_a_traced_mask() -> None:
    assert (tiles(full()) == FULL).all() and (tiles(soft_cap()) == FULL).all()
    text = Hook("near", "kv_idx >= q_idx - 20 && kv_idx <= q_idx")
    given_band = Variant("near", mask=text, band=Band(20, 0), band_is_mask=True)
    twin = Variant("twin", mask=lambda b, h, q, k: (k >= q - 20) & (k <= q))
    assert np.array_equal(tiles(given_band), exact(twin))
    unknown = tiles(Variant("near", mask=text, band=Band(20, 0)))
    assert np.array_equal(unknown == EMPTY, exact(twin) == EMPTY)
    assert not (unknown == FULL).any()
    assert (tiles(Variant("near", mask=text)) == PARTIAL).all()


def check(tree: Any, rectangle: tuple[int, int, int, int], scalars: dict[str, Any]) -> None:
    def function(b: Any, h: Any, q_idx: Any, kv_idx: Any, **named: Any) -> Any:
        return run(tree, {"b": b, "h": h, "q_idx": q_idx, "kv_idx": kv_idx, **named}, TRACED)

    variant = Variant("v", mask=function, params=PARAMS)
    q, rows, kv, columns = rectangle
    kind = variant.classify((q, q + rows), (kv, kv + columns), scalars, b=(0, 1), h=(0, 3))
    assert variant.mask is not None
    b, h = np.arange(2)[:, None, None, None], np.arange(4)[:, None, None]
    visible = variant.mask(
        b, h, np.arange(q, q + rows + 1)[:, None], np.arange(kv, kv + columns + 1), **scalars
    )
    promise(kind, visible)


@given(tree=truths(), rectangle=RECTANGLES)
@settings(max_examples=300, deadline=None)
def test_random_masks(tree: Any, rectangle: tuple[int, int, int, int]) -> None:
    check(tree, rectangle, SCALARS)


@given(tree=near_masks, rectangle=RECTANGLES, size=st.integers(1, 20), shift=st.integers(-20, 20))
@settings(max_examples=300, deadline=None)
def test_random_masks_near_the_diagonal(
    tree: Any, rectangle: tuple[int, int, int, int], size: int, shift: int
) -> None:
    check(tree, rectangle, {**SCALARS, "size": size, "shift": shift})


@given(tree=st.tuples(st.sampled_from(("lt", "ge", "eq")), st.deferred(lambda: float_trees),
                      st.floats(-2, 2, width=16)), rectangle=RECTANGLES)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_random_masks_of_floats(tree: Any, rectangle: tuple[int, int, int, int]) -> None:
    check(tree, rectangle, SCALARS)


_float_leaves = st.sampled_from((("mul", "q_idx", 0.125), ("mul", "kv_idx", -0.5), "slope"))
float_trees = st.recursive(
    _float_leaves,
    lambda less: st.one_of(
        st.tuples(
            st.sampled_from(("add", "sub", "mul", "ratio", "minimum", "maximum")), less, less
        ),
        st.tuples(
            st.sampled_from(
                ("tanh", "sigmoid", "sin", "cos", "exp", "exp2", "log", "log2", "erf", "sqrt",
                 "rsqrt", "root", "pow", "neg", "abs", "square")
            ),
            less,
        ),
    ),
    max_leaves=5,
)  # fmt: skip
