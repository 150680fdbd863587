"""The simulator against closed forms and against measured times."""

from __future__ import annotations

import numpy as np
import pytest

from cute_attn.abi import Item
from cute_attn.scheduler import (
    H200,
    CostModel,
    Geometry,
    Plan,
    Report,
    RequestBatch,
    Timing,
    plan_batch,
    plan_fixed_pieces,
    plan_items,
    plan_min_heap,
    simulate,
    simulate_plans,
)

DECODE = Geometry(16, 64, group=4, num_kv_heads=8, window_right=0)
PREFILL = Geometry(128, 128, group=4, num_kv_heads=8, window_right=0)


def alone(plan: Plan) -> Report:
    """With work that takes as long as the plan takes it to cost."""
    (report,) = simulate_plans([plan], [Timing.of(plan.cost)])
    return report


def test_decode_runs_at_the_read_rate() -> None:
    requests = RequestBatch.from_lengths(np.ones(64, int), np.full(64, 8192))
    report = alone(plan_batch(requests, DECODE, 132))
    kv_bytes = 64 * 8192 * 8 * 512
    assert report.hbm_bytes == pytest.approx(kv_bytes, rel=0.001)
    assert report.predicted_us == pytest.approx(kv_bytes / H200.read_gbps / 1000, rel=0.03)
    # Measured on an H200: 479 us for the best library.
    assert 440 < report.predicted_us < 480


def test_few_readers_are_limited_by_their_own_rate() -> None:
    requests = RequestBatch.from_lengths([1], [64 * 1024])
    geometry = Geometry(16, 64, group=8, num_kv_heads=1)
    plan = plan_batch(requests, geometry, 1)
    us = alone(plan).predicted_us
    assert us == pytest.approx(64 * 1024 * 512 / H200.sm_read_gbps / 1000, rel=0.01)
    wide = alone(plan_batch(requests, geometry, 132))
    assert wide.predicted_us - wide.merge_us < us / 30
    assert wide.merge_us == pytest.approx(1.5 + 132 * 8 * 0.004), "the last of 132 blocks alone"


def test_prefill_is_limited_by_tensor_cores() -> None:
    requests = RequestBatch.from_lengths([8192], [8192])
    report = alone(plan_batch(requests, PREFILL, 132))
    assert report.floor_us == pytest.approx(float(report.compute_us.mean()))
    assert report.floor_us < report.predicted_us < 1.1 * report.floor_us
    kv_bytes = 8192 * 8 * 512
    assert report.hbm_bytes == pytest.approx(kv_bytes * 5, rel=0.05), "K, V once; Q, O 4 heads"


def test_a_balanced_plan_beats_one_block_per_tile() -> None:
    requests = RequestBatch.from_lengths(np.ones(16, int), np.r_[60_000, np.full(15, 500)])
    plan = plan_batch(requests, DECODE, 132)
    naive: list[list[Item]] = [[] for _ in range(132)]
    whole = plan_batch(requests, DECODE, 1, policy="whole")
    for i, item in enumerate(plan_items(whole)[0]):
        naive[i % 132].append(item)
    ours, theirs = (simulate(x, requests, DECODE) for x in (plan_items(plan), naive))
    assert ours.predicted_us < theirs.predicted_us / 2
    assert ours.imbalance < 1.1 < theirs.imbalance


@pytest.mark.parametrize("geometry", [DECODE, PREFILL])
def test_close_to_the_heap(geometry: Geometry) -> None:
    """A plan without item lists is within a few percent of the heap's, or ahead of it."""
    rng = np.random.default_rng(0)
    requests = RequestBatch.from_lengths(np.ones(64, int), rng.integers(100, 6000, 64))
    ours = alone(plan_batch(requests, geometry, 132))
    heap = simulate(plan_min_heap(requests, geometry, 132).blocks, requests, geometry)
    assert ours.predicted_us < 1.06 * heap.predicted_us


