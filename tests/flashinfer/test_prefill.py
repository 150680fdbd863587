"""Prefill and append over paged and ragged keys."""

from __future__ import annotations

from typing import Any

import oracle
import pytest
import torch

import cute_attn.flashinfer as flashinfer
from tests.flashinfer.cases import Cache, check, indptr, int32, random, workspace

Q_LEN, KV_LEN = [5, 0, 3, 1], [20, 4, 3, 9]
ROWS = sum(Q_LEN)
SIZES = (4, 2, 64)


def paged(cache: Cache, wrapper: Any = None, layout: str = "NHD", **options: Any) -> Any:
    wrapper = wrapper or flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(), layout)
    options.setdefault("q_data_type", torch.float32)
    wrapper.plan(indptr(Q_LEN), *cache.index, *SIZES, cache.page_size, **options)
    return wrapper


def expected(q: torch.Tensor, cache: Cache, **options: Any) -> Any:
    return oracle.attend_batch(q, indptr(Q_LEN), cache.keys, cache.values, **options)


@pytest.mark.parametrize("page_size", [1, 5, 16])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("causal", [False, True])
def test_paged(page_size: int, layout: str, causal: bool) -> None:
    cache, q = Cache(KV_LEN, 2, 64, page_size, layout=layout), random(0, ROWS, 4, 64)
    wrapper = paged(cache, layout=layout, causal=causal)
    mask = oracle.mask_of("causal") if causal else None
    check(wrapper.run(q, cache.pair, return_lse=True), expected(q, cache, mask=mask))
    out, lse = torch.empty(ROWS, 4, 64), torch.empty(ROWS, 4)
    assert wrapper.run(q, cache.whole, out=out, lse=lse) is out
    check((out, lse), expected(q, cache, mask=mask))


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_ragged(layout: str, dtype: torch.dtype) -> None:
    q, k = random(0, ROWS, 4, 96, dtype=dtype), random(1, sum(KV_LEN), 2, 96, dtype=dtype)
    v = random(2, sum(KV_LEN), 2, 64, dtype=dtype)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace(), layout)
    wrapper.plan(
        indptr(Q_LEN), indptr(KV_LEN), 4, 2, 96, 64, causal=True, window_left=4, sm_scale=0.15,
        q_data_type=dtype,
    )  # fmt: skip
    given = (k, v) if layout == "NHD" else (k.transpose(0, 1), v.transpose(0, 1))
    got = wrapper.run_return_lse(q, *given, k_scale=2.0, v_scale=0.5)
    keys, values = k.split(KV_LEN), (0.5 * v).split(KV_LEN)
    mask = oracle.mask_of("causal_window", 4)
    want = oracle.attend_batch(q, indptr(Q_LEN), keys, values, mask=mask, sm_scale=0.3)
    check(got, want, dtype)
    with pytest.raises(NotImplementedError, match=r"o_scale is 2\.0"):
        wrapper.run(q, *given, o_scale=2.0)


def test_masks() -> None:
    cache, q = Cache(KV_LEN, 2, 64, 4), random(0, ROWS, 4, 64)
    sizes = [a * b for a, b in zip(Q_LEN, KV_LEN, strict=True)]
    seen = torch.rand(sum(sizes), generator=torch.Generator().manual_seed(1)) > 0.4
    each = [
        part.reshape(a, b).numpy()
        for part, a, b in zip(seen.split(sizes), Q_LEN, KV_LEN, strict=True)
    ]
    parts = [
        oracle.attend(
            rows,
            cache.keys[i],
            cache.values[i],
            mask=lambda qi, ki, i=i: each[i][qi - KV_LEN[i] + Q_LEN[i], ki],
        )
        for i, rows in enumerate(q.split(Q_LEN))
    ]
    want = tuple(torch.cat([torch.from_numpy(p[j]) for p in parts]).numpy() for j in range(2))
    got = paged(cache, custom_mask=seen, causal=True).run(q, cache.whole, return_lse=True)
    check(got, want)
    bits, _ = flashinfer.segment_packbits(seen, indptr(sizes), "little")
    again = paged(cache, packed_custom_mask=bits).run(q, cache.whole, return_lse=True)
    assert torch.equal(again[0], got[0])
    ragged = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace())
    ragged.plan(indptr(Q_LEN), indptr(KV_LEN), *SIZES, custom_mask=seen, q_data_type=torch.float32)
    flat = torch.cat(cache.keys), torch.cat(cache.values)
    check(ragged.run(q, *flat, return_lse=True), want)
    with pytest.raises(
        ValueError, match=f"custom_mask has 3 elements; the requests have {sum(sizes)}"
    ):
        paged(cache, custom_mask=seen[:3])


