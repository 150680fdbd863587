"""The paper's Algorithm 1: coverage, chunk bound, and how it compares."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import plan_cases as cases
from hypothesis import given, settings

from cute_attn.abi import Item
from cute_attn.scheduler import Geometry, RequestBatch, plan_min_heap

DECODE = Geometry(16, 64, group=4, num_kv_heads=8, window_right=0)


@given(cases.lengths, cases.geometries, cases.num_blocks)
@settings(max_examples=30)
def test_every_pair_is_computed_once(
    pairs: list[tuple[int, int]], geometry: Geometry, num_blocks: int
) -> None:
    requests = cases.make_batch(pairs)
    assignment = plan_min_heap(requests, geometry, num_blocks)
    items = [item for block in assignment.blocks for item in block]
    for request in range(requests.num_requests):
        needed = cases.needed_blocks(requests, geometry, request)
        count = np.zeros((geometry.num_kv_heads, *needed.shape), np.int32)
        for item in items:
            if item.request == request:
                rows = slice(item.row_begin, item.row_begin + item.num_rows)
                count[item.kv_head, rows, item.block_begin : item.block_end] += 1
        assert count.max(initial=0) <= 1
        assert (count[:, needed] == 1).all()
    slots = sorted(item.slot for item in items if item.slot >= 0)
    assert slots == list(range(assignment.num_slots))
    tiles: dict[int, list[Item]] = defaultdict(list)
    for item in items:
        tiles[item.tile].append(item)
    assert sum(len(pieces) > 1 for pieces in tiles.values()) == assignment.num_split_tiles


def test_chunks_are_at_most_the_ideal_share() -> None:
    requests = RequestBatch.from_lengths([1, 1], [64 * 1000, 64 * 10])
    assignment = plan_min_heap(requests, DECODE, 16)
    sizes = [i.block_end - i.block_begin for block in assignment.blocks for i in block]
    assert max(sizes) <= -(-8 * 1010 // 16)
    assert assignment.num_split_tiles == 8


def test_longest_chunks_are_given_out_first() -> None:
    requests = RequestBatch.from_lengths([1, 1, 1], [64, 640, 320])
    assignment = plan_min_heap(requests, Geometry(16, 64, group=4, num_kv_heads=1), 1)
    sizes = [item.block_end - item.block_begin for item in assignment.blocks[0]]
    assert sizes == [10, 5, 1]
