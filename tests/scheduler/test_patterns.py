"""Plans of sparse patterns: KV head by KV head, in rounds, and when that pays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import plan_cases as cases
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cute_attn.abi import WorkWalker
from cute_attn.scheduler import (
    BUILT_IN,
    H200,
    CostModel,
    Geometry,
    RequestBatch,
    pays_by_head,
    plan_batch,
    simulate_plans,
)
from cute_attn.scheduler.timing import Timing

PREFILL = CostModel.for_kernel(schedule="hopper_tile")


def of_heads(q_len: np.ndarray, kv_len: np.ndarray, heads: int, common_keys: int) -> RequestBatch:
    """Rows of a pattern, each for every KV head."""
    start = np.cumsum(q_len) - q_len
    kv_start = np.cumsum(kv_len) - kv_len
    rows = (x.repeat(heads) for x in (start, q_len, kv_start, kv_len))
    return RequestBatch(*rows, common_keys=common_keys)


@given(
    cases.lengths, cases.geometries, st.sampled_from((1, 2, 3, 8)), cases.num_blocks, cases.costs,
    cases.min_pieces, st.booleans(),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_every_pair_is_computed_once(
    pairs: list[tuple[int, int]],
    geometry: Geometry,
    heads: int,
    num_blocks: int,
    cost: CostModel,
    min_piece: int | None,
    common: bool,
) -> None:
    table = np.array(pairs, np.int64).reshape(-1, 2)
    geometry = replace(geometry, num_kv_heads=1, heads_in_ids=heads)
    requests = of_heads(table[:, 0], table[:, 1], heads, 3000 * common)
    plan = plan_batch(requests, geometry, num_blocks, cost=cost, min_piece=min_piece)
    cases.check_coverage(plan, requests, geometry)
    cases.check_slots(plan)
    cases.check_starts(plan)
    again = plan_batch(requests, geometry, num_blocks, cost=cost, min_piece=min_piece)
    assert np.array_equal(plan.buffer, again.buffer)


@pytest.mark.parametrize("varied", [False, True])
def test_tiles_that_run_together_are_of_one_head(varied: bool) -> None:
    """128 rows of a head, on 132 SMs: at a time hardly more than two heads."""
    heads, rows = 32, 128
    kv_len = np.full(rows, 1600)
    if varied:
        kv_len = 128 * np.random.default_rng(0).integers(1, 25, rows)
    requests = of_heads(np.full(rows, 128), kv_len, heads, 16384)
    geometry = Geometry(128, 128, group=1, num_kv_heads=1, heads_in_ids=heads)
    plan = plan_batch(requests, geometry, 132, cost=PREFILL)
    walker = WorkWalker(plan.view)
    first = [[item.kv_head for item in walker.items(block)] for block in range(132)]
    for turn in range(20):
        assert len({own[turn] for own in first}) <= 3
    assert plan.imbalance < 1.05


def test_others_are_in_the_order_of_their_lengths() -> None:
    """Lists of pages that have nothing in common: as for any decode."""
    kv_len = np.random.default_rng(1).integers(1, 5000, 40)
    requests = of_heads(np.ones(20, np.int64), kv_len[:20], 2, 0)
    geometry = Geometry(8, 64, group=4, num_kv_heads=1, heads_in_ids=2)
    plan = plan_batch(requests, geometry, 132)
    records = plan.view.requests[: plan.num_requests]
    assert (np.diff(-(-records[:, 3] // 64)) <= 0).all()
    assert plan.num_whole_tiles == 0


def test_keys_that_rows_have_in_common_come_from_memory_once() -> None:
    rows, heads, keys = 128, 32, 16384
    kv_len = np.full(rows, 4096)
    geometry = Geometry(128, 128, group=1, num_kv_heads=1, heads_in_ids=heads)
    timing = Timing.of(PREFILL)
    apart, alone = (
        plan_batch(of_heads(np.full(rows, 128), kv_len, heads, common), geometry, 132, cost=PREFILL)
        for common in (keys, 0)
    )
    us, unshared = (report.predicted_us for report in simulate_plans([apart, alone], [timing] * 2))
    assert apart.explain().launches[0].distinct_kv_bytes == heads * keys * PREFILL.key_bytes
    assert us < 0.85 * unshared


@pytest.mark.parametrize(
    ("rows", "block", "kept", "keys", "heads", "group", "pays"),
    [
        (16384, 128, 4096, 16384, 32, 1, True),  # 268 MB, read 32 times
        (16384, 64, 4096, 16384, 32, 1, True),
        (16384, 64, 4096, 16384, 8, 4, True),
        (16384, 128, 4096, 16384, 8, 4, False),  # products take three times as long as reading
        (16384, 128, 1024, 2048, 8, 1, False),  # 8 MB: the L2 holds them anyway
        (256, 128, 4096, 16384, 32, 1, False),  # two rows: nothing is read again
    ],
)
def test_where_it_pays(
    rows: int, block: int, kept: int, keys: int, heads: int, group: int, pays: bool
) -> None:
    count = rows // block
    start = np.arange(count) * block
    requests = RequestBatch(
        start, np.full(count, block), start, np.full(count, kept), common_keys=keys
    )
    assert BUILT_IN.gpu == H200
    assert pays == pays_by_head(requests, num_kv_heads=heads, group=group, cost=PREFILL, gpu=H200)
