"""What an explanation says of random plans, against lengths, loops and the simulator."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import plan_cases as cases
import pytest
from hypothesis import given, settings

from cute_attn.scheduler import (
    H200,
    CostModel,
    Explanation,
    Geometry,
    Launch,
    RequestBatch,
    Timing,
    explain,
    plan_batch,
    plan_fixed_pieces,
    plan_items,
    simulate,
    simulate_plans,
)
from cute_attn.scheduler.explain import ExplainedItem

DECODE = Geometry(16, 64, group=4, num_kv_heads=8, window_right=0)
PREFILL = Geometry(128, 128, group=4, num_kv_heads=8, window_right=0)


def items_of(explanation: Explanation) -> list[ExplainedItem]:
    return [item for x in explanation.launches for block in x.blocks for item in block.items]


def side_by_side() -> tuple[Explanation, list[Launch]]:
    """Requests 0, 2, 3 and 5 decode on 40 SMs of three blocks, 1 and 4 prefill on 92."""
    whole = RequestBatch.from_lengths([1, 900, 1, 1, 300, 1], [9000, 2000, 30_000, 5, 300, 0])
    small = whole.q_len == 1
    cost = CostModel.for_kernel(schedule="ampere_decode", blocks_per_sm=3)
    prefill = plan_batch(
        whole.select(~small), PREFILL, 92, cost=CostModel.for_kernel(schedule="hopper_tile")
    )
    decode = plan_batch(whole.select(small), DECODE, 120, cost=cost)
    launches = [
        Launch(prefill, "big tiles", Timing.for_kernel(schedule="hopper_tile", loader="paged")),
        Launch(decode, "small tiles", Timing.for_kernel(blocks_per_sm=3)),
    ]
    return explain(*launches), launches


@given(cases.lengths | cases.decode_lengths, cases.geometries, cases.num_blocks, cases.min_pieces)
@settings(max_examples=30)
def test_every_visible_key_is_listed_once(
    pairs: list[tuple[int, int]], geometry: Geometry, num_blocks: int, min_piece: int | None
) -> None:
    requests = cases.make_batch(pairs)
    plan = plan_batch(requests, geometry, num_blocks, min_piece=min_piece)
    (launch,) = plan.explain().launches
    assert [block.number for block in launch.blocks] == list(range(num_blocks))
    items = [item for block in launch.blocks for item in block.items]
    seen = 0
    for request, (q_len, kv_len) in enumerate(pairs):
        own = [item for item in items if item.request == request]
        seen += len(own)
        shape = (geometry.num_kv_heads, q_len * geometry.group, kv_len)
        count, rows = np.zeros(shape, np.int8), np.zeros(shape[:2], np.int32)
        for item in own:
            assert 0 <= item.key_begin <= item.key_end <= kv_len
            at = item.kv_head, slice(item.row_begin, item.row_end)
            count[(*at, slice(item.key_begin, item.key_end))] += 1
            rows[at] += item.slot < 0
        for split in launch.splits:
            if split.request == request:
                rows[split.kv_head, split.row_begin : split.row_end] += 1
        token = kv_len - q_len + np.arange(q_len * geometry.group)[:, None] // geometry.group
        key = np.arange(kv_len)
        visible = (key >= token - geometry.window_left) & (key <= token + geometry.window_right)
        assert count.max(initial=0) <= 1
        assert (count[:, visible] == 1).all()
        assert (rows == 1).all(), "a row is written by one item, or by one merge"
    assert seen == len(items) == launch.num_items


@given(
    cases.lengths | cases.decode_lengths,
    cases.geometries,
    cases.num_blocks,
    cases.costs,
    cases.min_pieces,
)
@settings(max_examples=60)
def test_times_are_those_of_the_simulator(
    pairs: list[tuple[int, int]],
    geometry: Geometry,
    num_blocks: int,
    cost: CostModel,
    min_piece: int | None,
) -> None:
    plan = plan_batch(cases.make_batch(pairs), geometry, num_blocks, cost=cost, min_piece=min_piece)
    explanation = plan.explain()
    (launch,) = explanation.launches
    (report,) = simulate_plans([plan], [Timing.of(cost)])
    for block, end_us in zip(launch.blocks, report.busy_us.tolist(), strict=True):
        now = 0.0
        for item in block.items:
            assert item.start_us == pytest.approx(now) and item.start_us < item.end_us
            now = item.end_us
        assert block.end_us == end_us == pytest.approx(now)
    assert explanation.predicted_us == pytest.approx(report.predicted_us)
    assert explanation.imbalance == pytest.approx(report.imbalance)


def test_work_without_bytes_takes_as_long_as_it_costs() -> None:
    """Where nobody waits for memory, the simulator and the plan's cost model say the same."""
    requests = RequestBatch.from_lengths([700, 300, 128], [700, 2000, 128])
    cost = CostModel(tile_ns=2000, row_key_ps=1000, merge_ns=0, merge_row_ps=0)
    plan = plan_batch(requests, PREFILL, 7, cost=cost)
    (launch,) = plan.explain().launches
    ends = [block.end_us for block in launch.blocks]
    assert ends == pytest.approx(plan.block_costs / 1000, rel=1e-3)
    assert launch.imbalance == pytest.approx(plan.imbalance, rel=1e-3)