def test_items_of_a_prompt() -> None:
    """Multi-item scoring: items see the prompt and themselves."""
    prefix, positions = 6, [0, 1, 2, 0, 1, 2, 3]
    cache, q = Cache([13], 2, 64, 4), random(0, 9, 4, 64)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace())
    wrapper.plan(
        int32(0, 9), *cache.index, *SIZES, 4, causal=True, q_data_type=torch.float32,
        prefix_len_ptr=torch.tensor([prefix], dtype=torch.uint32),
        token_pos_in_items_ptr=torch.tensor(positions, dtype=torch.uint16),
        token_pos_in_items_len=len(positions),
        max_item_len_ptr=torch.tensor([3], dtype=torch.uint16),
    )  # fmt: skip
    item = [-1] * prefix + [0, 0, 0, 1, 1, 1, 1]
    first = {0: prefix, 1: prefix + 3}  # the delimiters, which no other token sees

    def visible(query: int, key: int) -> bool:
        own = item[key] == item[query] and item[query] >= 0 and key > first[item[query]]
        return key <= query and (key < prefix or own)

    table = torch.tensor([[visible(i, j) for j in range(13)] for i in range(13)]).numpy()
    want = oracle.attend(q, cache.keys[0], cache.values[0], mask=lambda i, j: table[i, j])
    check(wrapper.run(q, cache.whole, return_lse=True), want)
    with pytest.raises(TypeError, match="token_pos_in_items_ptr is a NoneType"):
        wrapper.plan(int32(0, 9), *cache.index, *SIZES, 4, prefix_len_ptr=int32(6))


def test_old_names_plan_again_where_options_differ() -> None:
    cache, q = Cache(KV_LEN, 2, 64, 4), random(0, ROWS, 4, 64)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace())
    wrapper.begin_forward(indptr(Q_LEN), *cache.index, *SIZES, 4, q_data_type=torch.float32)
    causal = oracle.mask_of("causal")
    check(wrapper.forward(q, cache.whole, causal=True), expected(q, cache, mask=causal))
    check(wrapper.forward_return_lse(q, cache.whole), expected(q, cache))
    wrapper.end_forward()


def test_sinks_by_position_and_by_name() -> None:
    cache, q, sink = Cache(KV_LEN, 2, 64, 4), random(0, ROWS, 4, 64), random(1, 4)
    mask = oracle.mask_of("causal_window", 4)
    want = expected(q, cache, mask=mask, sinks=sink.numpy(), sm_scale=0.2)
    options = {"causal": True, "window_left": 4}
    named = paged(cache, sm_scale=0.2, **options)
    check(named.run(q, cache.whole, sinks=sink, return_lse=True), want)
    made = flashinfer.BatchAttentionWithAttentionSinkWrapper(workspace(), window_left=4)
    check(paged(cache, made, **options).run(q, cache.whole, sink, 0.2, return_lse=True), want)
    jit_args = [
        "uri", torch.float32, torch.float32, torch.float32, torch.int32, 64, 64, ["sink"],
        ["float"], ["sm_scale"], ["double"], "AttentionSink", "struct AttentionSink",
    ]  # fmt: skip
    ragged = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace(), jit_args=jit_args)
    flat = torch.cat(cache.keys), torch.cat(cache.values)
    rows = indptr(Q_LEN), indptr(KV_LEN)
    ragged.plan(*rows, *SIZES, q_data_type=torch.float32, **options)
    check(ragged.run(q, *flat, sink, 0.2, return_lse=True), want)
    with pytest.raises(TypeError, match="it takes sink, sm_scale"):
        ragged.run(q, *flat, sink)


