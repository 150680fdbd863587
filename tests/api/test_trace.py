"""`BatchAttention.trace()` without a GPU: launches, the reading of time stamps, the file.

What the kernels themselves write: tests/gpu/test_trace.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cute_attn import BatchAttention, PagedKV, Problem, RaggedKV, causal, choose
from cute_attn.abi.trace import BlockStamps, ItemStamps, num_words
from cute_attn.api import tracing
from cute_attn.api.trace import trace_of
from cute_attn.scheduler.simulator import LaunchItems

BF16 = torch.bfloat16
EPOCH = 1_764_000_000_000_000_000  # what a global timer says
SPEC = choose(Problem("sm_90a", "bf16", 128, 128, 4, causal(), 16), rows=4)
PAGES = PagedKV([0, 3500, 3510, 7010], [0] * 7010, [16] * 3, 16)  # of test_side_by_side
ROWS = [0, 1, 101, 102]


def item(begin: int, *times: int, request: int = 0, slot: int = -1) -> ItemStamps:
    return ItemStamps(request, 1, 4, 0, slot, 2, 5, begin, *times)


def block(sm: int, begin: int, end: int, zero: int, count: int = 1, **changes: int) -> BlockStamps:
    """At `begin` to `end` ns on an SM whose clock said `zero` at 0 ns and ticks twice a ns."""
    stamps = BlockStamps(
        sm, EPOCH + begin, zero + 2 * begin, EPOCH + end, zero + 2 * end, count, 0, 0
    )
    return stamps._replace(**changes)


def test_clocks_of_sms_are_brought_together() -> None:
    zeros = {0: 10**15, 5: 77}
    times = (
        [zeros[0] + 2 * ns for ns in (1500, 2500, 6000, 7000)],
        [zeros[5] + 2 * ns for ns in (1700, 2000, 8000)],
    )
    measured = [
        (block(0, 1000, 9000, zeros[0]), [item(*times[0], 0)]),
        (block(5, 1200, 9400, zeros[5]), [item(*times[1], 0, 0)]),
    ]
    trace = trace_of([(SPEC, measured)])
    (launch,) = trace.launches
    first, second = launch.blocks
    assert (first.begin_us, second.begin_us) == pytest.approx((0.0, 0.2), abs=1e-6)
    assert trace.us == pytest.approx(8.4, abs=1e-6) and launch.imbalance == pytest.approx(8.2 / 8.1)
    (one,), (two,) = first.items, second.items
    assert one[7:11] == pytest.approx((0.5, 1.5, 5.0, 6.0), abs=1e-6) and one.merged_us is None
    assert two.written_us is None and two.end_us == two.products_us == pytest.approx(7.0, abs=1e-6)
    assert (one.key_begin, one.key_end) == (2 * SPEC.tile.kv, 5 * SPEC.tile.kv)
    assert (one.row_end, one.kv_head) == (4, 1)
    assert launch.waiting == pytest.approx((1.0 + 0.3) / 16.2)
    assert "2 thread blocks, 2 items" in str(trace)


def test_a_timer_of_coarse_steps_is_evened_out() -> None:
    """Blocks of one SM share its clock: with steps of 1000 ns their mean is closer than one."""
    marks = []
    for number in range(64):
        begin, end = 137 * number, 137 * number + 20_000
        exact = block(3, begin, end, 500, 0)
        steps = {name: getattr(exact, name) // 1000 * 1000 for name in ("begin_ns", "end_ns")}
        marks.append((exact._replace(**steps), []))
    (launch,) = trace_of([(SPEC, marks)]).launches
    for number, found in enumerate(launch.blocks):
        assert found.begin_us == pytest.approx(0.137 * number, abs=0.2)
        assert found.end_us - found.begin_us == pytest.approx(20.0, rel=0.01)


def test_what_had_no_room_and_merges(tmp_path: Path) -> None:
    stamps = block(0, 0, 4000, 0, count=3, merge_begin=8100, merge_end=9000)
    measured = [(stamps, [item(100, 200, 6000, 7900, 0, slot=4), item(5900, 7950, 8000, 8050, 0)])]
    trace = trace_of([(SPEC, measured)])
    (found,) = trace.launches[0].blocks
    assert trace.dropped == found.dropped == 1 and "no room" in str(trace)
    assert found.merge_us == pytest.approx((4.05, 4.5)) and found.end_us == pytest.approx(4.5)
    file = json.loads(trace.save(tmp_path / "step.json").read_text())
    complete = [e for e in file["traceEvents"] if e["ph"] == "X"]
    assert [e["name"] for e in complete].count("wait for keys") == 2
    # The second item begins before the first one is written: on a thread of its own.
    threads = {e["tid"] for e in complete if e["name"] == "request 0"}
    assert len(threads) == 2 and sum(e["name"] == "merges" for e in complete) == 1


def test_no_times_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="has not run"):
        trace_of([(SPEC, [(BlockStamps(*[0] * 8), [])])])


def measured_by(batch: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Stands in for the kernels: what they would have written of the batch's plans, an item every
    microsecond; (words, blocks) of each buffer that was read."""
    plans = list(batch.plans)
    read: list[tuple[int, int]] = []

    def stand_in(words: Any, num_blocks: int) -> Any:
        items = LaunchItems.of_plan(plans[len(read)])
        read.append((len(words), num_blocks))
        table, found, place = items.reads.table.tolist(), [], 0
        for number, size in enumerate(items.sizes.tolist()):
            of_block = [
                item(1 + 2000 * i, 2000 * i + 500, 2000 * i + 1500, 2000 * i + 1900, 0)
                for i in range(size)
            ]
            assert len(table) >= place + size
            place += size
            found.append((block(number % 132, 0, 1000 * size + 100, 0, size), of_block))
        return found

    monkeypatch.setattr(tracing.layout, "read", stand_in)
    return read


