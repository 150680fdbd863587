"""Plans that are copies of the one before, but for the records: to the bit what they would be."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from cute_attn.abi import UNBOUNDED
from cute_attn.scheduler import CostModel, Geometry, Plan, PlanMemory, RequestBatch, plan_batch
from cute_attn.scheduler import planner as planner_module

COST = CostModel.for_kernel(blocks_per_sm=3)


def geometry(window: int = UNBOUNDED, group: int = 4) -> Geometry:
    return Geometry(16, 64, group, 8, window, window_right=0)


def assert_same(got: Plan, want: Plan) -> None:
    assert np.array_equal(got.buffer, want.buffer)
    assert np.array_equal(got.block_costs, want.block_costs)
    for name in ("layout", "num_requests", "num_tiles", "num_split_tiles", "num_slots", "cost"):
        assert getattr(got, name) == getattr(want, name)
    assert (got.merge_cost, got.predicted_us) == (want.merge_cost, want.predicted_us)


@pytest.mark.parametrize("window", [UNBOUNDED, 1000])
@pytest.mark.parametrize("q_len", [1, 3])
@pytest.mark.parametrize("count", [1, 7, 60])
def test_step_after_step(count: int, q_len: int, window: int) -> None:
    """A token more for every request, again and again: most steps are copies, some are not."""
    rng = np.random.default_rng(count)
    keys = rng.integers(q_len, 5000, count)
    memory, tiles = PlanMemory(), geometry(window)
    calls = 0
    for step in range(70):
        starts = rng.integers(0, 1 << 20, count)  # pages move as well
        batch = RequestBatch(np.arange(count) * q_len, np.full(count, q_len), starts, keys + step)
        want = plan_batch(batch, tiles, 396, cost=COST)
        with mock.patch.object(
            planner_module, "sort_requests", wraps=planner_module.sort_requests
        ) as sort:
            got = plan_batch(batch, tiles, 396, cost=COST, memory=memory)
        calls += sort.call_count
        assert_same(got, want)
    assert 1 < calls <= 70
    if count == 1 and window == UNBOUNDED:
        assert calls <= 3  # two KV blocks are begun in 70 tokens, at most


def test_whatever_changes() -> None:
    """The same KV blocks, and one other thing: never the old plan."""
    keys = np.array([900, 4000, 64, 2000])
    memory = PlanMemory()

    def both(batch: RequestBatch, tiles: Geometry, num_blocks: int = 132, **options: int) -> None:
        want = plan_batch(batch, tiles, num_blocks, cost=COST, **options)
        assert_same(plan_batch(batch, tiles, num_blocks, cost=COST, memory=memory, **options), want)

    def lengths(q: object, kv: object = keys, **more: object) -> RequestBatch:
        zeros = np.zeros(len(keys), int)
        return RequestBatch(zeros, np.broadcast_to(q, keys.shape), zeros, kv, **more)

    for _ in range(2):
        both(lengths(1), geometry())
        both(lengths(1), geometry(), 396)
        both(lengths(2), geometry())
        both(lengths([1, 1, 2, 1]), geometry())
        both(lengths([1, 1, 0, 1]), geometry())
        both(lengths(40), geometry())  # several query tiles
        both(lengths(1), geometry(group=8))
        both(lengths(1), geometry(500))
        both(lengths(1, ids=[3, 1, 0, 2]), geometry())
        both(lengths(1, ids=[3, 1, 2, 0]), geometry())
        both(lengths(1, q_pos=[5, 5, 5, 5]), geometry())
        both(lengths(1), geometry(), max_requests=9)
        both(lengths(1), geometry(), min_piece=9)
        both(lengths(1, keys[::-1]), geometry())
        both(lengths(1, keys * 0), geometry())
    both(RequestBatch.from_lengths([1], [100]), geometry())
    both(RequestBatch.from_lengths([], []), geometry())


def test_a_plan_is_not_changed_by_the_next() -> None:
    memory, tiles = PlanMemory(), geometry()
    first = plan_batch(RequestBatch.from_lengths([1], [100]), tiles, 132, memory=memory)
    bits = first.buffer.copy()
    second = plan_batch(RequestBatch.from_lengths([1], [101]), tiles, 132, memory=memory)
    assert np.array_equal(first.buffer, bits) and not np.array_equal(second.buffer, bits)
    assert (first.requests.kv_len[0], second.requests.kv_len[0]) == (100, 101)