def test_graph_buffers_and_masks() -> None:
    cache, q = Cache(KV_LEN, 2, 64, 4), random(0, ROWS, 4, 64)
    pairs = sum(a * b for a, b in zip(Q_LEN, KV_LEN, strict=True))
    buffers = [torch.zeros(n).int() for n in (5, 5, 32, 4)]
    bits, starts = torch.zeros(64, dtype=torch.uint8), torch.zeros(5).int()
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
        workspace(), "NHD", True, *buffers, bits, starts
    )
    for seed in (1, 2):
        seen = torch.rand(pairs, generator=torch.Generator().manual_seed(seed)) > 0.4
        paged(cache, wrapper, custom_mask=seen)
        assert torch.equal(buffers[0], indptr(Q_LEN)) and torch.equal(buffers[3], cache.last)
        fresh = paged(cache, custom_mask=seen).run(q, cache.whole)
        assert torch.equal(wrapper.run(q, cache.whole), fresh)
    with pytest.raises(ValueError, match="qo_indptr_buf has 4 elements; 4 requests take 5"):
        flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            workspace(), "NHD", True, buffers[0][:4], *buffers[1:]
        )


def test_workspace_size_takes_the_arguments_of_plan() -> None:
    cache = Cache(KV_LEN, 2, 64, 4)
    wrapper = paged(cache)
    for options in ({}, {"fixed_split_size": 4}):
        sizes = wrapper.workspace_size(
            indptr(Q_LEN), *cache.index, *SIZES, 4, None, None, None, True, **options
        )
        assert all(size > 0 for size in sizes)


def test_any_mixture() -> None:
    """`BatchAttention`, which is told lengths and always returns the log-sum-exp."""
    cache, q = Cache(KV_LEN, 2, 64, 4), random(0, ROWS, 4, 64)
    batch = flashinfer.BatchAttention(device="cpu")
    arguments = (indptr(Q_LEN), *cache.index[:2], int32(*KV_LEN), 4, 2, 64, 64, 4)
    dtypes = {"q_data_type": torch.float32, "kv_data_type": torch.float32}
    batch.plan(*arguments, causal=True, **dtypes)
    causal = oracle.mask_of("causal")
    check(batch.run(q, cache.whole), expected(q, cache, mask=causal))
    got = batch.run(q, cache.whole, k_scale=0.5, v_scale=2.0)
    out, lse = expected(0.5 * q, cache, mask=causal)
    check(got, (2 * out, lse))
    batch.plan(*arguments, logits_soft_cap=5.0, **dtypes)
    check(
        batch.run(q, cache.whole, logits_soft_cap=5.0)[0],
        expected(q, cache, soft_cap=5.0),
        bound=200,
    )
    with pytest.raises(ValueError, match=r"logits_soft_cap is 6\.0, but 5\.0 was planned"):
        batch.run(q, cache.whole, logits_soft_cap=6.0)
    with pytest.raises(NotImplementedError, match=r"use_profiler is True.*trace"):
        batch.plan(*arguments, use_profiler=True)


def test_prefill_beside_decodes() -> None:
    cache, q = Cache([20, 9], 2, 64, 4), random(0, 2, 4, 64)
    rows, k, v = random(1, 7, 4, 64), random(2, 30, 2, 64), random(3, 30, 2, 64)
    pod = flashinfer.PODWithPagedKVCacheWrapper(workspace())
    pod.plan(*cache.index, *SIZES, 4, q_data_type=torch.float32)
    prefill, decodes = pod.run(rows, k, v, q, cache.whole, causal_p=True, return_lse_d=True)
    check(prefill, oracle.attend(rows, k, v, mask=oracle.mask_of("causal")))
    check(decodes, oracle.attend_batch(q, [0, 1, 2], cache.keys, cache.values))
    batches = flashinfer.BatchPODWithPagedKVCacheWrapper(workspace())
    p_rows = indptr([4, 3])
    batches.plan(
        p_rows, *cache.index, int32(0, 1, 2), *cache.index, *SIZES, 4, q_data_type=torch.float32
    )
    both = batches.run(rows, cache.whole, q, cache.whole, causal_p=True)
    causal = oracle.mask_of("causal")
    check(both[0], oracle.attend_batch(rows, p_rows, cache.keys, cache.values, mask=causal))
    assert torch.equal(both[1], decodes[0])
