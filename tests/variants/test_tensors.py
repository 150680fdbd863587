"""Tensor parameters: tracing, evaluation, bounds of indices, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cute_attn.codegen.hooks import accessor
from cute_attn.variants import (
    PARTIAL,
    Hook,
    Scalar,
    Tensor,
    TraceError,
    Variant,
    causal,
    custom_mask,
    functions,
    pack_masks,
)
from cute_attn.variants.tensor import index_shape

BIAS = Tensor("bias", "f32", 2, "(heads, distances)")
DOCUMENT = Tensor("document", "i32", 1, "(positions,)")
ALLOWED = Tensor("allowed", "bool", 3, "(heads, queries, keys)")
TABLE = np.arange(12, dtype=np.float32).reshape(3, 4)
EVERYWHERE = {"b": (0.0, 1.0), "h": (0.0, 2.0), "q_idx": (0.0, 9.0), "kv_idx": (0.0, 9.0)}


def relative(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, bias: Any) -> Any:
    return score + bias[h, functions.clamp(q_idx - kv_idx, 0, 3)]


def same_document(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, document: Any) -> Any:
    return document[q_idx] == document[kv_idx]


def test_elements() -> None:
    hook = Variant("v", logits=relative, params=[BIAS]).logits
    assert hook is not None
    q, kv = np.arange(6)[:, None], np.arange(6)[None, :]
    got = hook(np.zeros((6, 6)), 0, 2, q, kv, bias=TABLE)
    assert np.array_equal(got, TABLE[2][np.clip(q - kv, 0, 3)])
    assert hook.cpp == "score + bias(params, h, min(max(q_idx - kv_idx, 0), 3))"
    mask = Variant("v", mask=same_document, params=[DOCUMENT]).mask
    assert mask is not None
    ids = np.array([0, 0, 1, 1, 1, 2], np.int32)
    assert np.array_equal(mask(0, 0, q, kv, document=ids), ids[q] == ids[kv])
    # One dimension at a time; a bool; an index outside reads the last element.
    mask = Variant("v", mask=lambda b, h, q, k, allowed: allowed[h][q][k], params=[ALLOWED]).mask
    assert mask is not None
    bits = np.random.default_rng(0).random((2, 4, 6)) < 0.5
    got = mask(0, 1, q, kv, allowed=bits)
    assert np.array_equal(got, bits[1][np.minimum(q, 3), kv]) and got.dtype == bool
    got = mask(0, 1, q - 6, kv + 9, allowed=bits)
    assert np.array_equal(got, np.broadcast_to(bits[1, -1, -1], (6, 6)))


def test_bands_and_tiles_beside_tensors() -> None:
    variant = causal() & Variant("v", mask=same_document, params=[DOCUMENT])
    assert variant.band.right == 0 and not variant.band_is_mask
    assert variant.tensors == (DOCUMENT,)
    assert (
        variant.classify((0, 15), (0, 15)) == PARTIAL and variant.classify((0, 15), (16, 31)) == 0
    )
    assert (variant & Variant("w", logits=relative, params=[BIAS])).tensors == (DOCUMENT, BIAS)
    assert "tensors" not in repr(causal()) and "tensors" in repr(variant)
    assert variant != causal()


def test_shown() -> None:
    shown = Variant("v", logits=relative, params=[BIAS]).show()
    assert "  tensor bias: f32, 2 dims  ((heads, distances))" in shown
    assert "%3: f32 = bias[h, %2]" in shown
    assert "operations per score: 1 FP32, 7 INT, 1 LOAD" in shown


def check(function: Any, shape: tuple[int, ...], *params: Any, **scalars: Any) -> None:
    variant = Variant("v", logits=function, params=[Tensor("t", "f32", len(shape)), *params])
    variant.check_indices({"t": shape}, EVERYWHERE, variant.values(scalars))


def test_indices_inside() -> None:
    check(lambda s, b, h, q, k, t: s + t[h], (3,))
    check(lambda s, b, h, q, k, t: s + t[b, q], (2, 10))
    check(lambda s, b, h, q, k, t: s + t[q - k + 9], (19,))
    check(lambda s, b, h, q, k, t: s + t[q - q % 4], (9,))
    check(lambda s, b, h, q, k, t: s + t[functions.clamp(q - k, 0, 4)], (5,))
    # What comes from a tensor is not known, and clamped by the kernels.
    check(lambda s, b, h, q, k, t: s + t[t[q].int()], (10,))
    check(lambda s, b, h, q, k, t, n: s + t[q // n], (4,), Scalar("n", "i32", 3, lower=1), n=3)
    near = Variant("near", mask=lambda b, h, q, k: (k <= q) & (k > q - 4))
    bias = Variant(
        "v", logits=lambda s, b, h, q, k, t: s + t[q - k], params=[Tensor("t", "f32", 1)]
    )
    (near & bias).check_indices({"t": (4,)}, EVERYWHERE, {})


@pytest.mark.parametrize(
    ("function", "shape", "message"),
    [
        (lambda s, b, h, q, k, t: s + t[h], (2,), r"t\[h\] reads outside t: index 0 is between 0"),
        (lambda s, b, h, q, k, t: s + t[b, q], (2, 9), "index 1 is between 0 and 9"),
        (lambda s, b, h, q, k, t: s + t[q - k], (10,), "index 0 is between -9 and 9"),
    ],
)
def test_indices_outside(function: Any, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(IndexError, match=message) as caught:
        check(function, shape)
    line = function.__code__.co_firstlineno
    assert f"{__file__}, line {line}:\n" in str(caught.value)
    assert "give a larger one, or clamp the index" in str(caught.value)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda b, h, q, k, document: document[q, k] > 0, "has 1 dims and is indexed by 2"),
        (lambda b, h, q, k, document: document[q * 0.5] > 0, "is indexed by a float"),
        (lambda b, h, q, k, document: document[:] > 0, r"is indexed by slice\(None"),
        (lambda b, h, q, k, document: document[None] > 0, "is indexed by None"),
        (lambda b, h, q, k, document: document.sum() > 0, "can only be indexed"),
        (lambda b, h, q, k, document: q > document, "a TracedTensor is no operand"),
        (lambda b, h, q, k, document: document[q] + 1, "returns i32; it takes a truth value"),
    ],
)
def test_what_a_tensor_cannot_do(function: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        Variant("v", mask=function, params=[DOCUMENT])
    assert f"line {function.__code__.co_firstlineno}" in str(caught.value)


def test_declarations() -> None:
    with pytest.raises(ValueError, match="a tensor is called 'q_idx'"):
        Tensor("q_idx", "f32", 1)
    with pytest.raises(ValueError, match="kind of tensor 'x' is 'f64'"):
        Tensor("x", "f64", 1)
    with pytest.raises(ValueError, match="tensor 'x' has 0 dims; it takes 1 to 4"):
        Tensor("x", "f32", 0)
    with pytest.raises(ValueError, match="two different parameters are called 'x'"):
        Variant("v", params=[Tensor("x", "f32", 1), Scalar("x", "f32", 1)])


def test_values() -> None:
    variant = Variant("v", logits=relative, params=[BIAS])
    assert variant.arrays({"bias": TABLE}) == {"bias": TABLE}
    with pytest.raises(ValueError, match="variant 'v' reads tensor 'bias': give it"):
        variant.arrays()
    with pytest.raises(ValueError, match=r"has no tensor \['slopes'\]; it has: \['bias'\]"):
        variant.arrays({"bias": TABLE, "slopes": TABLE})
    with pytest.raises(TypeError, match="bias has dtype float64; it takes float32"):
        variant.arrays({"bias": TABLE.astype(np.float64)})
    with pytest.raises(TypeError, match="bias is a list; it takes a tensor of 2 dims"):
        variant.arrays({"bias": [[1.0]]})
    for wrong in (TABLE[0], TABLE[:0]):
        with pytest.raises(ValueError, match=r"bias has shape .*; it takes 2 dims, none empty"):
            variant.arrays({"bias": wrong})


def test_text_hooks_read_tensors() -> None:
    hook = Hook("bias", "score + bias(params, h, 0)", lambda s, b, h, q, k, bias: s + bias[h, 0])
    variant = Variant("v", logits=hook, params=[BIAS])
    assert hook.reads("bias") and variant.logits is not None
    assert variant.logits(1.0, 0, 1, 0, 0, bias=TABLE) == 5


def test_bits() -> None:
    """Eight to a byte, the lowest first; of a row with more bits than are in use the rest is read
    as well."""
    bits = Tensor("allowed", "bits", 2)
    kept = np.random.default_rng(3).random((5, 20)) < 0.5
    packed = np.packbits(kept, axis=1, bitorder="little")
    bits.check(packed)
    assert bits.elements(packed)[:, :20].tolist() == kept.tolist()
    assert index_shape(packed) == (5, 24) and index_shape(kept) == (5, 20)
    variant = Variant("bits", mask=lambda b, h, q, k, *, allowed: allowed[q, k], params=[bits])
    assert variant.mask is not None and variant.mask.cpp == "allowed(params, q_idx, kv_idx)"
    text = accessor(bits)
    assert "int64_t const bit = within(i1, params.allowed_size_1);" in text
    assert "(__ldg(row_address(params.allowed + at0) + (bit >> 3)) >> (bit & 7) & 1) != 0" in text
    with pytest.raises(TypeError, match="allowed has dtype bool; it takes uint8"):
        bits.check(kept)


def test_masks_are_packed_request_by_request() -> None:
    """Rows follow one another; each request begins at a byte (FlashInfer's segments)."""
    masks = [np.ones((2, 3)), np.array([[0, 1, 0, 0, 0, 0, 0, 0, 1]]), np.zeros((0, 7))]
    tensors = pack_masks(masks)
    assert tensors["mask_bits"].tolist() == [0b111111, 0b10, 0b1]
    assert tensors["mask_begin"].tolist() == [0, 1, 3]
    assert tensors["mask_query"].tolist() == [1, 8, 7]
    assert tensors["mask_keys"].tolist() == [3, 9, 7]
    mask = custom_mask().mask
    assert mask is not None
    arrays = {t.name: t.elements(tensors[t.name]) for t in custom_mask().tensors}
    assert mask(1, 0, 8, np.arange(9), **arrays).tolist() == masks[1][0].astype(bool).tolist()
    with pytest.raises(
        ValueError, match=r"masks\[1\] has shape \(4,\); it takes \(q_len, kv_len\)"
    ):
        pack_masks([masks[0], np.ones(4)])