def test_the_last_piece_merges() -> None:
    """One tile in two pieces on two blocks, of 3 and 1 KV blocks: the long one merges."""
    geometry = Geometry(128, 128, 1, 1)
    requests = RequestBatch.from_lengths([128], [512])
    cost = CostModel(
        tile_ns=1000, row_key_ps=100, partial_row_ps=1000, merge_ns=500, merge_row_ps=2000
    )
    pieces = [
        [Item(0, 0, 0, 0, 128, 0, 3, 0)],
        [Item(0, 0, 0, 0, 128, 3, 4, 1)],
    ]
    report = simulate(pieces, requests, geometry, Timing.of(cost))
    block = 128 * 128 * 100 / 1e6
    assert report.busy_us == pytest.approx([1 + 3 * block + 0.128, 1 + block + 0.128])
    assert report.merge_us == pytest.approx(0.5 + 2 * 128 * 0.002)
    assert report.predicted_us == pytest.approx(float(report.busy_us[0]) + report.merge_us)
    assert report.ideal_us == pytest.approx((1 + 4 * block) / 2), "of one item, unsplit"


def test_report_reads_well() -> None:
    requests = RequestBatch.from_lengths([1, 300], [5000, 300])
    text = str(alone(plan_batch(requests, PREFILL, 132)))
    for word in ("H200", "thread blocks", "132", "imbalance", "GB/s", "floor"):
        assert word in text


def test_nothing_to_do() -> None:
    requests = RequestBatch.from_lengths([], [])
    report = alone(plan_batch(requests, DECODE, 4))
    assert report.predicted_us == 0
    assert report.imbalance == 1
    assert str(report)


def test_what_a_kernel_takes_beside_its_keys() -> None:
    """Start, one gap between two items, masks and products: no reading in the way."""
    timing = Timing.for_kernel(128, 128, schedule="hopper_tile")
    requests = RequestBatch.from_lengths([256], [256])
    geometry = Geometry(128, 128, 1, 1, window_right=0)
    report = simulate([[Item(0, 0, 0, 0, 128, 0, 1, -1), Item(0, 1, 0, 128, 128, 0, 2, -1)]],
                      requests, geometry, timing)  # fmt: skip
    product_us = 128 * 128 * 512 / (796e6 * 0.935 / 132)
    expected = timing.start_us + timing.item_us + 2 * timing.masked_us + 3 * product_us
    assert report.predicted_us == pytest.approx(expected)
    begin, end = report.items_us.T
    assert begin[0] == pytest.approx(timing.start_us) and end[1] == pytest.approx(expected)
    assert begin[1] == pytest.approx(end[0])
    assert end[0] - begin[0] == pytest.approx(timing.masked_us + product_us)


def test_timings_of_loaders_and_blocks() -> None:
    ragged, paged, gather = (
        Timing.for_kernel(schedule="hopper_tile", loader=name)
        for name in ("ragged", "paged", "gather")
    )
    assert ragged.row_key_ps < paged.row_key_ps < gather.row_key_ps < 1.2 * ragged.row_key_ps
    one, three = (Timing.for_kernel(blocks_per_sm=count) for count in (1, 3))
    assert three.item_us == pytest.approx(one.item_us / 3), "the others fill the gap"
    assert three.block_gbps == pytest.approx(one.block_gbps / 3)
    with pytest.raises(ValueError, match="schedule is 'volta'"):
        Timing.for_kernel(schedule="volta")


def test_blocks_that_follow_one_another() -> None:
    """More blocks than run at the same time, as in batch-invariant plans."""
    requests = RequestBatch.from_lengths(np.full(9, 128), np.full(9, 2048))
    plan = plan_fixed_pieces(requests, PREFILL, 132, in_kernel=False)
    assert plan.layout.num_blocks == 1152
    timing = Timing.for_kernel(schedule="hopper_tile")
    assert timing.item_us > 0
    (report,) = simulate_plans([plan], [timing])
    assert report.place.max() == 131 and report.places_us.size == 132
    begin, end = report.items_us.T
    place = report.place  # one item per block
    for own in range(132):
        blocks = np.flatnonzero(place == own)
        assert begin[blocks[0]] == pytest.approx(timing.start_us)
        assert (begin[blocks[1:]] >= end[blocks[:-1]] + timing.item_us - 1e-6).all()
    # At most 132 at any moment, and all of them all the time until the first place has no more.
    moments = np.linspace(timing.start_us, float(report.places_us.min()), 50)
    running = ((begin <= moments[:, None]) & (moments[:, None] < end)).sum(axis=1)
    assert running.max() <= 132
    gaps = timing.item_us * 1152 / float(np.sum(end - begin))
    assert running.mean() > 132 * (1 - 2 * gaps)
    all_at_once = simulate(plan_items(plan), requests, PREFILL, timing)
    assert report.predicted_us > 2 * all_at_once.predicted_us
