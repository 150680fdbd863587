"""Batches of decodes over paged caches."""

from __future__ import annotations

from functools import partial
from typing import Any

import oracle
import pytest
import torch

import cute_attn.flashinfer as flashinfer
from tests.flashinfer.cases import Cache, check, int32, random, workspace

KV_LEN = [33, 0, 1, 7]
SIZES = (4, 2, 64)


def planned(cache: Cache, layout: str = "NHD", **options: Any) -> Any:
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace(), layout)
    options.setdefault("q_data_type", torch.float32)
    wrapper.plan(*cache.index, *SIZES, cache.page_size, **options)
    return wrapper


def expected(q: torch.Tensor, cache: Cache, q_len: int = 1, **options: Any) -> Any:
    rows = range(0, q.shape[0] + 1, q_len)
    return oracle.attend_batch(q, rows, cache.keys, cache.values, **options)


@pytest.mark.parametrize("page_size", [1, 5, 16])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("pair", [False, True])
def test_layouts(page_size: int, layout: str, pair: bool) -> None:
    cache, q = Cache(KV_LEN, 2, 64, page_size, layout=layout), random(0, 4, 4, 64)
    wrapper = planned(cache, layout)
    given = cache.pair if pair else cache.whole
    check(wrapper.run_return_lse(q, given), expected(q, cache))
    out, lse = torch.empty(4, 4, 64), torch.empty(4, 4)
    got = wrapper.run(q, given, out=out, lse=lse, return_lse=True)
    assert got[0] is out and got[1] is lse
    check((out, lse), expected(q, cache))
    lse.fill_(7)  # written also where nobody asks for it
    assert wrapper.run(q, given, out=out, lse=lse) is out
    check((out, lse), expected(q, cache))


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_pages_of_one_key_need_no_dimension(layout: str) -> None:
    cache, q = Cache(KV_LEN, 2, 64, 1, layout=layout), random(0, 4, 4, 64)
    wrapper = planned(cache, layout)
    flat = cache.whole.squeeze(2 if layout == "NHD" else 3)
    want = expected(q, cache)
    for given in (flat, [flat[:, 0], flat[:, 1]]):
        check(wrapper.run(q, given), want)


def test_options_and_scales() -> None:
    cache, q = Cache(KV_LEN, 2, 64, 4), random(0, 4, 4, 64)
    wrapper = planned(cache, window_left=5, sm_scale=0.2)
    window = oracle.mask_of("window", 5)
    check(
        wrapper.run(q, cache.whole, return_lse=True), expected(q, cache, mask=window, sm_scale=0.2)
    )
    scaled = wrapper.run(q, cache.whole, q_scale=2.0, k_scale=0.25, v_scale=3.0)
    out, _ = expected(q, cache, mask=window, sm_scale=0.1)
    check(scaled, (3 * out,))
    assert (wrapper._window_left, wrapper._sm_scale, wrapper._logits_soft_cap) == (5, 0.2, 0.0)
    with pytest.raises(ValueError, match="window_left is 6, but 5 was planned"):
        wrapper.run(q, cache.whole, window_left=6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_dtypes(dtype: torch.dtype) -> None:
    cache, q = Cache(KV_LEN, 2, 64, 4, dtype=dtype), random(0, 4, 4, 64, dtype=dtype)
    wrapper = planned(cache, q_data_type=str(dtype).removeprefix("torch."))
    check(wrapper.run(q, cache.whole, return_lse=True), expected(q, cache), dtype)
    wrapper = planned(cache, q_data_type=dtype, o_data_type=torch.float32)
    out = torch.empty(4, 4, 64)
    assert wrapper.run(q, cache.whole, out=out) is out
    assert oracle.relative_error(out, expected(q, cache)[0]) < 6e-3
    with pytest.raises(TypeError, match=r"out has dtype torch\.float64; planned"):
        wrapper.run(q, cache.whole, out=out.double())
    with pytest.raises(TypeError, match=r"q has dtype torch\.float64"):
        wrapper.run(q.double(), cache.whole)


def test_one_object_for_each_kernel() -> None:
    """Plans with other numbers take the object that there is; another kernel another one."""
    cache, q = Cache(KV_LEN, 2, 64, 4), random(0, 4, 4, 64)
    wrapper = planned(cache, logits_soft_cap=20.0)
    first = wrapper._plan_info
    for sm_scale, cap in ((0.3, 20.0), (0.3, 5.0)):
        options = {"sm_scale": sm_scale, "logits_soft_cap": cap}
        wrapper.plan(*cache.index, *SIZES, 4, q_data_type=torch.float32, **options)
        got = wrapper.run(q, cache.whole)
        assert wrapper._plan_info is first
        check(got, expected(q, cache, sm_scale=sm_scale, soft_cap=cap), bound=200)
    wrapper.plan(*cache.index, *SIZES, 4, q_data_type=torch.float32)
    assert wrapper._plan_info is not first
    check(wrapper.run(q, cache.whole), expected(q, cache))


def test_old_names() -> None:
    cache, q = Cache(KV_LEN, 2, 64, 4), random(0, 4, 4, 64)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace())
    wrapper.begin_forward(*cache.index, *SIZES, 4, "NONE", -1, None, torch.float32)
    got = wrapper.forward_return_lse(q, cache.whole, window_left=3, k_scale=0.5)
    check(got, expected(0.5 * q, cache, mask=oracle.mask_of("window", 3)))
    check(wrapper.forward(q, cache.whole), expected(q, cache))
    wrapper.end_forward()


