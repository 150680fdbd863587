"""Dense attention, single requests, merging of states and cache append, on CPU tensors."""

from __future__ import annotations

import itertools

import numpy as np
import oracle
import pytest
import torch

from cute_attn import (
    BlockTableKV,
    DeviceKV,
    PagedKV,
    RoPE,
    append_paged_kv,
    attention,
    merge_states,
    single_decode,
    single_prefill,
)
from cute_attn.formats import KVFormat


def random(seed: int, *size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("variant", ["full", "causal"])
def test_dense_batch(variant: str) -> None:
    q, k, v = random(0, 3, 7, 6, 32), random(1, 3, 20, 2, 32), random(2, 3, 20, 2, 32)
    out, lse = attention(q, k, v, variant=variant, return_lse=True)
    assert torch.equal(attention(q, k, v, variant=variant), out)
    for i in range(3):
        expected = oracle.attend(q[i], k[i], v[i], mask=oracle.mask_of(variant))
        assert oracle.relative_error(out[i], expected[0]) < 1e-6
        assert oracle.lse_error(lse[i], expected[1]) < 1e-5


def test_dense_batch_with_heads_before_tokens_in_memory() -> None:
    q, k = random(0, 2, 4, 9, 16).transpose(1, 2), random(1, 2, 4, 12, 16).transpose(1, 2)
    assert torch.equal(
        attention(q, k, k), attention(q.contiguous(), k.contiguous(), k.contiguous())
    )


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_single_requests(layout: str) -> None:
    q, k, v = random(0, 5, 4, 16), random(1, 30, 2, 16), random(2, 30, 2, 16)
    expected, expected_lse = oracle.attend(q, k, v, mask=oracle.mask_of("causal"), sm_scale=0.3)
    if layout == "HND":
        k, v = (x.transpose(0, 1).contiguous() for x in (k, v))
    out = single_prefill(q, k, v, kv_layout=layout, sm_scale=0.3)
    assert oracle.relative_error(out, expected) < 1e-6
    out, lse = single_decode(q[-1], k, v, kv_layout=layout, sm_scale=0.3, return_lse=True)
    assert oracle.relative_error(out, expected[-1]) < 1e-6
    assert oracle.lse_error(lse, expected_lse[-1]) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_states_of_pieces_merge_to_the_whole(dtype: torch.dtype) -> None:
    q, k, v = random(0, 4, 3, 16), random(1, 40, 3, 16), random(2, 40, 3, 16)
    cuts = [0, 7, 7, 30, 40]  # the second piece is empty
    pieces = [oracle.attend(q, k[a:b], v[a:b]) for a, b in itertools.pairwise(cuts)]
    states = torch.from_numpy(np.stack([out for out, _ in pieces])).to(dtype)
    lses = torch.from_numpy(np.stack([lse for _, lse in pieces])).float()
    out, lse = merge_states(states, lses)
    expected, expected_lse = oracle.attend(q, k, v)
    error = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    assert out.dtype == dtype and oracle.relative_error(out, expected) < error
    assert oracle.lse_error(lse, expected_lse) < 1e-5


def test_empty_states_merge_to_an_empty_state() -> None:
    out, lse = merge_states(torch.zeros(3, 2, 1, 8), torch.full((3, 2, 1), -torch.inf))
    assert (out == 0).all() and torch.isneginf(lse).all()


def rotate(key: torch.Tensor, positions: torch.Tensor, rope: RoPE) -> torch.Tensor:
    """float64 rotation, pair by pair."""
    out, dim = key.double().clone(), key.shape[-1]
    for pair in range(dim // 2):
        angle = positions.double() / rope.scale * rope.theta ** (-2 * pair / dim)
        cosine, sine = angle.cos()[:, None], angle.sin()[:, None]
        a, b = (pair, pair + dim // 2) if rope.style == "half_split" else (2 * pair, 2 * pair + 1)
        out[..., a] = key[..., a].double() * cosine - key[..., b].double() * sine
        out[..., b] = key[..., a].double() * sine + key[..., b].double() * cosine
    return out


@pytest.mark.parametrize("rope", [None, RoPE(), RoPE("interleaved", theta=5e5, scale=4.0)])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("tables", ["lists", "block_tables", "tensors"])
def test_append(rope: RoPE | None, layout: str, tables: str) -> None:
    page_size, heads, dim = 3, 2, 16
    lists = [0, 2, 5], [4, 1, 0, 5, 2], [2, 3]
    kv_format: KVFormat = PagedKV(*lists, page_size)
    if tables == "block_tables":
        kv_format = BlockTableKV([[4, 1, -1], [0, 5, 2]], [5, 9], page_size)
    elif tables == "tensors":
        tensors = (torch.tensor(x, dtype=torch.int32) for x in lists)
        kv_format = DeviceKV.from_paged(*tensors, page_size)
    shape = (page_size, heads, dim) if layout == "NHD" else (heads, page_size, dim)
    cache = torch.zeros(6, 2, *shape, dtype=torch.float16)
    key, value = random(0, 5, heads, dim).half(), random(1, 5, heads, dim).half()
    requests = torch.tensor([1, 0, -1, 0, 1], dtype=torch.int32)
    positions = torch.tensor([8, 0, 0, 4, 3], dtype=torch.int32)
    append_paged_kv(
        key, value, requests, positions, cache, None, kv_format, kv_layout=layout, rope=rope
    )
    expected = torch.zeros_like(cache)
    rotated = key if rope is None else rotate(key, positions, rope).half()
    pages = {(1, 8): (2, 2), (0, 0): (4, 0), (0, 4): (1, 1), (1, 3): (5, 0)}
    for i, place in enumerate(zip(requests.tolist(), positions.tolist(), strict=True)):
        if place[0] < 0:
            continue
        page, row = pages[place]
        for which, rows in enumerate((rotated, value)):
            target = expected[page, which]
            (target if layout == "NHD" else target.transpose(0, 1))[row] = rows[i]
    torch.testing.assert_close(cache, expected, atol=1e-3, rtol=1e-3)
    untouched = expected == 0
    assert (cache[untouched] == 0).all()


def test_append_with_other_strides_for_v() -> None:
    k_cache, wide = torch.zeros(2, 4, 1, 8), torch.zeros(2, 4, 3, 16)
    row = torch.arange(8, dtype=torch.float32).reshape(1, 1, 8) + 1
    one = torch.ones(1, dtype=torch.int32)
    append_paged_kv(
        row, -row, 0 * one, 2 * one, k_cache, wide[:, :, 1:2, 8:], PagedKV([0, 1], [1], [3], 4)
    )
    assert torch.equal(k_cache[1, 2, 0], row[0, 0]) and k_cache.count_nonzero() == 8
    assert torch.equal(wide[1, 2, 1, 8:], -row[0, 0]) and wide.count_nonzero() == 8
