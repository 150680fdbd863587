"""Kernels that keep time: the results of the plain ones, every item of the plan, times in order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from cute_attn import BatchAttention, Trace
from cute_attn.api.tracing import trace_step
from cute_attn.cli import app
from cute_attn.runtime import device_info
from tests.gpu.batches import Batch
from tests.gpu.serving import EVERYTHING, serving_attention, serving_batch
from tests.gpu.test_device_planner import Tables

pytestmark = pytest.mark.gpu

MIXED = [*[(1, 12_000)] * 9, (700, 900), (130, 9000), (0, 17), (1, 0)]
DECODES = [(1, 9000), (1, 300), (1, 4000), (1, 65), (1, 1)]
STEP_US = 1.1  # the coarsest step of a global timer, and what fitting it leaves


def traced(wrapper: BatchAttention, batch: Batch, device: torch.device) -> Trace:
    """A trace, after it was seen that the traced kernels give the bits of the plain ones."""
    out, lse = wrapper.run(batch.q, *batch.kv, return_lse=True)
    again, again_lse = torch.full_like(out, torch.nan), torch.full_like(lse, torch.nan)

    def run() -> None:
        wrapper.run(batch.q, *batch.kv, out=again, lse=again_lse)

    trace = trace_step(wrapper._backend.launches, run, device)
    assert torch.equal(again, out) and torch.equal(again_lse, lse)
    after = wrapper.run(batch.q, *batch.kv)
    assert torch.equal(after, out)
    return trace


def check_times(trace: Trace) -> None:
    """Events of an item in order, items within their block, and where keys were, products."""
    for launch in trace.launches:
        for block in launch.blocks:
            assert block.begin_us + STEP_US >= 0 and block.begin_us <= block.end_us
            begins = [item.begin_us for item in block.items]
            assert begins == sorted(begins)
            for item in block.items:
                times = (item.begin_us, item.keys_us, item.products_us, item.written_us)
                known = [time for time in (*times, item.merged_us) if time is not None]
                assert known == sorted(known), item
                assert block.begin_us <= known[0] and known[-1] <= block.end_us + 1e-3
                assert item.written_us is not None
                if item.key_end > item.key_begin:
                    assert item.keys_us is not None and item.products_us is not None


def places(rows: Any, tile_kv: list[int]) -> list[tuple[int, ...]]:
    """What items are, keys in whole KV blocks."""
    return [
        (
            row["launch"], row["block"], row["request"], row["kv_head"], row["row_begin"],
            row["row_end"], row["slot"], -(-row["key_end"] // tile_kv[row["launch"]]),
        )
        for row in rows
    ]  # fmt: skip


@pytest.mark.parametrize("requests", [EVERYTHING, MIXED, DECODES], ids=["all", "mixed", "decode"])
@pytest.mark.parametrize("schedule", [None, "ampere_tile", "ampere_decode"])
@pytest.mark.parametrize("page_size", [16, 0, 3])
def test_every_item_is_there(
    page_size: int,
    schedule: str | None,
    requests: list[tuple[int, int]],
    device: torch.device,
    tmp_path: Path,
    record: Callable[..., None],
) -> None:
    batch = serving_batch(requests, device, page_size=page_size)
    wrapper = serving_attention(device, schedule=schedule)
    wrapper.plan(batch.qo_indptr, batch.kv_format)
    trace, explanation = traced(wrapper, batch, device), wrapper.explain()
    assert trace.dropped == 0
    tile_kv = [launch.spec.tile.kv for launch in trace.launches]
    assert places(trace.rows(), tile_kv) == places(explanation.rows(), tile_kv)
    check_times(trace)
    sms = device_info(device.index or 0).num_sms
    assert {block.sm for launch in trace.launches for block in launch.blocks} <= set(range(sms))

    graph = torch.cuda.CUDAGraph()  # launches of a few us would wait for the host
    with torch.cuda.graph(graph):
        for _ in range(20):
            wrapper.run(batch.q, *batch.kv)
    graph.replay()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    us = start.elapsed_time(end) * 1e3 / 20
    record(
        "G", f"trace, {schedule}, page {page_size}", us=us, traced_us=trace.us,
        predicted_us=explanation.predicted_us,
    )  # fmt: skip
    assert 0.2 * us < trace.us < 3 * us + 20
    path = trace.save(tmp_path / "step.json", predicted=explanation)
    events = json.loads(path.read_text())["traceEvents"]
    items = [event for event in events if event["name"].startswith("request ")]
    assert len(items) == 2 * explanation.num_items


def test_merges_are_seen(device: torch.device) -> None:
    batch = serving_batch([(1, 30_000)], device)
    wrapper = serving_attention(device).plan(batch.qo_indptr, batch.kv_format)
    (launch,) = traced(wrapper, batch, device).launches
    items = [item for block in launch.blocks for item in block.items]
    assert launch.spec.schedule == "ampere_decode" and all(item.slot >= 0 for item in items)
    assert sum(item.merged_us is not None for item in items) == 2, "once for each KV head"


def test_a_plan_of_the_device(device: torch.device) -> None:
    """The kernels say what their items are: the host need not know the plan."""
    batch = serving_batch(DECODES, device)
    wrapper = serving_attention(device, cuda_graph=True, max_requests=8)
    wrapper.plan(batch.qo_indptr, batch.kv_format)
    expected = {(row["request"], row["kv_head"]) for row in wrapper.explain().rows()}
    tables = Tables.new(len(DECODES), len(batch.kv_format.page_table), device)
    tables.fill(batch)
    wrapper.plan_on_device(tables.kv)
    trace = wrapper.trace(batch.q, *batch.kv)
    assert {(row["request"], row["kv_head"]) for row in trace.rows()} == expected
    check_times(trace)


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    options = ["--step", "azure-code-300", "--out", str(path), "--json"]
    result = CliRunner().invoke(app, ["trace", *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["us"] > 0 and 0.3 < facts["us"] / facts["predicted_us"] < 3
    assert json.loads(path.read_text())["traceEvents"]