def test_several_tokens_of_each_request() -> None:
    cache, q = Cache([33, 3, 9], 2, 64, 4), random(0, 9, 4, 64)
    wrapper = planned(cache, q_len_per_req=3)
    got = wrapper.run(q, cache.whole, return_lse=True, q_len_per_req=3)
    check(got, expected(q, cache, 3, mask=oracle.mask_of("causal")))
    with pytest.raises(ValueError, match="q_len_per_req is 1, but 3 was planned"):
        wrapper.run(q, cache.whole, q_len_per_req=1)
    with pytest.raises(ValueError, match="q has 6 rows; the plan has 9, with q_len_per_req = 3"):
        wrapper.run(q[:6], cache.whole)


def test_sinks_come_and_go() -> None:
    cache, q, sink = Cache(KV_LEN, 2, 64, 4), random(0, 4, 4, 64), random(1, 4)
    wrapper = planned(cache)
    plain, sinks = expected(q, cache), expected(q, cache, sinks=sink.numpy())
    for given in (None, sink, sink, None):
        got = wrapper.run(q, cache.whole, sinks=given, return_lse=True)
        check(got, plain if given is None else sinks)


def test_results_do_not_depend_on_the_batch() -> None:
    long, short = Cache([700], 2, 64, 16), random(0, 1, 4, 64)
    alone = planned(long, fixed_split_size=2).run(short, long.whole)
    both = Cache([700, 300, 5], 2, 64, 16)
    q = torch.cat([short, random(1, 2, 4, 64)])
    for options in ({"fixed_split_size": 8}, {"disable_split_kv": True}):
        assert torch.equal(planned(both, **options).run(q, both.whole)[:1], alone)


def test_graph_buffers() -> None:
    """plan() writes to the buffers, and what is read afterwards are those."""
    cache, other, q = Cache([9, 2], 2, 64, 4), Cache([20, 11], 2, 64, 4), random(0, 2, 4, 64)
    buffers = torch.zeros(3).int(), torch.zeros(16).int(), torch.zeros(2).int()
    wrapper = flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(workspace(), *buffers)
    assert wrapper.is_cuda_graph_enabled and not wrapper.use_tensor_cores
    for case in (cache, other):
        wrapper.plan(*case.index, *SIZES, 4, q_data_type=torch.float32)
        assert torch.equal(buffers[0], case.indptr) and torch.equal(buffers[2], case.last)
        assert torch.equal(buffers[1][: len(case.indices)], case.indices)
        check(wrapper.run(q, case.whole), expected(q, case))
    moved = other.whole.clone()
    moved[: len(other.indices)] = other.whole[other.indices.long()]
    buffers[1][: len(other.indices)] = torch.arange(len(other.indices))
    check(wrapper.run(q, moved), expected(q, other))
    fast = partial(flashinfer.fast_decode_plan, wrapper)
    override = cache.indptr.clone()
    buffers[1][: len(cache.indices)] = cache.indices
    tensors = cache.indptr, buffers[1][: len(cache.indices)], cache.last
    fast(*tensors, *SIZES, 4, data_type="float32", global_override_indptr_cpu=override)
    check(wrapper.run(q, cache.whole), expected(q, cache))
    with pytest.raises(ValueError, match="with use_cuda_graph every step has 2 requests"):
        wrapper.plan(int32(0, 1), int32(0), int32(1), *SIZES, 4, q_data_type=torch.float32)
    with pytest.raises(ValueError, match="indices has 17 elements; the buffer for them has 16"):
        index = int32(0, 9, 17), torch.arange(17).int(), int32(1, 1)
        wrapper.plan(*index, *SIZES, 4, q_data_type=torch.float32)


