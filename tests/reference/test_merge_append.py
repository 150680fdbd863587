"""Merging of states and appending to paged caches."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cute_attn.formats import BlockTableKV, PagedKV, RaggedKV, gather_kv, kv_views
from cute_attn.reference import Rope, append_paged_kv, merge_partials, merge_states


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(0, 1 << 31))
def test_states_of_disjoint_keys_merge_to_the_state_of_all(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((3, 2, 8))
    keys = [rng.standard_normal((n, 2, 8)) for n in sizes]
    values = [rng.standard_normal((n, 2, 8)) for n in sizes]
    states = [oracle.attend(q, k, v) for k, v in zip(keys, values, strict=True)]
    out, lse = merge_states(
        np.stack([s[0] for s in states], axis=1), np.stack([s[1] for s in states], axis=1)
    )
    expected = oracle.attend(q, np.concatenate(keys), np.concatenate(values))
    assert oracle.relative_error(out, expected[0]) < 1e-13
    assert oracle.lse_error(lse, expected[1]) < 1e-6
    assert lse.dtype == np.float32


def test_empty_states_weigh_nothing() -> None:
    rng = np.random.default_rng(0)
    out, lse = rng.standard_normal((1, 5, 4)), rng.standard_normal((1, 5))
    empty = np.zeros_like(out), np.full_like(lse, -np.inf)
    for order in ((0, 1), (1, 0)):
        states = [(out, lse), empty]
        merged = merge_partials(
            np.concatenate([states[i][0] for i in order]),
            np.concatenate([states[i][1] for i in order]),
        )
        assert np.array_equal(merged[0], out[0])
        assert np.array_equal(merged[1], lse[0])
    merged = merge_partials(np.concatenate([empty[0]] * 2), np.concatenate([empty[1]] * 2))
    assert (merged[0] == 0).all() and np.isneginf(merged[1]).all()


def test_large_scores_do_not_overflow() -> None:
    out = np.ones((2, 1, 1), np.float32)
    _, lse = merge_partials(out, np.array([[1000.0], [1000.0]], np.float32))
    assert lse == 1001


def test_merge_states_refuses_other_shapes() -> None:
    with pytest.raises(ValueError, match=r"lse \(2, 4\)"):
        merge_states(np.zeros((2, 3, 4, 8)), np.zeros((2, 4)))
    with pytest.raises(ValueError, match="no states"):
        merge_states(np.zeros((2, 0, 4, 8)), np.zeros((2, 0, 4)))


def rotated(x: np.ndarray, position: int, rope: Rope) -> np.ndarray:
    """One row, one pair at a time, as complex numbers."""
    dim = rope.rotary_dim or x.size
    out = x.copy()
    for i in range(dim // 2):
        a, b = (2 * i, 2 * i + 1) if rope.interleaved else (i, i + dim // 2)
        angle = position / rope.scale * rope.theta ** (-2 * i / dim)
        turned = complex(x[a], x[b]) * np.exp(1j * angle)
        out[a], out[b] = turned.real, turned.imag
    return out


@pytest.mark.parametrize(
    "rope",
    [Rope(), Rope(theta=500000.0, scale=4.0), Rope(interleaved=True), Rope(rotary_dim=8)],
)
def test_rope(rope: Rope) -> None:
    x = np.random.default_rng(0).standard_normal((4, 2, 16))
    positions = np.array([0, 1, 77, 5000])
    got = rope.rotate(x, positions)
    for token in range(4):
        for head in range(2):
            assert np.allclose(got[token, head], rotated(x[token, head], positions[token], rope))


def test_rope_refuses_an_odd_dimension() -> None:
    with pytest.raises(ValueError, match="rotary_dim is 7"):
        Rope(rotary_dim=7).rotate(np.zeros((1, 1, 8)), np.zeros(1))


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("table", ["csr", "padded"])
@pytest.mark.parametrize("rope", [None, Rope()])
def test_append(layout: str, table: str, rope: Rope | None) -> None:
    rng = np.random.default_rng(0)
    size, heads, dim = 4, 2, 8
    shape = (9, size, heads, dim) if layout == "NHD" else (9, heads, size, dim)
    cache = rng.standard_normal((2, *shape))
    before = cache.copy()
    if table == "csr":
        paged: Any = PagedKV([0, 2, 2, 5], [7, 3, 0, 8, 4], [3, 0, 1], size)
    else:
        paged = BlockTableKV([[7, 3, -1], [-1] * 3, [0, 8, 4]], [7, 0, 9], size)
    views = kv_views(paged, cache[0], cache[1], layout)
    old = [gather_kv(paged, views, i) for i in range(3)]
    k, v = (rng.standard_normal((8, heads, dim)) for _ in range(2))
    append_paged_kv(k, v, [0, 2, 2, 8], paged, views, rope=rope)
    for request, (begin, end) in enumerate(((0, 2), (2, 2), (2, 8))):
        keys, values = gather_kv(paged, views, request)
        kept = len(keys) - (end - begin)
        assert np.array_equal(keys[:kept], old[request][0][:kept])
        assert np.array_equal(values[:kept], old[request][1][:kept])
        assert np.array_equal(values[kept:], v[begin:end])
        expected = k[begin:end]
        if rope is not None:
            expected = rope.rotate(expected, np.arange(kept, len(keys)))
        assert np.array_equal(keys[kept:], expected)
    assert np.count_nonzero(cache != before) == 2 * 8 * heads * dim, "nothing else was written"


def test_append_to_a_tensor() -> None:
    cache = torch.zeros(3, 2, 4, 1, 8, dtype=torch.bfloat16)
    paged = PagedKV([0, 1], [2], [3], 4)
    k, v = (torch.randn(3, 1, 8, dtype=torch.bfloat16) for _ in range(2))
    append_paged_kv(k, v, [0, 3], paged, kv_views(paged, cache), rope=Rope())
    assert torch.equal(cache[2, 1, :3], v)
    assert torch.equal(cache[2, 0, 0], k[0]), "position 0 is not rotated"
    assert not torch.equal(cache[2, 0, 1], k[1])


def test_append_refuses_what_does_not_fit() -> None:
    paged = PagedKV([0, 1], [2], [3], 4)
    views = kv_views(paged, np.zeros((3, 2, 4, 1, 8)))
    new = np.zeros((4, 1, 8))
    with pytest.raises(ValueError, match=r"gives request 0 4 new tokens but .* 3 keys"):
        append_paged_kv(new, new, [0, 4], paged, views)
    with pytest.raises(ValueError, match=r"k_new has shape \(4, 1, 8\); it takes \(3, 1, 8\)"):
        append_paged_kv(new, new, [0, 3], paged, views)
    with pytest.raises(ValueError, match="describes 2 requests but the format has 1"):
        append_paged_kv(new, new, [0, 1, 4], paged, views)
    with pytest.raises(ValueError, match="only a paged cache"):
        ragged = RaggedKV([0, 4])
        append_paged_kv(new, new, [0, 4], ragged, kv_views(ragged, new, new))
