"""What one call launches, by the profiler; that it is repeatable; and that it never allocates."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.gpu.serving import EVERYTHING, assert_right, serving_attention, serving_batch

pytestmark = pytest.mark.gpu

REPEATS = 300


def kernels_of(call: Callable[[], object]) -> list[str]:
    """Names of the kernels that a call launches, in order."""
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        call()
        torch.cuda.synchronize()
    return [event.name for event in found.events() if event.device_type.name == "CUDA"]


def test_one_attention_kernel_and_one_merge_for_everything(
    device: torch.device, record: Callable[..., None]
) -> None:
    batch = serving_batch(EVERYTHING, device)
    wrapper = serving_attention(device)
    wrapper.plan(batch.qo_indptr, batch.kv_format)
    out = torch.empty_like(batch.q)
    lse = torch.empty(batch.q.shape[:2], dtype=torch.float32, device=device)
    names = kernels_of(lambda: wrapper.run(batch.q, *batch.kv, out=out, lse=lse))
    attention, *merge = (kernel.name for kernel in wrapper.kernels)
    record("G", "kernels for a batch of everything", kernels=names)
    assert len(merge) <= 1
    assert names in ([attention], [attention, *merge])
    err = assert_right(batch, out, lse)
    record("G", "batch of everything", err=err)


def test_split_decode_is_one_kernel(device: torch.device, record: Callable[..., None]) -> None:
    """The block that finishes a tile's last piece merges them, many pieces included."""
    for requests in ([(1, 40_000)], [(1, 5000), (1, 3), (1, 0), (1, 9000)], [(1, 2000)] * 90):
        batch = serving_batch(requests, device)
        wrapper = serving_attention(device).plan(batch.qo_indptr, batch.kv_format)
        assert wrapper.last_plan is not None and wrapper.last_plan.num_split_tiles > 0
        out = torch.empty_like(batch.q)
        lse = torch.empty(batch.q.shape[:2], dtype=torch.float32, device=device)
        run = functools.partial(wrapper.run, batch.q, *batch.kv, out=out, lse=lse)
        names = kernels_of(run)
        assert names == [kernel.name for kernel in wrapper.kernels] and len(names) == 1
        record("G", f"split decode of {len(requests)}", err=assert_right(batch, out, lse))


def test_unsplit_batch_is_one_kernel(device: torch.device) -> None:
    batch = serving_batch([(1, 16)] * 400, device)
    wrapper = serving_attention(device).plan(batch.qo_indptr, batch.kv_format)
    assert wrapper.last_plan is not None and wrapper.last_plan.num_split_tiles == 0
    out = torch.empty_like(batch.q)
    names = kernels_of(lambda: wrapper.run(batch.q, *batch.kv, out=out))
    assert names == [wrapper.kernels[0].name]
    assert_right(batch, out)


@pytest.mark.parametrize("requests", [[(1, 5000), (1, 3000), (1, 0)], EVERYTHING])
def test_many_runs_give_the_same_bits(
    requests: list[tuple[int, int]], device: torch.device
) -> None:
    batch = serving_batch(requests, device)
    wrapper = serving_attention(device).plan(batch.qo_indptr, batch.kv_format)
    assert wrapper.last_plan is not None and wrapper.last_plan.num_split_tiles > 0
    out, lse = wrapper.run(batch.q, *batch.kv, return_lse=True)
    different = torch.zeros((), dtype=torch.int64, device=device)
    again, again_lse = torch.empty_like(out), torch.empty_like(lse)
    for _ in range(REPEATS):
        again.fill_(torch.nan)
        wrapper.run(batch.q, *batch.kv, out=again, lse=again_lse)
        different += (again != out).sum() + (again_lse != lse).sum()
    assert int(different) == 0


def test_run_allocates_nothing(device: torch.device) -> None:
    batch = serving_batch(EVERYTHING, device)
    wrapper = serving_attention(device).plan(batch.qo_indptr, batch.kv_format)
    out = torch.empty_like(batch.q)
    wrapper.run(batch.q, *batch.kv, out=out)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    wrapper.run(batch.q, *batch.kv, out=out)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_torch_operator_runs_the_same(device: torch.device) -> None:
    batch = serving_batch(EVERYTHING, device)
    wrapper = serving_attention(device).plan(batch.qo_indptr, batch.kv_format)
    want, want_lse = wrapper.run(batch.q, *batch.kv, return_lse=True)
    out, lse = torch.full_like(want, torch.nan), torch.full_like(want_lse, torch.nan)
    handle = wrapper.handle  # the first use of a handle defines the operator
    torch.ops.cute_attn.run(handle, batch.q, *batch.kv, out, lse)
    assert torch.equal(out, want) and torch.equal(lse, want_lse)