def test_fast_plan_of_single_keys() -> None:
    cache, q = Cache([9, 2], 2, 64, 1), random(0, 2, 4, 64)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace())
    flashinfer.fast_decode_plan(wrapper, *cache.index, *SIZES, 1, data_type=torch.float32)
    check(wrapper.run(q, cache.whole), expected(q, cache))


def test_workspace_sizes() -> None:
    cache = Cache(KV_LEN, 2, 64, 4)
    wrapper = planned(cache)
    sizes = wrapper.workspace_size(*cache.index, *SIZES, 4, "NONE", 5, q_data_type=torch.float32)
    assert all(size > 0 for size in sizes)
    wrapper.reset_workspace_buffer(*(torch.zeros(size, dtype=torch.uint8) for size in sizes))
    q = random(0, 4, 4, 64)
    check(wrapper.run(q, cache.whole), expected(q, cache))
    odd = torch.zeros(17, dtype=torch.uint8)[1:]
    with pytest.raises(ValueError, match="float_workspace_buffer must be 16-byte aligned"):
        wrapper.reset_workspace_buffer(odd, workspace())
    with pytest.raises(ValueError, match="int_workspace_buffer must be 16-byte aligned"):
        wrapper.reset_workspace_buffer(workspace(), odd)


def test_bad_input() -> None:
    cache, q = Cache([9, 2], 2, 64, 4), random(0, 2, 4, 64)
    new = flashinfer.BatchDecodeWithPagedKVCacheWrapper
    with pytest.raises(RuntimeError, match="run\\(\\) before plan\\(\\)"):
        new(workspace()).run(q, cache.whole)
    with pytest.raises(NotImplementedError, match="backend is 'cute-dsl'"):
        new(workspace(), backend="cute-dsl")
    with pytest.raises(NotImplementedError, match=r"jit_args name variant 'Mine'; .*docs/variants"):
        new(workspace(), jit_args=["uri", *[None] * 6, ["x"], [], [], [], "Mine", "struct Mine"])
    with pytest.raises(ValueError, match="paged_kv_indptr_buffer is a NoneType; with use_cuda"):
        new(workspace(), use_cuda_graph=True)
    with pytest.raises(
        ValueError, match="paged_kv_indptr_buffer has 2 elements; 2 requests take 3"
    ):
        new(workspace(), "NHD", True, False, int32(0, 1), int32(0), int32(1, 1))
    with pytest.raises(TypeError, match="float_workspace_buffer is a int"):
        new(1)
    plan = partial(planned, cache)
    with pytest.raises(NotImplementedError, match=r"kv_data_type is torch\.float8_e4m3fn"):
        plan(kv_data_type=torch.float8_e4m3fn)
    with pytest.raises(NotImplementedError, match="kv_data_type is float16 and q_data_type is"):
        plan(kv_data_type="float16")
    with pytest.raises(ValueError, match=r"q_data_type is 'half_precision'"):
        plan(q_data_type="half_precision")
    with pytest.raises(NotImplementedError, match="window_right is 2"):
        plan(window_right=2)
    with pytest.raises(ValueError, match="kv_last_page_len"):
        new(workspace()).plan(
            cache.indptr, cache.indices, int32(0, 9), *SIZES, 4, q_data_type="float32"
        )
    wrapper = plan()
    with pytest.raises(NotImplementedError, match="kv_cache_sf is of shape"):
        wrapper.run(q, cache.whole, kv_cache_sf=torch.ones(1))
    with pytest.raises(ValueError, match="q has 1 rows; the plan has 2"):
        wrapper.run(q[:1], cache.whole)
    with pytest.raises(TypeError, match="without jit_args it takes none"):
        wrapper.run(q, cache.whole, 1.0)
    with pytest.raises(NotImplementedError, match=r"paged_kv_cache is torch\.uint8"):
        wrapper.run(q, cache.whole.to(torch.uint8))