@given(cases.lengths, cases.geometries, cases.num_blocks)
@settings(max_examples=30)
def test_bytes_are_a_direct_count(
    pairs: list[tuple[int, int]], geometry: Geometry, num_blocks: int
) -> None:
    """Loaded: per tile the keys of every block that one of its rows sees. Needed: their union."""
    requests, cost = cases.make_batch(pairs), CostModel(key_bytes=192)
    explanation = plan_batch(requests, geometry, num_blocks, cost=cost).explain()
    loaded = needed = 0
    for request, (_, kv_len) in enumerate(pairs):
        blocks = cases.needed_blocks(requests, geometry, request)
        sizes = np.minimum(np.arange(1, blocks.shape[1] + 1) * geometry.tile_kv, kv_len)
        sizes = np.diff(sizes, prepend=0)
        for row in range(0, len(blocks), geometry.tile_q):
            loaded += int(sizes @ blocks[row : row + geometry.tile_q].any(axis=0))
        needed += int(sizes @ blocks.any(axis=0))
    (launch,) = explanation.launches
    key_bytes = geometry.num_kv_heads * 192
    assert explanation.kv_bytes == launch.kv_bytes == loaded * key_bytes
    assert launch.distinct_kv_bytes == needed * key_bytes
    for item in items_of(explanation):
        assert item.kv_bytes == 192 * (item.key_end - item.key_begin)


def test_splits_name_their_pieces() -> None:
    requests = RequestBatch.from_lengths([1, 1, 1], [40_000, 900, 30_000])
    cost = CostModel(merge_ns=700, merge_row_ps=2000)
    plan = plan_batch(requests, DECODE, 132, cost=cost)
    (launch,) = plan.explain().launches
    pieces = defaultdict(list)
    for block in launch.blocks:
        for item in block.items:
            if item.slot >= 0:
                where = item.request, item.kv_head, item.row_begin, item.row_end
                pieces[where].append((item.key_begin, item.slot, block.number))
    assert len(launch.splits) == len(pieces) == plan.num_split_tiles > 8
    for split in launch.splits:
        own = sorted(pieces[split.request, split.kv_head, split.row_begin, split.row_end])
        assert split.blocks == tuple(block for *_, block in own)
        first = split.first_slot
        assert [slot for _, slot, _ in own] == list(range(first, first + len(own)))
        # Four packed rows of 2 ns for each piece.
        assert split.merge_us == pytest.approx(0.7 + len(own) * 4 * 0.002)
    assert 0 < launch.merge_us <= sum(split.merge_us for split in launch.splits)


def test_launches_side_by_side_end_when_the_simulator_says() -> None:
    explanation, launches = side_by_side()
    assert [launch.num_sms for launch in explanation.launches] == [92, 40]
    prefill, decode = explanation.launches
    assert {item.request for block in prefill.blocks for item in block.items} == {1, 4}
    assert {item.request for block in decode.blocks for item in block.items} == {0, 2, 3, 5}
    plans = [launch.plan for launch in launches]
    timings = [launch.known_timing for launch in launches]
    reports = simulate_plans(plans, timings)
    for made, report in zip(explanation.launches, reports, strict=True):
        assert made.busiest_us == report.busy_us.max()
        assert [block.end_us for block in made.blocks] == report.busy_us.tolist()
    # The second launch starts when the blocks of the first have.
    begins = [min(i.start_us for b in made.blocks for i in b.items) for made in (prefill, decode)]
    starts = [timing.start_us for timing in timings]
    assert begins == pytest.approx([starts[0], starts[0] + starts[1]])
    # 40 of 132 SMs read more than 40 / 132 of what the device can.
    assert decode.predicted_us < 0.75 * simulate_plans(plans[1:], [
        Timing.of(plans[1].cost, replace(H200, read_gbps=H200.read_gbps * 40 / 132), 3)
    ])[0].predicted_us  # fmt: skip
    assert explanation.predicted_us == max(prefill.predicted_us, decode.predicted_us)
    mean = (sum(b.end_us for b in prefill.blocks) + sum(b.end_us for b in decode.blocks) / 3) / 132
    assert explanation.imbalance == pytest.approx(max(prefill.busiest_us, decode.busiest_us) / mean)
    rows = list(explanation.rows())
    assert len(rows) == explanation.num_items
    assert {row["launch"] for row in rows if row["request"] in (1, 4)} == {0}


