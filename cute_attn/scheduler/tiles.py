"""The tiles of a batch in plan order, as runs of equal tiles.

A *run* is one query tile of one request under the KV heads of one section: neighbouring tiles with
the same cost. Planning works on runs (a decode batch has one per request), never on a Python loop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cute_attn.abi import UNBOUNDED
from cute_attn.abi.plan import MAX_SECTION_HEADS
from cute_attn.scheduler.batch import Geometry, Int64Array, RequestBatch
from cute_attn.scheduler.cost import CostModel

_MIN_PIECE_KEYS = 128


def visible_blocks(
    geometry: Geometry,
    shift: Int64Array,
    kv_len: Int64Array,
    row: Int64Array,
    row_end: Int64Array,
) -> Int64Array:
    """KV blocks that tiles of packed query rows [row, row_end) have to visit.

    The array form of `cute_attn.abi.kv_block_range`; `shift` is q_pos - kv_pos.
    """
    group, tile_kv = geometry.group, geometry.tile_kv
    high = kv_len
    if geometry.window_right != UNBOUNDED:
        last = (row_end - 1) // group + shift + (geometry.window_right + 1)
        high = np.maximum(np.minimum(last, kv_len), 0)
    blocks = (high + (tile_kv - 1)) // tile_kv
    if geometry.window_left == UNBOUNDED:
        return blocks
    low = np.maximum(row // group + shift - geometry.window_left, 0)
    return np.where(high > low, blocks - low // tile_kv, 0)


@dataclass
class Records:
    """Requests in plan order: most expensive tile first, ties by index, empty requests last.

    All arrays are (num_requests,) int64.
    """

    order: Int64Array  # caller's index of each record
    q_len: Int64Array
    kv_len: Int64Array
    q_tiles: Int64Array  # per KV head
    last_blocks: Int64Array  # KV blocks of the tile with the last query rows
    block_cost: Int64Array
    partial_cost: Int64Array  # of writing one partial result of a tile
    merge_cost: Int64Array  # of reading it again
    min_piece: Int64Array  # no piece of a split tile is shorter than this many KV blocks
    section_heads: Int64Array
    most_q_tiles: int


@dataclass
class Runs:
    """Runs in plan order; (num_runs,) int64 each, prefix sums one longer."""

    record: Int64Array
    heads: Int64Array  # tiles in the run
    blocks: Int64Array  # KV blocks of each of its tiles
    block_cost: Int64Array
    tile_cost: Int64Array
    tile_begin: Int64Array  # prefix sum of tiles
    cost_begin: Int64Array  # prefix sum of cost

    @property
    def num_tiles(self) -> int:
        return int(self.tile_begin[-1])

    @property
    def total_cost(self) -> int:
        return int(self.cost_begin[-1])


def sort_requests(
    requests: RequestBatch,
    geometry: Geometry,
    cost: CostModel,
    l2_budget: int,
    min_piece: int | None,
) -> Records:
    """Sorts requests by the cost of the tile with the last query rows, descending.

    `min_piece` None: `_MIN_PIECE_KEYS` keys, or as much as a partial result costs.
    """
    tile_q, heads = geometry.tile_q, geometry.num_kv_heads
    packed = requests.q_len * geometry.group
    q_tiles = (packed + (tile_q - 1)) // tile_q
    most = int(q_tiles.max(initial=0))
    shift = requests.q_pos - requests.kv_pos
    last_row = np.maximum(q_tiles - 1, 0) * tile_q if most > 1 else np.zeros_like(packed)
    blocks = visible_blocks(geometry, shift, requests.kv_len, last_row, packed)
    read_block = None
    if most > 1 and bool((q_tiles == 1).any()):
        # Between the first and the last query tile the visible range grows evenly.
        row_end = np.minimum(packed, tile_q)
        first = visible_blocks(geometry, shift, requests.kv_len, np.zeros_like(packed), row_end)
        computed = int((q_tiles * (first + blocks))[q_tiles > 1].sum()) // 2
        read_block = cost.read_block_in_step(geometry, int(blocks.sum()), computed)
    block_cost = cost.block(geometry, q_tiles, read_block)
    order = np.where(packed > 0, -blocks * block_cost, 1).argsort(kind="stable")

    fit = np.full(order.size, min(heads, MAX_SECTION_HEADS), np.int64)
    if most > 1:
        # Tiles of one query tile have no KV to share: all their heads are one section.
        shared = l2_budget // np.maximum(requests.kv_len[order] * cost.key_bytes, 1)
        fit = np.where(q_tiles[order] > 1, np.maximum(np.minimum(shared, fit), 1), fit)
    sections = (fit + (heads - 1)) // fit
    partial_cost = np.minimum(packed, tile_q) * cost.partial_row_ps // 1000
    if min_piece is None:
        least = (_MIN_PIECE_KEYS - 1) // geometry.tile_kv + 1
        pieces = np.maximum((partial_cost + block_cost - 1) // block_cost, least)
    else:
        pieces = np.full(order.size, min_piece, np.int64)
    return Records(
        order=order,
        q_len=requests.q_len[order],
        kv_len=requests.kv_len[order],
        q_tiles=q_tiles[order],
        last_blocks=blocks[order],
        block_cost=block_cost[order],
        partial_cost=partial_cost[order],
        merge_cost=(np.minimum(packed, tile_q) * cost.merge_row_ps // 1000)[order],
        min_piece=pieces[order],
        section_heads=(sections + (heads - 1)) // sections,
        most_q_tiles=most,
    )


def make_runs(
    requests: RequestBatch, records: Records, geometry: Geometry, cost: CostModel
) -> Runs:
    """Runs of all records: sections of KV heads; in a section the last query tile first."""
    num_heads, q_tiles = geometry.num_kv_heads, records.q_tiles
    if records.most_q_tiles <= 1 and num_heads <= MAX_SECTION_HEADS:
        # One run per request that has queries; those without are last.
        record = np.arange(np.count_nonzero(q_tiles))
        blocks = records.last_blocks[: record.size]
        block_cost = records.block_cost[: record.size]
        heads = np.full(record.size, num_heads, np.int64)
    else:
        sections = (records.section_heads + (num_heads - 1)) // records.section_heads
        runs = q_tiles * sections
        record = np.arange(q_tiles.size).repeat(runs)
        block_cost = records.block_cost.repeat(runs)
        blocks = _blocks_of_tiles(requests, records, geometry)
        if int(sections.max(initial=1)) == 1:
            heads = np.full(record.size, num_heads, np.int64)
        else:
            source, heads = _repeat_sections(records, sections, num_heads)
            blocks = blocks[source]
    tile_cost = blocks * block_cost + cost.item(geometry)
    tile_begin = np.zeros(heads.size + 1, np.int64)
    cost_begin = np.zeros(heads.size + 1, np.int64)
    heads.cumsum(out=tile_begin[1:])
    (heads * tile_cost).cumsum(out=cost_begin[1:])
    return Runs(record, heads, blocks, block_cost, tile_cost, tile_begin, cost_begin)


def _blocks_of_tiles(requests: RequestBatch, records: Records, geometry: Geometry) -> Int64Array:
    """KV blocks of each (record, query tile), query tiles downwards."""
    q_tiles = records.q_tiles
    ends = q_tiles.cumsum().repeat(q_tiles)
    row = (ends - np.arange(1, ends.size + 1)) * geometry.tile_q
    packed = (records.q_len * geometry.group).repeat(q_tiles)
    return visible_blocks(
        geometry,
        (requests.q_pos - requests.kv_pos)[records.order].repeat(q_tiles),
        records.kv_len.repeat(q_tiles),
        row,
        np.minimum(packed, row + geometry.tile_q),
    )


def _repeat_sections(
    records: Records, sections: Int64Array, num_heads: int
) -> tuple[Int64Array, Int64Array]:
    """(index of its query tile, heads) of every run: each record's tiles once per section."""
    q_tiles = records.q_tiles
    pair_record = np.arange(sections.size).repeat(sections)
    section = np.arange(pair_record.size) - (sections.cumsum() - sections)[pair_record]
    section_heads = records.section_heads[pair_record]
    pair_heads = np.minimum(section_heads, num_heads - section * section_heads)
    runs = q_tiles[pair_record]
    first: Int64Array = (np.cumsum(q_tiles) - q_tiles)[pair_record]
    begin: Int64Array = np.cumsum(runs) - runs
    source: Int64Array = (first - begin).repeat(runs)
    source += np.arange(source.size)
    return source, pair_heads.repeat(runs)
