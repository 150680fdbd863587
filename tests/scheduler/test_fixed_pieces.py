"""Plans of fixed pieces: complete, and a request is cut the same way in every batch."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cute_attn.abi import WorkWalker, num_pieces
from cute_attn.scheduler import CostModel, Geometry, Plan, RequestBatch, plan_fixed_pieces
from cute_attn.scheduler.fixed_pieces import count_pieces
from tests import plan_cases as cases

DECODE = Geometry(8, 64, group=4, num_kv_heads=8, window_right=0)
PREFILL = Geometry(128, 128, group=4, num_kv_heads=8, window_right=0)

long_lengths = st.lists(
    st.tuples(
        st.sampled_from((0, 1, 1, 1, 2, 17, 130)),
        st.sampled_from((0, 1, 97, 600, 1024, 3000, 9000)),
    ),
    max_size=8,
)
in_kernel = st.booleans()


@given(long_lengths, cases.geometries, cases.num_blocks, cases.costs, in_kernel)
def test_every_piece_is_computed_once(
    pairs: list[tuple[int, int]],
    geometry: Geometry,
    num_blocks: int,
    cost: CostModel,
    in_kernel: bool,
) -> None:
    requests = cases.make_batch(pairs)
    plan = plan_fixed_pieces(requests, geometry, num_blocks, in_kernel=in_kernel, cost=cost)
    cases.check_starts(plan)
    cases.check_coverage(plan, requests, geometry)
    cases.check_slots(plan)
    assert plan.resident_blocks in (None, num_blocks)
    assert plan.layout.num_blocks == num_blocks or not in_kernel
    assert (plan.block_costs >= 0).all()


def pieces_by_request(plan: Plan) -> dict[int, set[tuple[int, ...]]]:
    """Of every request in the caller's order: (head, rows, KV blocks, partial) of its items."""
    found: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for item in cases.items_of(plan):
        own = (item.kv_head, item.row_begin, item.num_rows, item.block_begin, item.block_end)
        found[plan.view.request(item.request).batch].add((*own, item.slot >= 0))
    return found


@given(
    long_lengths.filter(bool), cases.geometries, cases.num_blocks, cases.num_blocks,
    st.randoms(use_true_random=False), in_kernel,
)  # fmt: skip
def test_pieces_depend_on_the_request_alone(
    pairs: list[tuple[int, int]],
    geometry: Geometry,
    num_blocks: int,
    other_blocks: int,
    random: object,
    in_kernel: bool,
) -> None:
    """In another order, among other requests, on another number of blocks, at other costs."""
    together = pieces_by_request(
        plan_fixed_pieces(cases.make_batch(pairs), geometry, num_blocks, in_kernel=in_kernel)
    )
    order = list(range(len(pairs)))
    random.shuffle(order)  # type: ignore[attr-defined]  # hypothesis' own Random
    kept = order[: len(order) // 2 + 1]
    cost = CostModel(tile_ns=5000, partial_row_ps=0)
    others = [(1, 20_000), (200, 5000)]
    again = pieces_by_request(
        plan_fixed_pieces(
            cases.make_batch([*others, *(pairs[i] for i in kept)]),
            geometry,
            other_blocks,
            in_kernel=in_kernel,
            cost=cost,
        )
    )
    for place, i in enumerate(kept):
        assert again[place + len(others)] == together[i]


@given(
    st.integers(1, 1 << 24), st.integers(1, 5000), st.sampled_from((8, 16, 64, 128, 192)),
    st.sampled_from((16, 48, 64, 128)),
)  # fmt: skip
def test_the_rule(blocks: int, tiles: int, tile_q: int, tile_kv: int) -> None:
    if blocks * tile_kv >= 1 << 30:
        blocks = (1 << 30) // tile_kv - 1
    pieces = num_pieces(blocks, tiles, tile_q=tile_q, tile_kv=tile_kv)
    geometry = Geometry(tile_q, tile_kv, group=1, num_kv_heads=1)
    assert count_pieces(np.array([blocks]), np.array([tiles]), geometry).tolist() == [pieces]
    assert 1 <= pieces <= min(blocks, 64)
    assert pieces == 1 or pieces * tiles * tile_q <= 1 << 14, "the workspace of a request"
    assert pieces * pieces * 128 <= max(blocks * tile_kv, 128)
    capped = pieces in (64, blocks) or (pieces + 1) * tiles * tile_q > 1 << 14
    assert capped or (pieces + 1) ** 2 * 128 > blocks * tile_kv, "no more pieces than needed"


@pytest.mark.parametrize(("kv_len", "pieces"), [(448, 1), (449, 2), (1024, 2), (8192, 8)])
def test_pieces_of_a_decode(kv_len: int, pieces: int) -> None:
    plan = plan_fixed_pieces(RequestBatch.from_lengths([1], [kv_len]), DECODE, 396, in_kernel=True)
    assert {split[3] for split in WorkWalker(plan.view).split_tiles()} == {pieces} - {1}
    assert plan.num_slots == (8 * pieces if pieces > 1 else 0)


def test_shares_are_even() -> None:
    requests = RequestBatch.from_lengths(np.ones(64, int), np.arange(64) * 200 + 100)
    plan = plan_fixed_pieces(requests, DECODE, 132, in_kernel=True)
    ideal = plan.block_costs.mean()
    longest_piece = 1280 * CostModel().key_ps / 1000 + CostModel().tile_ns  # of ten, at 12,700 keys
    assert abs(plan.block_costs - ideal).max() < 1.1 * longest_piece


def test_blocks_follow_one_another() -> None:
    """More blocks than run at the same time: the device starts the next one where one ends."""
    requests = RequestBatch.from_lengths(np.full(9, 16), np.full(9, 8192))
    plan = plan_fixed_pieces(requests, PREFILL, 132, in_kernel=False)
    place, start = plan.waves
    costs = plan.block_costs
    assert plan.layout.num_blocks == 9 * 8 * 8 and plan.resident_blocks == 132
    for slot in range(132):
        own = np.flatnonzero(place == slot)
        assert start[own[0]] == 0
        assert (start[own[1:]] == start[own[:-1]] + costs[own[:-1]]).all()
    assert (np.diff(start[132:]) >= 0).all(), "in the order of the blocks"
    assert plan.busy_costs.sum() == costs.sum()
    waves = math.ceil(576 / 132)
    assert plan.predicted_us == pytest.approx((waves * costs.max() + plan.merge_cost) / 1000)


def test_without_pieces_tiles_are_whole() -> None:
    requests = RequestBatch.from_lengths([2000, 300], [2000, 8000])
    plan = plan_fixed_pieces(requests, PREFILL, 132, in_kernel=False)
    assert plan.num_split_tiles == 0 and plan.layout.num_blocks == 132


def test_a_grid_may_have_empty_blocks() -> None:
    requests = RequestBatch.from_lengths([16], [8192])
    plan = plan_fixed_pieces(requests, PREFILL, 4, in_kernel=False, grid=100)
    assert plan.layout.num_blocks == 100
    walker = WorkWalker(plan.view)
    assert [len(list(walker.items(block))) for block in range(100)] == [1] * 64 + [0] * 36
    with pytest.raises(ValueError, match="needs 64 thread blocks, but the grid has 63"):
        plan_fixed_pieces(requests, PREFILL, 4, in_kernel=False, grid=63)
    for arguments in ({"grid": 3, "in_kernel": False}, {"grid": 100, "in_kernel": True}):
        with pytest.raises(ValueError, match="grid is"):
            plan_fixed_pieces(requests, PREFILL, 4, **arguments)  # type: ignore[arg-type]  # a table