def test_plans_alone_are_simulated_as_batches() -> None:
    requests = RequestBatch.from_lengths([1, 300, 1], [9000, 700, 20])
    plan = plan_batch(requests, PREFILL, 132)
    (one,) = simulate_plans([plan], [Timing.of(plan.cost)])
    other = simulate(plan_items(plan), requests, PREFILL)
    assert one.busy_us == pytest.approx(other.busy_us)
    assert one.predicted_us == pytest.approx(other.predicted_us)
    assert one.hbm_bytes == other.hbm_bytes


def test_a_plan_knows_what_was_planned() -> None:
    whole = RequestBatch([3, 9, 0], [2, 5, 3], [7, 0, 4], [90, 400, 0], [88, 390, 3], [0, 6, 2])
    part = whole.select(np.array([True, True, False]))
    plan = plan_batch(part, PREFILL, 5)
    assert plan.geometry == PREFILL
    order = [1, 0]  # the longer one first
    assert plan.requests.ids is not None and plan.requests.ids.tolist() == order
    assert plan.requests.table.tolist() == whole.table[:, order].tolist()


def test_few_items_are_all_listed() -> None:
    plan = plan_batch(RequestBatch.from_lengths([1, 1], [70_000, 500]), DECODE, 16)
    text = str(plan.explain(name="a kernel"))
    (launch,) = plan.explain().launches
    assert text.startswith("a kernel: 16 thread blocks on 16 SMs")
    assert max(map(len, text.splitlines())) <= 100
    for block in launch.blocks:
        for item in block.items:
            result = "output" if item.slot < 0 else f"slot {item.slot}"
            keys = f"{item.key_begin}:{item.key_end}"
            words = f"{block.number} {item.start_us:.1f} {item.end_us:.1f} {item.request}"
            pattern = rf"{words} {item.kv_head} 0:4 {keys} .* {result}"
            assert re.search(pattern.replace(" ", r" +") + "$", text, re.M), pattern
    for number in (
        f"{launch.imbalance:.3f}",
        f"{launch.predicted_us:.1f} us, {launch.merge_us:.1f} us of it",
        f"pieces of {plan.num_split_tiles} split tiles",
        f"{8 * 70_500 * 512 / 1e6:.2f} MB loaded",
    ):
        assert number in text


def test_many_items_are_summed_up() -> None:
    rng = np.random.default_rng(0)
    requests = RequestBatch.from_lengths(np.full(64, 2048), rng.integers(2048, 9000, 64))
    plan = plan_batch(requests, PREFILL, 132)
    explanation = plan.explain()
    text = str(explanation)
    lines = text.splitlines()
    assert explanation.num_items > 10_000 and len(lines) < 40
    assert max(map(len, lines)) <= 100
    ends = np.array([block.end_us for block in explanation.launches[0].blocks])
    order = np.argsort(-ends, kind="stable")
    for block in (*order[:5], *order[-5:]):
        assert re.search(rf"^ +{block} +{ends[block]:.1f} ", text, re.M)
    bars = re.findall(r"^ +[\d.]+ to +[\d.]+ us +(\d+)", text, re.M)
    assert sum(map(int, bars)) == 132
    assert len(explanation.text(max_items=100_000).splitlines()) > explanation.num_items


def test_text_of_two_launches() -> None:
    text = str(side_by_side()[0])
    assert "2 launches side by side" in text
    assert "big tiles: 92 thread blocks on 92 SMs" in text
    assert "small tiles: 120 thread blocks on 40 SMs (3 each)" in text


@pytest.mark.parametrize("pairs", [[], [(0, 5)], [(1, 0)]])
def test_nothing_to_do(pairs: list[tuple[int, int]]) -> None:
    plan = plan_batch(cases.make_batch(pairs), DECODE, 4)
    explanation = explain(Launch(plan), Launch(plan))
    assert explanation.imbalance >= 1 and explanation.kv_bytes == 0
    assert "4 thread blocks" in str(explanation)
    assert ("4 blocks have nothing to do" in str(explanation)) == (pairs != [(1, 0)])
    explanation.figure()


def test_no_launch() -> None:
    with pytest.raises(ValueError, match="at least one launch"):
        explain()


