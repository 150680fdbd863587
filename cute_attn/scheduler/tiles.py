"""The tiles of a batch in plan order, as runs of equal tiles.

A *run* is one query tile of one request under the KV heads of one section: neighbouring tiles with
the same cost. Planning works on runs (a decode batch has one per request), never on a Python loop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cute_attn.abi import UNBOUNDED
from cute_attn.scheduler.batch import Geometry, Int64Array, RequestBatch, section_heads
from cute_attn.scheduler.cost import CostModel


def _cdiv(a: Int64Array, b: int) -> Int64Array:
    return np.asarray(-(-a // b), np.int64)


def visible_blocks(
    geometry: Geometry, shift: Int64Array, kv_len: Int64Array, row: Int64Array, rows: Int64Array
) -> Int64Array:
    """KV blocks that tiles [row, row + rows) of packed query rows have to visit.

    The array form of `cute_attn.abi.kv_block_range`; `shift` is q_pos - kv_pos.
    """
    group, tile_kv = geometry.group, geometry.tile_kv
    if geometry.window_right == UNBOUNDED:
        high = kv_len
    else:
        last = (row + rows - 1) // group + (shift + (geometry.window_right + 1))
        high = np.minimum(last, kv_len)
    if geometry.window_left == UNBOUNDED:
        return _cdiv(np.maximum(high, 0), tile_kv)
    low = np.maximum(row // group + (shift - geometry.window_left), 0)
    return np.where(high > low, _cdiv(high, tile_kv) - low // tile_kv, 0)


@dataclass
class Records:
    """Requests in plan order: most expensive tile first, ties by index, empty requests last.

    All arrays are (num_requests,) int64.
    """

    order: Int64Array  # caller's index of each record
    q_len: Int64Array
    kv_len: Int64Array
    shift: Int64Array  # q_pos - kv_pos
    q_tiles: Int64Array  # per KV head
    block_cost: Int64Array
    section_heads: Int64Array


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


def sort_requests(
    requests: RequestBatch, geometry: Geometry, cost: CostModel, l2_budget: int
) -> Records:
    """Sorts requests by the cost of the tile with the last query rows, descending."""
    tile_q = geometry.tile_q
    packed = requests.q_len * geometry.group
    q_tiles = _cdiv(packed, tile_q)
    shift = requests.q_pos - requests.kv_pos
    last_row = np.maximum(q_tiles - 1, 0) * tile_q
    blocks = visible_blocks(geometry, shift, requests.kv_len, last_row, packed - last_row)
    block_cost = cost.block(geometry, q_tiles)
    longest = np.where(packed > 0, blocks * block_cost, -1)
    order = np.argsort(-longest, kind="stable")

    heads = geometry.num_kv_heads
    if int(q_tiles.max(initial=0)) <= 1:  # nothing to share: all heads side by side
        fit = np.full(order.size, heads, np.int64)
    else:
        head_bytes = np.maximum(requests.kv_len * cost.key_bytes, 1)
        fit = np.where(q_tiles <= 1, heads, l2_budget // head_bytes)
    return Records(
        order=order,
        q_len=requests.q_len[order],
        kv_len=requests.kv_len[order],
        shift=shift[order],
        q_tiles=q_tiles[order],
        block_cost=block_cost[order],
        section_heads=section_heads(heads, fit[order]),
    )


def make_runs(records: Records, geometry: Geometry, cost: CostModel) -> Runs:
    """Runs of all records: sections of KV heads; in a section the last query tile first."""
    q_tiles, num_heads = records.q_tiles, geometry.num_kv_heads
    index = np.arange(q_tiles.size)

    # One entry per (record, query tile), query tiles downwards.
    ends = np.cumsum(q_tiles)
    begins = ends - q_tiles
    count = int(ends[-1]) if ends.size else 0
    record = np.repeat(index, q_tiles)
    row = (ends[record] - 1 - np.arange(count)) * geometry.tile_q
    rows = np.minimum(records.q_len[record] * geometry.group - row, geometry.tile_q)
    blocks = visible_blocks(geometry, records.shift[record], records.kv_len[record], row, rows)

    sections = -(-num_heads // records.section_heads)
    if int(sections.max(initial=1)) == 1:
        heads = np.full(count, num_heads, np.int64)
    else:
        # Repeat each record's query tiles once per section.
        pair_record = np.repeat(index, sections)
        first = np.arange(pair_record.size) - np.repeat(np.cumsum(sections) - sections, sections)
        first *= records.section_heads[pair_record]
        pair_heads = np.minimum(records.section_heads[pair_record], num_heads - first)
        pair_runs = q_tiles[pair_record]
        pair_ends = np.cumsum(pair_runs)
        source = np.repeat(begins[pair_record] - (pair_ends - pair_runs), pair_runs)
        source += np.arange(source.size)
        record, blocks = record[source], blocks[source]
        heads = np.repeat(pair_heads, pair_runs)

    block_cost = records.block_cost[record]
    tile_cost = blocks * block_cost + cost.tile_ns
    tile_begin = np.zeros(heads.size + 1, np.int64)
    cost_begin = np.zeros(heads.size + 1, np.int64)
    np.cumsum(heads, out=tile_begin[1:])
    np.cumsum(heads * tile_cost, out=cost_begin[1:])
    return Runs(record, heads, blocks, block_cost, tile_cost, tile_begin, cost_begin)
