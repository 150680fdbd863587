"""Attention states, and requests that share keys."""

from __future__ import annotations

import math

import oracle
import pytest
import torch

import cute_attn.flashinfer as flashinfer
from tests.flashinfer.cases import Cache, check, indptr, int32, random, workspace


def states(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """Two states, and that of all keys."""
    q, k, v = random(0, 6, 4, 32), random(1, 30, 4, 32), random(2, 30, 4, 32)
    parts = [
        flashinfer.single_prefill_with_kv_cache(q, k[own], v[own], return_lse=True)
        for own in (slice(0, 11), slice(11, None), slice(0, None))
    ]
    return tuple(x for out, lse in parts for x in (out.to(dtype), lse))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_states_merge(dtype: torch.dtype) -> None:
    v_a, s_a, v_b, s_b, whole, log = states(dtype)
    limit = {"atol": 1e-5 if dtype == torch.float32 else 2e-3, "rtol": 1e-3}
    merged, lse = flashinfer.merge_state(v_a, s_a, v_b, s_b)
    torch.testing.assert_close(merged, whole, **limit)
    torch.testing.assert_close(lse, log, atol=1e-5, rtol=1e-5)
    stacked = flashinfer.merge_states(torch.stack([v_a, v_b], 1), torch.stack([s_a, s_b], 1))
    assert torch.equal(stacked[0], merged) and torch.equal(stacked[1], lse)
    v, s, mask = v_a.clone(), s_a.clone(), torch.tensor([True, False] * 3)
    flashinfer.merge_state_in_place(v, s, v_b, s_b, mask=mask)
    assert torch.equal(v[mask], merged[mask]) and torch.equal(s[mask], lse[mask])
    assert torch.equal(v[~mask], v_a[~mask]) and torch.equal(s[~mask], s_a[~mask])
    flashinfer.merge_state_in_place(v_a, s_a, v_b, s_b)
    assert torch.equal(v_a, merged) and torch.equal(s_a, lse)
    nothing = torch.full_like(s_b, -math.inf)
    assert torch.equal(flashinfer.merge_state(v_b, s_b, v_a, nothing)[0], v_b)
    with pytest.raises(ValueError, match=r"s_b has shape \(3, 4\); it takes \(6, 4\)"):
        flashinfer.merge_state(v_a, s_a, v_b, s_b[:3])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("graph", [False, True])
def test_cascade(causal: bool, graph: bool) -> None:
    """Three levels: all requests, groups of them, each by itself."""
    q_len, page_size = [2, 3, 1, 4], 4
    own = [5, 3, 8, 4]
    cache = Cache([8, 6, 9, *own], 2, 64, page_size)
    pages = torch.split(cache.indices, cache.indptr.diff().tolist())
    first = [indptr([len(p) for p in group]) for group in ([pages[0]], pages[1:3], pages[3:])]
    listed = [torch.cat(group) for group in ([pages[0]], pages[1:3], pages[3:])]
    last = [cache.last[:1], cache.last[1:3], cache.last[3:]]
    rows = [int32(0, 10), int32(0, 5, 10), indptr(q_len)]
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(3, workspace(), "NHD", graph)
    assert wrapper.is_cuda_graph_enabled is graph
    q = random(0, 10, 4, 64)
    for window in (-1, 9):
        wrapper.plan(
            rows, first, listed, last, 4, 2, 64, page_size, causal=causal, window_left=window,
            q_data_type=torch.float32,
        )  # fmt: skip
        got = wrapper.run(q, cache.whole)
        parts = []
        for i in range(4):
            parts.append([0, 1 + i // 2, 3 + i])
        keys = [torch.cat([cache.keys[j] for j in part]) for part in parts]
        values = [torch.cat([cache.values[j] for j in part]) for part in parts]
        names = {
            (False, -1): "full",
            (True, -1): "causal",
            (False, 9): "window",
            (True, 9): "causal_window",
        }
        mask = oracle.mask_of(names[causal, window], window)
        check(got, oracle.attend_batch(q, indptr(q_len), keys, values, mask=mask))
    with pytest.raises(ValueError, match=r"qo_indptr_arr\[1\] .* whole requests"):
        rows[1] = int32(0, 4, 10)
        wrapper.plan(rows, first, listed, last, 4, 2, 64, page_size, q_data_type=torch.float32)
    with pytest.raises(ValueError, match="paged_kv_last_page_len has 2 levels; it takes 3"):
        wrapper.plan(rows, first, listed, last[:2], 4, 2, 64, page_size)


def test_prefix_in_tensors_of_its_own() -> None:
    cache, shared = Cache([9, 3], 4, 64, 4, dtype=torch.float16), random(5, 2, 12, 4, 64).half()
    keys, values = (
        [torch.cat([shared[i], x]) for x in own] for i, own in enumerate((cache.keys, cache.values))
    )
    decode = flashinfer.BatchDecodeWithSharedPrefixPagedKVCacheWrapper(workspace())
    decode.begin_forward(*cache.index, 4, 4, 64, 4)
    q = random(0, 2, 4, 64).half()
    got = decode.forward(q, *shared, cache.whole)
    check(got, oracle.attend_batch(q, [0, 1, 2], keys, values), torch.float16, 2)
    prefill = flashinfer.BatchPrefillWithSharedPrefixPagedKVCacheWrapper(workspace())
    prefill.begin_forward(int32(0, 5, 8), *cache.index, 4, 4, 64, 4)
    q, causal = random(0, 8, 4, 64).half(), oracle.mask_of("causal")
    got = prefill.forward(q, *shared, cache.whole, causal=True, sm_scale=0.2)
    want = oracle.attend_batch(q, [0, 5, 8], keys, values, mask=causal, sm_scale=0.2)
    check(got, want, torch.float16, 2)
