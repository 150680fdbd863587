"""The paper's scheduler (FlashInfer, arXiv 2501.01005, Algorithm 1), to compare with.

Tiles are cut into KV chunks of at most the ideal share, chunks sorted by length, and each one given
to the thread block with the least cost so far, by a min-heap. It makes lists of items rather than a
plan buffer: a kernel could not find its work by arithmetic. Plain Python; for studies, not for
serving.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from cute_attn.abi import Item, kv_block_range
from cute_attn.abi.plan import RequestRecord
from cute_attn.abi.work import cdiv
from cute_attn.scheduler.batch import Geometry, RequestBatch
from cute_attn.scheduler.cost import DEFAULT_COST, CostModel
from cute_attn.scheduler.each import spread


@dataclass(frozen=True)
class HeapAssignment:
    """Who computes what.

    Attributes:
        blocks: items of each thread block; `Item.request` is the caller's index.
        num_slots: partial-result slots.
        num_split_tiles: tiles cut into several chunks.
    """

    blocks: list[list[Item]]
    num_slots: int
    num_split_tiles: int


def plan_min_heap(
    requests: RequestBatch,
    geometry: Geometry,
    num_blocks: int,
    *,
    cost: CostModel = DEFAULT_COST,
) -> HeapAssignment:
    """Algorithm 1 with visible KV blocks as lengths, so that it knows of causal masks and windows.

    Args:
        requests, geometry, num_blocks, cost: as for `plan_batch`.
    """
    tiles = [tile for i in range(requests.num_requests) for tile in _tiles(requests, i, geometry)]
    tiles = [tile._replace(tile=number) for number, tile in enumerate(tiles)]
    total = sum(tile.block_end - tile.block_begin for tile in tiles)
    most = max(1, cdiv(total, num_blocks))  # step 1: the largest KV chunk

    chunks: list[Item] = []
    num_slots = num_split_tiles = 0
    for tile in tiles:  # step 2: cut
        if tile.block_end - tile.block_begin <= most:
            chunks.append(tile)
            continue
        num_split_tiles += 1
        for begin in range(tile.block_begin, tile.block_end, most):
            end = min(begin + most, tile.block_end)
            chunks.append(tile._replace(block_begin=begin, block_end=end, slot=num_slots))
            num_slots += 1

    q_tiles = -(-(requests.q_len * geometry.group) // geometry.tile_q)
    block_cost = spread(cost.block(geometry, q_tiles), requests.num_requests).tolist()
    chunks.sort(key=lambda c: c.block_begin - c.block_end)  # step 3: longest first
    heap = [(0, block) for block in range(num_blocks)]
    blocks: list[list[Item]] = [[] for _ in range(num_blocks)]
    for chunk in chunks:
        load, block = heap[0]
        blocks[block].append(chunk)
        load += (
            cost.item(geometry) + (chunk.block_end - chunk.block_begin) * block_cost[chunk.request]
        )
        heapq.heapreplace(heap, (load, block))
    return HeapAssignment(blocks, num_slots, num_split_tiles)


def _tiles(requests: RequestBatch, index: int, geometry: Geometry) -> list[Item]:
    """Tiles of one request, whole, not yet numbered."""
    record = RequestRecord(
        q_start=int(requests.q_start[index]),
        q_len=int(requests.q_len[index]),
        kv_start=int(requests.kv_start[index]),
        kv_len=int(requests.kv_len[index]),
        q_pos=int(requests.q_pos[index]),
        kv_pos=int(requests.kv_pos[index]),
        tile_begin=0,
        meta=0,
    )
    packed = record.q_len * geometry.group
    q_tiles = cdiv(packed, geometry.tile_q)
    items = []
    for head in range(geometry.num_kv_heads):
        for q_tile in range(q_tiles):
            row = q_tile * geometry.tile_q
            rows = min(geometry.tile_q, packed - row)
            begin, end = kv_block_range(
                record,
                row,
                rows,
                tile_kv=geometry.tile_kv,
                group=geometry.group,
                window_left=geometry.window_left,
                window_right=geometry.window_right,
            )
            items.append(Item(index, -1, head, row, rows, begin, end, -1))
    return items
