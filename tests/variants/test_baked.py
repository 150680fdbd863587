"""`Variant.bake()`: constants in the place of scalars."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from cute_attn.variants import (
    Band,
    Hook,
    Scalar,
    Variant,
    causal,
    chunked_local,
    document_mask,
    sliding_window,
    soft_cap,
)
from tests.variants.test_programs import hook_of, numpy
from tests.variants.trees import SCALARS, Tree, floats, truths

Q, KV = np.arange(40)[:, None], np.arange(40)[None, :]


def test_constants_in_code_and_band() -> None:
    windowed = causal() & sliding_window() & soft_cap()
    baked = windowed.bake(window_left=128, logits_soft_cap=30)
    assert baked.scalars == () and baked.name == windowed.name
    assert baked.band == Band(128, 0) and baked.band_is_mask
    assert baked.mask is not None and baked.logits is not None
    assert baked.mask.cpp == "(kv_idx <= q_idx) && (kv_idx >= q_idx - 128)"
    assert baked.logits.cpp == "30.0f * tanh_approx(score * (1.0f / 30.0f))"
    partly = windowed.bake(window_left=128)
    assert [s.name for s in partly.scalars] == ["logits_soft_cap"]
    chunks = chunked_local().bake(chunk_size=64).mask
    assert chunks is not None and "q_idx - (q_idx & 63)" in chunks.cpp
    assert "int const start" in chunks.cpp  # the user's names stay
    assert causal().bake() == causal()


def test_beside_tensors_and_text() -> None:
    even = Variant("even", mask=Hook("even", "kv_idx % 2 == 0", lambda b, h, q, k: k % 2 == 0))
    mixed = sliding_window() & even & document_mask()
    baked = mixed.bake(window_left=3)
    assert baked.band == Band(left=3) and baked.tensors == mixed.tensors and baked.scalars == ()
    assert baked.mask is not None and mixed.mask is not None
    ids = np.arange(40, dtype=np.int32)[None] // 9
    given_later = mixed.mask(0, 0, Q, KV, window_left=3, document=ids)
    assert np.array_equal(baked.mask(0, 0, Q, KV, document=ids), given_later)


def test_what_cannot_be_baked() -> None:
    with pytest.raises(ValueError, match=r"has no scalar \['window'\]"):
        sliding_window().bake(window=3)
    with pytest.raises(ValueError, match="window_left is -1; it takes 0 or more"):
        sliding_window().bake(window_left=-1)
    text = Variant("t", mask=Hook("near", "kv_idx > q_idx - n"), params=[Scalar("n", "i32", 3)])
    with pytest.raises(ValueError, match="hook 'near' is C\\+\\+ text and reads 'n' at run time"):
        text.bake(n=4)


def check(tree: Tree, role: str) -> None:
    hook: Any = hook_of(tree, role)
    np.testing.assert_allclose(numpy(hook.bake(SCALARS), role), numpy(hook, role), rtol=1e-12)


@given(tree=truths())
@settings(max_examples=200, deadline=None)
def test_masks_stay_the_same(tree: Tree) -> None:
    check(tree, "mask")


@given(tree=floats())
@settings(max_examples=200, deadline=None)
def test_scores_stay_the_same(tree: Tree) -> None:
    check(tree, "logits")
