"""Properties of plans: coverage, bounds, balance, determinism."""

from __future__ import annotations

from typing import Any

import numpy as np
import plan_cases as cases
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cute_attn.abi import WorkWalker
from cute_attn.abi.plan import MAX_LISTED_ROUNDS
from cute_attn.scheduler import (
    CostModel,
    Geometry,
    Plan,
    RequestBatch,
    max_slots,
    plan_batch,
    workspace_size,
)
from cute_attn.scheduler.tiles import sort_requests

DECODE = Geometry(16, 64, group=4, num_kv_heads=8, window_right=0)
PREFILL = Geometry(128, 128, group=4, num_kv_heads=8, window_right=0)

any_lengths = st.one_of(cases.lengths, cases.decode_lengths)
policies = st.sampled_from(("balanced", "balanced", "whole"))


def block_costs(requests: RequestBatch, geometry: Geometry, cost: CostModel) -> list[int]:
    """What the planner takes a KV block of each request to cost."""
    records = sort_requests(requests, geometry, cost, l2_budget=0, min_piece=None)
    costs = np.empty(requests.num_requests, np.int64)
    costs[records.order] = records.block_cost
    return [int(x) for x in costs]


def item_costs(
    plan: Plan, requests: RequestBatch, geometry: Geometry, cost: CostModel
) -> list[int]:
    """Cost of each thread block, item by item."""
    rows = requests.q_len * geometry.group
    block_cost = block_costs(requests, geometry, cost)
    walker = WorkWalker(plan.view)
    totals = []
    for block in range(walker.num_blocks):
        total = 0
        for item in walker.items(block):
            batch = plan.view.request(item.request).batch
            total += cost.tile_ns + (item.block_end - item.block_begin) * block_cost[batch]
            if item.slot >= 0:
                total += min(geometry.tile_q, int(rows[batch])) * cost.partial_row_ps // 1000
        totals.append(total)
    return totals


@given(any_lengths, cases.geometries, cases.num_blocks, cases.costs, cases.min_pieces, policies)
@settings(max_examples=120)
def test_every_pair_is_computed_once(
    pairs: list[tuple[int, int]],
    geometry: Geometry,
    num_blocks: int,
    cost: CostModel,
    min_piece: int | None,
    policy: str,
) -> None:
    requests = cases.make_batch(pairs)
    plan = plan_batch(requests, geometry, num_blocks, cost=cost, min_piece=min_piece, policy=policy)
    cases.check_coverage(plan, requests, geometry)
    cases.check_slots(plan)
    cases.check_starts(plan)
    assert plan.num_slots <= max_slots(num_blocks)
    assert plan.block_costs.tolist() == item_costs(plan, requests, geometry, cost)
    if policy == "whole":
        assert plan.num_slots == 0


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 300)), max_size=6),
    st.integers(-60, 300),
    st.integers(0, 200),
    cases.geometries,
)
@settings(max_examples=60)
def test_any_positions_are_covered(
    pairs: list[tuple[int, int]], q_pos: int, kv_pos: int, geometry: Geometry
) -> None:
    base = cases.make_batch(pairs)
    n = base.num_requests
    requests = RequestBatch(
        base.q_start,
        base.q_len,
        base.kv_start,
        base.kv_len,
        q_pos=np.full(n, q_pos),
        kv_pos=np.full(n, kv_pos),
    )
    plan = plan_batch(requests, geometry, 5, min_piece=1)
    cases.check_coverage(plan, requests, geometry)
    cases.check_slots(plan)
    cases.check_starts(plan)


@pytest.mark.parametrize("count", [1, 64, 1000, 4096])
@pytest.mark.parametrize("most_queries", [1, 9])
def test_many_requests(count: int, most_queries: int) -> None:
    rng = np.random.default_rng(count)
    requests = RequestBatch.from_lengths(
        rng.integers(0, most_queries + 1, count), rng.integers(0, 400, count)
    )
    geometry = Geometry(16, 32, group=4, num_kv_heads=2, window_right=0)
    plan = plan_batch(requests, geometry, 132)
    cases.check_coverage(plan, requests, geometry)
    cases.check_slots(plan)
    cases.check_starts(plan)