def run_arguments(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(rows, 8, 128, dtype=BF16), torch.zeros(1, 2, 16, 2, 128, dtype=BF16)


def test_both_launches_keep_time(fake_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = fake_gpu.batch(8, 2, 128)
    batch.plan(ROWS, PAGES)
    q, cache = run_arguments(102)
    batch.run(q, cache)
    usual = [(launch.name, launch.overlap) for launch in fake_gpu.launches]
    read = measured_by(batch, monkeypatch)
    fake_gpu.launches.clear()
    trace = batch.trace(q, cache)
    names = [launch.name for launch in fake_gpu.launches]
    assert names[:2] == [name for name, _ in usual]
    traced = fake_gpu.launches[2:]
    assert len(traced) == 2 * (tracing._WARM_RUNS + 1)
    for launch, other in zip(traced[-2:], fake_gpu.launches[:2], strict=True):
        assert "_trace_" in launch.name and launch.name.replace("_trace", "") == other.name
        assert launch.grid == other.grid
        assert launch.params["trace_words"] % 8 == 0 < launch.params["trace_items"]
        for name in ("q", "plan", "partial_out", "arrivals", "num_pages", "scale_log2"):
            assert launch.params.get(name) == other.params.get(name)
    assert [launch.overlap for launch in traced[-2:]] == [False, True]
    assert traced[-1].params["beside"] == 1
    most = [int(LaunchItems.of_plan(plan).sizes.max()) for plan in batch.plans]
    assert [launch.params["trace_items"] for launch in traced[-2:]] == most
    assert read == [
        (num_words(launch.grid, items), launch.grid)
        for launch, items in zip(traced[-2:], most, strict=True)
    ]
    assert [launch.spec.schedule for launch in trace.launches] == ["hopper_tile", "ampere_decode"]
    assert len(list(trace.rows())) == batch.explain().num_items

    fake_gpu.launches.clear()
    batch.run(q, cache)
    assert [(launch.name, launch.overlap) for launch in fake_gpu.launches] == usual


def test_measured_and_predicted_in_one_file(
    fake_gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    batch = fake_gpu.batch(8, 2, 128)
    batch.plan([0, 1, 2], RaggedKV([0, 5000, 5300]))
    q = torch.zeros(2, 8, 128, dtype=BF16)
    k = torch.zeros(5300, 2, 128, dtype=BF16)
    measured_by(batch, monkeypatch)
    trace = batch.trace(q, k, k.clone(), max_items=100)
    assert fake_gpu.launches[-1].params["trace_items"] == 100
    path = trace.save(tmp_path / "step.json", predicted=batch.explain())
    names = [
        event["args"]["name"]
        for event in json.loads(path.read_text())["traceEvents"]
        if event["name"] == "process_name"
    ]
    assert names == ["ampere_decode, measured", "ampere_decode, predicted"]


def test_what_cannot_be_traced(fake_gpu: Any) -> None:
    q, cache = run_arguments(1)
    on_cpu = BatchAttention(8, 2, 128, device="cpu")
    with pytest.raises(RuntimeError, match=r"trace\(\) before plan"):
        on_cpu.trace(q, cache)
    on_cpu.plan([0, 1], PagedKV([0, 1], [0], [16], 16))
    with pytest.raises(RuntimeError, match=r"explain\(\).trace\(path\)"):
        on_cpu.trace(q, cache)
    batch = fake_gpu.batch(8, 2, 128)
    batch.plan([0, 1], PagedKV([0, 1], [0], [16], 16))
    with pytest.raises(ValueError, match="max_items is 0"):
        batch.trace(q, cache, max_items=0)
    with pytest.raises(RuntimeError, match="has not run"):  # a stand-in writes no times
        batch.trace(q, cache)
    fake_gpu.capturing = True
    with pytest.raises(RuntimeError, match="capture"):
        batch.trace(q, cache)