@pytest.mark.parametrize(("name", "begin"), [("a.png", b"\x89PNG\r\n"), ("a.svg", b"<?xml")])
def test_plot_writes_a_picture(name: str, begin: bytes, tmp_path: Path) -> None:
    explanation, _ = side_by_side()
    path = explanation.plot(tmp_path / name)
    content = path.read_bytes()
    assert content.startswith(begin) and len(content) > 10_000
    assert explanation.plot(str(path)).read_bytes() == content


def test_every_item_is_drawn() -> None:
    explanation, _ = side_by_side()
    figure = explanation.figure()
    (axes,) = figure.axes
    bars = [c for c in axes.collections if len(c.get_paths()) > 1]
    drawn = [path.get_extents() for c in bars for path in c.get_paths()]
    prefill, decode = explanation.launches
    expected = [
        (item.start_us, item.end_us, first + block.place / launch.blocks_per_sm)
        for launch, first in ((prefill, 0), (decode, 92))
        for block in launch.blocks
        for item in block.items
    ]
    assert [(box.x0, box.x1, box.y0) for box in drawn] == [pytest.approx(x) for x in expected]
    assert "us" in axes.get_xlabel() and axes.get_ylabel() == "SM"
    assert "big tiles beside small tiles" in axes.get_title()


def test_blocks_that_follow_others_are_drawn_behind_them() -> None:
    """Batch-invariant plans have more blocks than run at the same time."""
    requests = RequestBatch.from_lengths(np.full(9, 128), np.full(9, 2048))
    plan = plan_fixed_pieces(requests, PREFILL, 132, in_kernel=False)
    explanation = plan.explain(timing=Timing.for_kernel(schedule="hopper_tile"))
    (launch,) = explanation.launches
    assert len(launch.blocks) == 1152 and launch.num_sms == len(launch.ends_us) == 132
    text = str(explanation)
    assert "1,152 thread blocks on 132 SMs, 1,020 of them when others end" in text
    (axes,) = explanation.figure().axes
    bars = [c for c in axes.collections if len(c.get_paths()) > 1]
    boxes = [path.get_extents() for c in bars for path in c.get_paths()]
    assert len(boxes) == explanation.num_items
    rows = defaultdict(list)
    for box in boxes:
        rows[round(box.y0)].append((box.x0, box.x1))
    assert sorted(rows) == list(range(132))
    for spans in rows.values():
        spans.sort()
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans)), "none overlap"
    last = max(end for spans in rows.values() for _, end in spans)
    assert last == pytest.approx(launch.busiest_us) and launch.imbalance < 1.2
    assert launch.busiest_us > 4 * max(i.end_us - i.start_us for i in items_of(explanation))


def test_launches_in_turn() -> None:
    """As batch-invariant steps of both kinds where nothing is gained side by side."""
    whole = RequestBatch.from_lengths([1, 300, 1], [9000, 2000, 300])
    small = whole.q_len == 1
    prefill = plan_fixed_pieces(whole.select(~small), PREFILL, 132, in_kernel=False)
    decode = plan_fixed_pieces(whole.select(small), DECODE, 396, in_kernel=True)
    launches = [
        Launch(prefill, "prefill", Timing.for_kernel(schedule="hopper_tile")),
        Launch(decode, "decode", Timing.for_kernel(blocks_per_sm=3)),
    ]
    explanation = explain(*launches, in_turn=True)
    first, second = explanation.launches
    alone = [explain(launch).launches[0] for launch in launches]
    assert first == alone[0] and first.begin_us == 0
    assert second.begin_us == first.predicted_us
    assert explanation.predicted_us == pytest.approx(sum(x.predicted_us for x in alone))
    begins = [item.start_us for block in second.blocks for item in block.items]
    own = [item.start_us for block in alone[1].blocks for item in block.items]
    assert begins == pytest.approx([first.predicted_us + start for start in own])
    assert second.imbalance == pytest.approx(alone[1].imbalance)
    busiest, mean = (
        sum(getattr(launch, name) for launch in alone) for name in ("busiest_us", "mean_us")
    )
    assert explanation.imbalance == pytest.approx(busiest / mean)
    assert "2 launches one after the other" in str(explanation)
    (axes,) = explanation.figure().axes
    assert axes.get_ylim() == (132, 0), "both have all SMs"
    assert "prefill then decode" in axes.get_title()


def test_plot_names_what_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    explanation, _ = side_by_side()
    with pytest.raises(ValueError, match=r"path is .*a\.xyz.*\.png.*\.svg"):
        explanation.plot(tmp_path / "a.xyz")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match="pip install matplotlib"):
        explanation.figure()


def test_an_explanation_cannot_be_changed() -> None:
    explanation, _ = side_by_side()
    with pytest.raises(dataclasses.FrozenInstanceError):
        explanation.launches = ()  # type: ignore[misc]  # what is tested