@given(any_lengths, cases.geometries, cases.num_blocks, cases.costs)
@settings(max_examples=60)
def test_balance_bound(
    pairs: list[tuple[int, int]], geometry: Geometry, num_blocks: int, cost: CostModel
) -> None:
    """No block is above the mean (or a tile) by more than a tile and what splitting it costs."""
    requests = cases.make_batch(pairs)
    plan = plan_batch(requests, geometry, num_blocks, cost=cost)
    whole = plan_batch(requests, geometry, 1, cost=cost, policy="whole")
    longest = max((item.block_end - item.block_begin for item in cases.items_of(whole)), default=0)
    rows = -(-requests.q_len * geometry.group // geometry.tile_q)
    tile = longest * int(cost.block(geometry, rows).max(initial=0)) + cost.tile_ns
    partial = geometry.tile_q * cost.partial_row_ps // 1000
    merge = cost.merge_ns + num_blocks * geometry.tile_q * cost.merge_row_ps // 1000
    extra = tile + cost.tile_ns + 2 * partial + merge + num_blocks
    assert plan.block_costs.max() <= max(whole.block_costs[0] / num_blocks, tile) + extra


@given(any_lengths, cases.geometries, cases.num_blocks, st.integers(1, 6))
@settings(max_examples=60)
def test_no_piece_is_too_short(
    pairs: list[tuple[int, int]], geometry: Geometry, num_blocks: int, min_piece: int
) -> None:
    plan = plan_batch(cases.make_batch(pairs), geometry, num_blocks, min_piece=min_piece)
    sizes = [i.block_end - i.block_begin for i in cases.items_of(plan) if i.slot >= 0]
    assert min(sizes, default=min_piece) >= min_piece


@given(any_lengths, cases.geometries, cases.num_blocks, cases.costs)
@settings(max_examples=60)
def test_a_piece_is_worth_its_partial_result(
    pairs: list[tuple[int, int]], geometry: Geometry, num_blocks: int, cost: CostModel
) -> None:
    """By default a piece has 64 keys, and takes as long as writing its result does."""
    requests = cases.make_batch(pairs)
    plan = plan_batch(requests, geometry, num_blocks, cost=cost)
    rows = requests.q_len * geometry.group
    block_cost = block_costs(requests, geometry, cost)
    for item in cases.items_of(plan):
        if item.slot >= 0:
            batch = plan.view.request(item.request).batch
            blocks = item.block_end - item.block_begin
            assert blocks * geometry.tile_kv >= 64
            partial = min(geometry.tile_q, int(rows[batch])) * cost.partial_row_ps // 1000
            assert blocks * block_cost[batch] >= partial


@given(any_lengths, cases.geometries, cases.num_blocks)
@settings(max_examples=30)
def test_equal_input_gives_equal_bits(
    pairs: list[tuple[int, int]], geometry: Geometry, num_blocks: int
) -> None:
    n = len(pairs)
    first = plan_batch(cases.make_batch(pairs), geometry, num_blocks)
    again = plan_batch(cases.make_batch(pairs), geometry, num_blocks, max_requests=n + 100)
    assert np.array_equal(first.buffer, again.buffer)
    # ... and fills a prefix of what was promised before planning.
    size = workspace_size(
        num_blocks=num_blocks, max_requests=n + 100, tile_q=geometry.tile_q, head_dim_vo=128
    )
    assert 4 * again.layout.size == size.plan
    listed = again.view.places.shape[0]
    assert again.buffer.size == again.layout.used_size(n, listed) <= again.layout.size
    assert again.num_slots * geometry.tile_q * 128 * 4 <= size.partial_out


def test_records_keep_what_the_caller_gave() -> None:
    requests = RequestBatch([5, 9, 0], [3, 0, 5], [100, 0, 40], [7, 0, 60], kv_pos=[0, 0, 11])
    plan = plan_batch(requests, DECODE, 4)
    records = {plan.view.request(i).batch: plan.view.request(i) for i in range(3)}
    assert sorted(records) == [0, 1, 2]
    for index, record in records.items():
        got = (record.q_start, record.q_len, record.kv_start, record.kv_len, record.q_pos)
        assert got == tuple(
            int(getattr(requests, name)[index])
            for name in ("q_start", "q_len", "kv_start", "kv_len", "q_pos")
        )
        assert record.kv_pos == requests.kv_pos[index]
    assert requests.q_pos.tolist() == [4, 0, 66]
    assert plan.view.request(2).batch == 1, "requests without queries come last"


def test_records_are_sorted_by_their_longest_tile() -> None:
    requests = RequestBatch.from_lengths([1, 4096, 1, 128, 0], [900, 4096, 5000, 128, 70])
    plan = plan_batch(requests, PREFILL, 8)
    assert [plan.view.request(i).batch for i in range(5)] == [2, 1, 0, 3, 4]


def test_decode_is_one_line() -> None:
    rng = np.random.default_rng(3)
    requests = RequestBatch.from_lengths(np.ones(256, int), rng.integers(1, 8192, 256))
    for num_blocks in (132, 264, 396):
        plan = plan_batch(requests, DECODE, num_blocks)
        assert plan.num_whole_tiles == 0
        assert plan.imbalance < 1.01
        assert plan.num_split_tiles <= num_blocks - 1


def test_one_long_request_fills_the_device() -> None:
    plan = plan_batch(RequestBatch.from_lengths([1], [100_000]), DECODE, 132)
    assert plan.imbalance < 1.02
    assert np.count_nonzero(plan.block_costs) == 132


def test_one_long_request_among_short_ones_is_spread() -> None:
    requests = RequestBatch.from_lengths(np.ones(64, int), np.r_[60_000, np.full(63, 300)])
    assert plan_batch(requests, DECODE, 132).imbalance < 1.05


def test_short_decodes_are_not_split() -> None:
    plan = plan_batch(RequestBatch.from_lengths(np.ones(64, int), np.full(64, 128)), DECODE, 132)
    assert plan.num_split_tiles == 0
    assert plan.block_costs.max() <= 4 * (1200 + 2 * 933)


def test_few_short_tiles_go_to_separate_blocks() -> None:
    plan = plan_batch(RequestBatch.from_lengths(np.ones(16, int), np.full(16, 40)), DECODE, 132)
    assert np.count_nonzero(plan.block_costs) == 128


def test_long_prefill_is_mostly_whole() -> None:
    requests = RequestBatch.from_lengths(np.full(8, 8192), np.full(8, 8192))
    plan = plan_batch(requests, PREFILL, 132, l2_budget=24 << 20)  # five heads a section
    assert plan.num_tiles == 16_384
    assert plan.num_whole_tiles > 0.95 * plan.num_tiles
    assert plan.num_split_tiles < 0.01 * plan.num_tiles
    assert plan.imbalance < 1.002
    assert plan.buffer.nbytes < 6000 + 64 * 132 + 2 * 132 * MAX_LISTED_ROUNDS


def test_splitting_must_pay() -> None:
    """Partial results that cost more than they gain are not made."""
    requests = RequestBatch.from_lengths(np.full(16, 1024), np.full(16, 1024))
    dear = CostModel(partial_row_ps=10_000_000, merge_ns=1_000_000)
    assert plan_batch(requests, PREFILL, 132, cost=dear).num_split_tiles == 0


def test_mixed_batch_is_balanced() -> None:
    requests = RequestBatch.from_lengths(
        np.r_[2048, np.ones(128, int)], np.r_[8192, np.full(128, 4096)]
    )
    assert plan_batch(requests, PREFILL, 132).imbalance < 1.02


@pytest.mark.parametrize(("budget", "heads"), [(0, 1), (2 << 20, 1), (9 << 20, 2), (1 << 30, 8)])
def test_sections_fit_the_l2_budget(budget: int, heads: int) -> None:
    requests = RequestBatch.from_lengths([8192, 1], [8192, 8192])
    plan = plan_batch(requests, PREFILL, 132, l2_budget=budget)
    sections = {plan.view.request(i).batch: plan.view.request(i).section_heads for i in range(2)}
    assert sections[0] == heads
    assert sections[1] == 8, "one query tile shares nothing: its heads stay side by side"


def test_whole_policy_is_batch_invariant() -> None:
    """What a request's output is computed from does not depend on the rest of the batch."""

    def work(pairs: list[tuple[int, int]], index: int) -> set[tuple[Any, ...]]:
        plan = plan_batch(cases.make_batch(pairs), PREFILL, 7, policy="whole")
        own = [i for i in cases.items_of(plan) if plan.view.request(i.request).batch == index]
        return {tuple(item)[2:] for item in own}

    assert work([(300, 3000)], 0) == work([(1, 5000), (300, 3000), (17, 16)], 1)


def test_more_heads_than_a_section_holds() -> None:
    geometry = Geometry(16, 32, group=1, num_kv_heads=300)
    requests = RequestBatch.from_lengths([1, 40], [64, 64])
    plan = plan_batch(requests, geometry, 9)
    cases.check_coverage(plan, requests, geometry)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_blocks": 0}, "num_blocks is 0"),
        ({"policy": "greedy"}, "policy is 'greedy'"),
        ({"min_piece": 0}, "min_piece is 0"),
        ({"l2_budget": -1}, "l2_budget is -1"),
        ({"max_requests": 1}, "2 requests but max_requests is 1"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"num_blocks": 4, **options}
    with pytest.raises(ValueError, match=message):
        plan_batch(RequestBatch.from_lengths([1, 1], [1, 1]), DECODE, **arguments)


def test_too_many_tiles() -> None:
    requests = RequestBatch.from_lengths([1 << 28] * 8, [1 << 10] * 8)
    with pytest.raises(ValueError, match=r"tiles; 2\^31 - 1 fit"):
        plan_batch(requests, Geometry(1, 64, group=1, num_kv_heads=8), 4)
    with pytest.raises(ValueError, match="times group must stay below"):
        plan_batch(requests, Geometry(128, 64, group=16, num_kv_heads=8), 4)
