"""Vector hooks: tracing, NumPy, composition, and what they refuse; the built-in embeddings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from cute_attn.codegen.vector_hooks import vector_hooks
from cute_attn.variants import (
    Hook,
    LinearScaling,
    Llama3Scaling,
    Scalar,
    Tensor,
    TraceError,
    Variant,
    YarnScaling,
    causal,
    qk_norm,
    rope,
    soft_cap,
    streaming_llm,
)
from cute_attn.variants import functions as f

RANDOM = np.random.default_rng(0)
POSITIONS = np.array([0, 1, 77, 4096, 131071, 1000003])
DIM = 16


def rows(dim: int = DIM) -> np.ndarray:
    return RANDOM.standard_normal((POSITIONS.size, dim))


def through(variant: Variant, x: np.ndarray, role: str = "key", **given: Any) -> np.ndarray:
    """x (positions, dim), float64, through a hook."""
    tensors = {t.name: given.pop(t.name) for t in variant.tensors}
    values = variant.values(given)
    out = variant.vector_hooks[role](x, 0, 1, POSITIONS, **values, **tensors)
    assert out.shape == x.shape and out.dtype == x.dtype
    return np.asarray(out)


def turned(x: np.ndarray, frequency: np.ndarray, interleaved: bool = False) -> np.ndarray:
    """Complex numbers times e^(i position frequency)."""
    count = 2 * frequency.size
    a, b = (slice(0, count, 2), slice(1, count, 2)) if interleaved else (
        slice(0, count // 2), slice(count // 2, count))  # fmt: skip
    z = (x[:, a] + 1j * x[:, b]) * np.exp(1j * POSITIONS[:, None] * frequency)
    out = x.copy()
    out[:, a], out[:, b] = z.real, z.imag
    return out


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("rotary_dim", [None, 8, 2])
@pytest.mark.parametrize("role", ["query", "key"])
def test_rope_turns_pairs(layout: str, rotary_dim: int | None, role: str) -> None:
    count = rotary_dim or DIM
    frequency = 500000.0 ** (-np.arange(count // 2) * 2 / count)
    x = rows()
    got = through(rope(layout=layout, rotary_dim=rotary_dim), x, role, rope_theta=500000.0)
    np.testing.assert_allclose(got, turned(x, frequency, layout == "interleaved"), atol=1e-9)


def test_rope_by_positions_of_a_tensor() -> None:
    table = RANDOM.integers(0, 1 << 17, (2, POSITIONS.max() + 1))
    x, variant = rows(), rope(positions=True)
    got = through(variant, x, q_positions=table * 0, k_positions=table)
    z = x[:, : DIM // 2] + 1j * x[:, DIM // 2 :]
    z *= np.exp(1j * table[0, POSITIONS][:, None] * 10000.0 ** (-np.arange(DIM // 2) / (DIM / 2)))
    np.testing.assert_allclose(got, np.concatenate([z.real, z.imag], 1), atol=1e-9)


def test_float32_is_exact_in_the_angle() -> None:
    x = rows(64)
    got = through(rope(), x.astype(np.float32))
    expected = turned(x, 10000.0 ** (-np.arange(32) / 32))
    assert got.dtype == np.float32 and np.abs(got - expected).max() < 2e-6  # at position 10^6


def test_llama3_scaling_is_as_published() -> None:
    """The loop over wavelengths of the Llama models' reference code."""
    dim, theta, scaling = 128, 500000.0, Llama3Scaling(32.0, 1.0, 4.0, 8192)
    expected = []
    for i in range(dim // 2):
        frequency = theta ** (-2 * i / dim)
        wavelength = 2 * math.pi / frequency
        if wavelength < 8192 / 4.0:
            expected.append(frequency)
        elif wavelength > 8192 / 1.0:
            expected.append(frequency / 32.0)
        else:
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            expected.append((1 - smooth) * frequency / 32.0 + smooth * frequency)
    x = rows(dim)
    got = through(rope(theta=theta, scaling=scaling), x)
    np.testing.assert_allclose(got, turned(x, np.array(expected)), atol=1e-8)


@pytest.mark.parametrize("factor", [0.5, 8.0])
def test_linear_scaling_divides_positions(factor: float) -> None:
    x = rows()
    got = through(rope(scaling=LinearScaling(factor)), x)
    frequency = 10000.0 ** (-np.arange(DIM // 2) * 2 / DIM)
    np.testing.assert_allclose(got, turned(x, frequency / factor), atol=1e-9)


@pytest.mark.parametrize("factor", [4.0, 16.0])
@pytest.mark.parametrize("rotary_dim", [None, 64])
def test_yarn_is_as_published(factor: float, rotary_dim: int | None) -> None:
    """Equations 17, 19 to 23 of the paper, with its bounds rounded to whole pairs."""
    theta, length = 10000.0, 4096
    dim = rotary_dim or 128
    plain = theta ** (-np.arange(dim // 2) * 2 / dim)

    def pair(turns: float) -> float:
        return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(pair(32)), 0), min(math.ceil(pair(1)), dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    frequency = plain / factor * ramp + plain * (1 - ramp)
    x = rows(128)
    expected = turned(x, frequency)
    expected[:, :dim] *= 0.1 * math.log(factor) + 1
    got = through(rope(scaling=YarnScaling(factor), rotary_dim=rotary_dim), x)
    np.testing.assert_allclose(got, expected, atol=1e-8)
    plainly = YarnScaling(factor, attention_factor=1.0)
    got = through(rope(scaling=plainly, rotary_dim=rotary_dim), x)
    np.testing.assert_allclose(got, turned(x, frequency), atol=1e-8)


def test_qk_norm() -> None:
    x, weight = rows(), RANDOM.standard_normal(DIM)
    given = {"q_norm_weight": weight, "k_norm_weight": 2 * weight}
    got = through(qk_norm(), x, "query", norm_eps=0.25, **given)
    expected = x / np.sqrt((x**2).mean(1, keepdims=True) + 0.25) * weight
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    np.testing.assert_allclose(
        through(qk_norm(), x, "key", norm_eps=0.25, **given), 2 * expected, rtol=1e-12
    )


def test_and_composes_in_order() -> None:
    x, weight = rows(), RANDOM.standard_normal(DIM)
    given = {"q_norm_weight": weight, "k_norm_weight": weight}
    for first, then in ((qk_norm(), rope()), (rope(), qk_norm())):
        a = through(first, x, **(given if first.tensors else {}))
        expected = through(then, a, **(given if then.tensors else {}))
        both = causal() & first & then
        np.testing.assert_allclose(through(both, x, **given), expected, rtol=1e-9)
        assert both.mask == causal().mask and set(both.vector_hooks) == {"query", "key"}
    assert through(rope() & Variant("twice", key=lambda x, b, h, pos: 2 * x), x) == pytest.approx(
        2 * through(rope(), x)
    )


def test_rows_in_torch_s_words() -> None:
    def norm(x: Any, b: Any, h: Any, pos: Any) -> Any:
        return torch.sigmoid(x) * torch.rsqrt((x * x).mean() + 1.0) + x.sum() / x.size + x.index

    x = rows()
    got = through(Variant("v", value=norm), x, "value")
    expected = 1 / (1 + np.exp(-x)) / np.sqrt((x**2).mean(1, keepdims=True) + 1)
    np.testing.assert_allclose(got, expected + x.mean(1, keepdims=True) + np.arange(DIM), rtol=1e-9)


def test_pairs_of_any_kind() -> None:
    def butterfly(x: Any, b: Any, h: Any, pos: Any) -> Any:
        pairs = x.neighbours(4)
        return pairs.join(pairs.first + pairs.second, pairs.first - pairs.second * pairs.index)

    x = rows()
    got = through(Variant("v", key=butterfly), x)
    np.testing.assert_allclose(got[:, 0], x[:, 0] + x[:, 1])
    np.testing.assert_allclose(got[:, 3], x[:, 2] - x[:, 3])
    np.testing.assert_allclose(got[:, 4:], x[:, 4:])


def test_streaming_llm_is_its_mask_and_rope() -> None:
    variant = streaming_llm(sinks=2, window=3, layout="interleaved")
    assert variant.name == "streaming_rope_interleaved"
    assert variant.vector_hooks == rope(layout="interleaved").vector_hooks
    q, kv = np.arange(9)[:, None], np.arange(9)[None, :]
    assert variant.mask is not None
    visible = variant.mask(0, 0, q, kv, **variant.values())
    np.testing.assert_array_equal(visible, (kv <= q) & ((kv < 2) | (kv > q - 3)))


def test_bake_puts_numbers_into_rows() -> None:
    baked = rope().bake(rope_theta=100.0)
    assert baked.scalars == () and "log2(rope_theta)" not in baked.vector_hooks["key"].cpp
    x = rows()
    np.testing.assert_allclose(through(baked, x), through(rope(theta=100.0), x), atol=1e-9)


def test_shown_with_operations_per_element_and_pair() -> None:
    shown = (causal() & qk_norm() & rope()).show()
    assert "query(x, b, h, pos): norm of queries, then rope" in shown
    assert "cosine(pos, %" in shown
    assert "// first\n" in shown and "x_ * cosine - second * " in shown
    assert "operations per element: 4 FP32, 2 INT, 1 LOAD" in shown
    assert "operations per pair: 8 FP32, 2 MUFU, 4 INT" in shown
    assert "operations per row: 2 FP32, 1 MUFU" in shown


def test_variants_without_rows_are_as_before() -> None:
    assert "query" not in repr(causal()) and "key=" not in repr(causal() & soft_cap())
    assert "query=Hook(" in repr(rope())


def refused(message: str, function: Any, **rest: Any) -> str:
    with pytest.raises(TraceError, match=message) as caught:
        Variant("v", key=function, **rest)
    return str(caught.value)


def test_what_a_row_cannot_do() -> None:
    refused("an element meets one of a pair", lambda x, b, h, pos: x * x.halves().first)
    refused("values of pairs; join", lambda x, b, h, pos: x.halves().first)
    refused("3 elements are no pairs", lambda x, b, h, pos: x.halves(3).first)
    refused("returns a truth value; it takes a row", lambda x, b, h, pos: x > 0)
    refused("sum over the row is of another", lambda x, b, h, pos: x - (x - x.mean()).mean())
    refused("is called with", lambda x, b, h: x)

    def two_ways(x: Any, b: Any, h: Any, pos: Any) -> Any:
        a, c = x.halves(), x.neighbours()
        return a.join(a.first, a.second) + c.join(c.second, c.first)

    def two_angles(x: Any, b: Any, h: Any, pos: Any) -> Any:
        return x * f.turn(pos, 1.0)[0] * f.turn(pos, 2.0)[1]

    def float_position(x: Any, b: Any, h: Any, pos: Any) -> Any:
        return x * f.turn(pos / 2, 1.0)[0]

    def of_the_head(x: Any, b: Any, h: Any, pos: Any) -> Any:
        return x * f.turn(pos, 1.0 / (h + 1))[0]

    def position_of_x(x: Any, b: Any, h: Any, pos: Any) -> Any:
        return x * f.turn(pos + x.index, 1.0)[0]

    refused("position of turn.* is of the row or the pair", position_of_x)
    refused("as pairs in two ways", two_ways)
    refused("turns by two angles", two_angles)
    assert "f.turn(pos / 2, 1.0)" in refused("integer position, got f32", float_position)
    refused(r"frequency of turn.* depends on the pair", of_the_head)
    refused(
        "takes parameter 'index'; vector hooks have",
        lambda x, b, h, pos, *, index: x * index,
        params=[Scalar("index", "f32", 1.0)],
    )


def test_positions_of_pairs() -> None:
    """Sections of a row may have their own; a position of the row stays one of the row."""

    def sections(x: Any, b: Any, h: Any, pos: Any, *, places: Any) -> Any:
        pairs = x.halves()
        own = places[f.where(pairs.index < 3, 0, 1), pos]
        cosine, sine = f.turn(own, 1.0 / (1 + pairs.index))
        return pairs.join(
            pairs.first * cosine - pairs.second * sine, pairs.second * cosine + pairs.first * sine
        )

    variant = Variant("sections", key=sections, params=[Tensor("places", "i32", 2)])
    x, frequency = rows(), 1 / (1.0 + np.arange(8))
    places = np.zeros((2, POSITIONS.max() + 1), np.int32)
    places[0, POSITIONS], places[1, POSITIONS] = POSITIONS, POSITIONS // 3
    z = x[:, :8] + 1j * x[:, 8:]
    position = np.where(np.arange(8) < 3, POSITIONS[:, None], POSITIONS[:, None] // 3)
    z *= np.exp(1j * position * frequency)
    expected = np.concatenate([z.real, z.imag], 1)
    np.testing.assert_allclose(through(variant, x, places=places), expected, atol=1e-8)
    text = vector_hooks(variant, 64, 64).text
    assert "static constexpr bool kPairPositions = true;" in text
    assert "int pair_position_of(Params const& params, VectorPlace at, int pair)" in text

    def shifted(x: Any, b: Any, h: Any, pos: Any) -> Any:
        pairs = x.halves()
        cosine, sine = f.turn(pos + f.where(pairs.index < 3, 0, 5), 0.5)
        return pairs.join(pairs.first * cosine, pairs.second * sine)

    assert "kFollows = false" in vector_hooks(Variant("shifted", key=shifted), 64, 64).text
    assert "pair_position_of" not in vector_hooks(rope(positions=True), 64, 64).text


def test_combinations_that_are_too_much() -> None:
    with pytest.raises(ValueError, match=r"both transform the query: .* pairs in two ways"):
        rope() & rope(layout="interleaved")
    with pytest.raises(ValueError, match=r"both transform the query: .* another sum"):
        qk_norm() & qk_norm()


def test_bad_arguments() -> None:
    for rotary_dim in (3, 0, -2):
        with pytest.raises(ValueError, match=f"rotary_dim is {rotary_dim}; it takes an even"):
            rope(rotary_dim=rotary_dim)
    with pytest.raises(ValueError, match="layout is 'neox'; it takes one of half, interleaved"):
        rope(layout="neox")
    with pytest.raises(TypeError, match="scaling is a float; it takes LinearScaling, Llama"):
        rope(scaling=2.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"factor is 0\.5; it takes a finite number, at least 1"):
        YarnScaling(0.5)
    with pytest.raises(ValueError, match="factor is 0; it takes a positive finite number"):
        LinearScaling(0)
    with pytest.raises(ValueError, match="0 < low_freq_factor < high_freq_factor"):
        Llama3Scaling(low_freq_factor=4.0)
    with pytest.raises(ValueError, match="0 < beta_slow < beta_fast"):
        YarnScaling(2.0, beta_fast=0.5)
    with pytest.raises(ValueError, match="original_max_position is 0"):
        YarnScaling(2.0, original_max_position=0)
    with pytest.raises(ValueError, match="rope_theta is 0; it must be above 0"):
        rope().values({"rope_theta": 0})
    with pytest.raises(ValueError, match=r"is C\+\+ text; it takes a function"):
        Variant("v", key=Hook("x", "x * 2"))
    with pytest.raises(ValueError, match="was traced as mask"):
        Variant("v", key=causal().mask)
    with pytest.raises(TypeError, match=r"takes a function of \(x, b, h, pos\)$"):
        Variant("v", key="x")  # type: ignore[arg-type]


def test_head_dims_must_have_the_pairs() -> None:
    rope(rotary_dim=64).check_head_dims(64, 32)
    with pytest.raises(ValueError, match=r"rotary_dim is 64 .*head_dim, which is 32"):
        rope(rotary_dim=64).check_head_dims(32, 64)
    with pytest.raises(ValueError, match="even number"):
        rope().check_head_dims(33, 64)


def test_indices_within_rows() -> None:
    scaled = Variant(
        "scaled",
        value=lambda x, b, h, pos, *, scale: x * scale[h, x.index],
        params=[Tensor("scale", "f32", 2)],
    )
    leaves = {
        "b": (0.0, 0.0), "h": (0.0, 7.0), "q_idx": (0.0, 9.0), "kv_idx": (0.0, 9.0),
        "kv_head": (0.0, 1.0), "head_dim_qk": (128.0, 128.0), "head_dim_vo": (64.0, 64.0),
    }  # fmt: skip
    scaled.check_indices({"scale": (2, 64)}, leaves, {})
    with pytest.raises(IndexError, match=r"index 0 is between 0 and 1,.* shape \(1, 64\)"):
        scaled.check_indices({"scale": (1, 64)}, leaves, {})
    with pytest.raises(IndexError, match=r"index 1 is between 0 and 63,.* shape \(2, 63\)"):
        scaled.check_indices({"scale": (2, 63)}, leaves, {})
