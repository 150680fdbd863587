"""The simulator against closed forms and against measured times."""

from __future__ import annotations

import numpy as np
import pytest

from cute_attn.abi import Item
from cute_attn.scheduler import (
    H200,
    CostModel,
    Geometry,
    RequestBatch,
    plan_batch,
    plan_items,
    plan_min_heap,
    simulate,
)
from cute_attn.scheduler.simulator import _max_min, _share_bandwidth

DECODE = Geometry(16, 64, group=4, num_kv_heads=8, window_right=0)
PREFILL = Geometry(128, 128, group=4, num_kv_heads=8, window_right=0)


@pytest.mark.parametrize(
    ("wanted", "total", "shares"),
    [
        ([1, 1, 1], 6, [1, 1, 1]),
        ([1, 5, 5], 6, [1, 2.5, 2.5]),
        ([4, 4, 4], 6, [2, 2, 2]),
        ([0, 3, 9], 6, [0, 3, 3]),
    ],
)
def test_max_min_fairness(wanted: list[float], total: float, shares: list[float]) -> None:
    assert _max_min(np.array(wanted, float), total) == pytest.approx(shares)


def test_bandwidth_is_shared_over_time() -> None:
    # Three readers of 10 bytes, each 5 bytes per us alone, on a device of 10 bytes per us; one of
    # them has only half as much. They share until it ends (t = 1.5), then the others go faster.
    ends = _share_bandwidth(np.array([2.0, 2.0, 1.0]), np.array([10.0, 10.0, 5.0]), 10.0)
    assert ends == pytest.approx([2.5, 2.5, 1.5])
    # Work without bytes is not slowed down.
    assert _share_bandwidth(np.array([3.0, 0.0]), np.zeros(2), 1.0) == pytest.approx([3.0, 0.0])


def test_decode_runs_at_the_read_rate() -> None:
    requests = RequestBatch.from_lengths(np.ones(64, int), np.full(64, 8192))
    report = simulate(plan_batch(requests, DECODE, 132), requests, DECODE)
    kv_bytes = 64 * 8192 * 8 * 512
    assert report.hbm_bytes == pytest.approx(kv_bytes, rel=0.001)
    assert report.predicted_us == pytest.approx(kv_bytes / H200.read_gbps / 1000, rel=0.03)
    # Measured on an H200: 479 us for the best library.
    assert 440 < report.predicted_us < 480


def test_few_readers_are_limited_by_their_own_rate() -> None:
    requests = RequestBatch.from_lengths([1], [64 * 1024])
    geometry = Geometry(16, 64, group=8, num_kv_heads=1)
    plan = plan_batch(requests, geometry, 1)
    us = simulate(plan, requests, geometry).predicted_us
    assert us == pytest.approx(64 * 1024 * 512 / H200.sm_read_gbps / 1000, rel=0.01)
    wide = plan_batch(requests, geometry, 132)
    assert simulate(wide, requests, geometry).predicted_us < us / 20


def test_prefill_is_limited_by_tensor_cores() -> None:
    requests = RequestBatch.from_lengths([8192], [8192])
    report = simulate(plan_batch(requests, PREFILL, 132), requests, PREFILL)
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
    ours, theirs = (simulate(x, requests, DECODE) for x in (plan, naive))
    assert ours.predicted_us < theirs.predicted_us / 2
    assert ours.imbalance < 1.1 < theirs.imbalance


@pytest.mark.parametrize("geometry", [DECODE, PREFILL])
def test_close_to_the_heap(geometry: Geometry) -> None:
    """A plan without item lists is within a few percent of the heap's, or ahead of it."""
    rng = np.random.default_rng(0)
    requests = RequestBatch.from_lengths(np.ones(64, int), rng.integers(100, 6000, 64))
    ours = simulate(plan_batch(requests, geometry, 132), requests, geometry)
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
    report = simulate(pieces, requests, geometry, cost=cost)
    block = 1.638  # 128 x 128 x 100 ps, whole nanoseconds
    assert report.busy_us == pytest.approx([1 + 3 * block + 0.128, 1 + block + 0.128])
    assert report.merge_us == pytest.approx(0.5 + 2 * 128 * 0.002)
    assert report.predicted_us == pytest.approx(float(report.busy_us[0]) + report.merge_us)
    assert report.ideal_us == pytest.approx((1 + 4 * block) / 2), "of one item, unsplit"


def test_report_reads_well() -> None:
    requests = RequestBatch.from_lengths([1, 300], [5000, 300])
    text = str(simulate(plan_batch(requests, PREFILL, 132), requests, PREFILL))
    for word in ("H200", "thread blocks", "132", "imbalance", "GB/s", "floor"):
        assert word in text


def test_nothing_to_do() -> None:
    requests = RequestBatch.from_lengths([], [])
    report = simulate(plan_batch(requests, DECODE, 4), requests, DECODE, cost=CostModel())
    assert report.predicted_us == 0
    assert report.imbalance == 1
    assert str(report)
