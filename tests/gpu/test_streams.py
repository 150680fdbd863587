"""Plans and runs in the order of the streams, while the device lags far behind the host."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.serving import EVERYTHING, assert_right, serving_attention, serving_batch

pytestmark = pytest.mark.gpu

LAG = 200_000_000  # cycles, about 0.1 s


def test_plans_back_to_back_while_the_stream_is_busy(device: torch.device) -> None:
    """More plans than the ring of pinned buffers holds; each run must see its own plan."""
    batches = [
        serving_batch([(1, 100 * (i + 1)), (1, 3000 - 300 * i), (1, 7)], device, seed=i)
        for i in range(6)
    ]
    wrapper = serving_attention(device)
    wrapper.plan(batches[0].qo_indptr, batches[0].kv_format).run(batches[0].q, *batches[0].kv)
    torch.cuda.synchronize()
    torch.cuda._sleep(LAG)
    outs = []
    for batch in batches:
        wrapper.plan(batch.qo_indptr, batch.kv_format)
        outs.append(wrapper.run(batch.q, *batch.kv, return_lse=True))
    for batch, (out, lse) in zip(batches, outs, strict=True):
        assert_right(batch, out, lse)


def test_planning_does_not_wait_for_the_device(device: torch.device) -> None:
    batch = serving_batch([(1, 500)] * 4, device)
    wrapper = serving_attention(device)
    wrapper.plan(batch.qo_indptr, batch.kv_format).run(batch.q, *batch.kv)
    torch.cuda.synchronize()
    torch.cuda._sleep(LAG)
    behind = torch.cuda.Event()
    behind.record()
    out = wrapper.plan(batch.qo_indptr, batch.kv_format).run(batch.q, *batch.kv)
    assert not behind.query(), "plan() or run() waited for the device"
    assert_right(batch, out)


def test_planned_on_a_side_stream_and_run_on_the_main_one(device: torch.device) -> None:
    first = serving_batch(EVERYTHING, device, seed=1)
    second = serving_batch(EVERYTHING[::-1], device, seed=2)
    wrapper = serving_attention(device)
    wrapper.plan(first.qo_indptr, first.kv_format).run(first.q, *first.kv)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(LAG)
        wrapper.plan(second.qo_indptr, second.kv_format)
    # The run must wait for the copy of its plan, which is still queued on the side stream ...
    torch.cuda._sleep(LAG // 4)
    out, lse = wrapper.run(second.q, *second.kv, return_lse=True)
    torch.cuda._sleep(LAG // 4)
    late, late_lse = wrapper.run(second.q, *second.kv, return_lse=True)
    with torch.cuda.stream(side):  # ... and the next plan for the runs that read the last one.
        wrapper.plan(first.qo_indptr, first.kv_format)
        again = wrapper.run(first.q, *first.kv)
    torch.cuda.synchronize()
    assert_right(second, out, lse)
    assert_right(second, late, late_lse)
    assert_right(first, again)


def test_run_on_a_side_stream(device: torch.device) -> None:
    batch = serving_batch(EVERYTHING, device)
    wrapper = serving_attention(device)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        out, lse = wrapper.plan(batch.qo_indptr, batch.kv_format).run(
            batch.q, *batch.kv, return_lse=True
        )
    side.synchronize()
    assert_right(batch, out, lse)
