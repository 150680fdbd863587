"""The tiles of a batch in plan order, as runs of equal tiles.

A *run* is one query tile of one request under the KV heads of one section: neighbouring tiles with
the same cost. Planning works on runs (a decode batch has one per request), never on a Python loop.
What all records or runs have in common, which is most of it where requests have one query tile
each, is one int.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cute_attn.abi import UNBOUNDED
from cute_attn.abi.plan import MAX_SECTION_HEADS
from cute_attn.scheduler.batch import Geometry, RequestBatch
from cute_attn.scheduler.cost import CostModel, shortest_piece
from cute_attn.scheduler.decode import DecodeCosts
from cute_attn.scheduler.each import (
    Each,
    Int64Array,
    least,
    most,
    pick,
    running_sum,
    spread,
    total,
)
from cute_attn.scheduler.visits import Visits

_RADIX_SORT = 256  # requests from which it is the faster one


def last_tile_blocks(
    geometry: Geometry, requests: RequestBatch, row: Each, row_end: Each
) -> Int64Array:
    """KV blocks of each request's last tile, of packed query rows [row, row_end)."""
    if requests.aligned and geometry.window_left == UNBOUNDED:  # it sees all keys
        return -(requests.kv_len // -geometry.tile_kv)
    shift, see_last = requests.q_pos - requests.kv_pos, requests.aligned
    return visible_blocks(geometry, shift, requests.kv_len, row, row_end, see_last=see_last)


def visible_blocks(
    geometry: Geometry,
    shift: Int64Array,
    kv_len: Int64Array,
    row: Each,
    row_end: Each,
    *,
    see_last: bool = False,
) -> Int64Array:
    """KV blocks that tiles of packed query rows [row, row_end) have to visit.

    The array form of `cute_attn.abi.kv_block_range`; `shift` is q_pos - kv_pos. `see_last`: the
    last row of each tile is known to be no earlier than the last key.
    """
    group, tile_kv = geometry.group, geometry.tile_kv
    high = kv_len
    if geometry.window_right != UNBOUNDED and not see_last:
        last = shift + ((row_end - 1) // group + (geometry.window_right + 1))
        high = np.maximum(np.minimum(last, kv_len), 0)
    blocks = (high + (tile_kv - 1)) // tile_kv
    if geometry.window_left == UNBOUNDED:
        return blocks
    low = np.maximum(shift + (row // group - geometry.window_left), 0)
    return np.where(high > low, blocks - low // tile_kv, 0)


@dataclass(slots=True)
class Records:
    """Requests in plan order: most expensive tile first, ties by index, empty requests last. Where
    the tiles of a KV head read the same keys (`Geometry.by_head`), so for each head."""

    order: Int64Array  # caller's index of each record
    ids: Int64Array  # what the kernels call it
    table: Int64Array  # (6, num_requests), as in the batch
    q_tiles: Each  # per KV head
    last_blocks: Int64Array  # KV blocks of the tile with the last query rows
    block_cost: Each
    partial_cost: Each  # of writing one partial result of a tile
    merge_cost: Each  # of reading it again
    min_piece: Each  # no piece of a split tile is shorter than this many KV blocks
    section_heads: Each
    most_q_tiles: int
    visits: Visits | None  # where a mask empties KV blocks
    by_head: bool = False

    @property
    def count(self) -> int:
        return self.order.size


@dataclass(slots=True)
class Runs:
    """Runs in plan order; arrays are (num_runs,) int64, prefix sums one longer."""

    records: Int64Array | slice  # a slice: run i is all of record i
    heads: Each  # tiles in the run
    blocks: Int64Array  # KV blocks of each of its tiles
    tile_cost: Int64Array
    tile_begin: Int64Array | None  # prefix sum of tiles; None where all runs have as many
    cost_begin: Int64Array  # prefix sum of cost
    num_tiles: int
    total_cost: int

    def tiles_before(self, run: Int64Array) -> Int64Array:
        """Tiles before some runs."""
        return run * self.heads if self.tile_begin is None else self.tile_begin[run]

    def tile_costs(self) -> Int64Array:
        """(num_tiles,) cost of each tile."""
        one = not isinstance(self.heads, np.ndarray) and self.heads == 1
        return self.tile_cost if one else self.tile_cost.repeat(self.heads)

    def largest(self, values: Int64Array) -> int:
        """The largest of `blocks` or `tile_cost`; there is one."""
        # Where runs are records, both fall.
        return int(values[0]) if isinstance(self.records, slice) else most(values)

    def shortest(self, run: Int64Array) -> int:
        """The fewest KV blocks of a tile in some runs, which do not fall; at least one."""
        if isinstance(self.records, slice):
            return int(self.blocks[run[-1]])
        return least(self.blocks[run])

    def records_of(self, run: Int64Array) -> Int64Array:
        """The records of some runs."""
        return run if isinstance(self.records, slice) else self.records[run]

    def of_records(self, values: Each, run: Int64Array, which: Int64Array | None = None) -> Each:
        """Values of the records of some runs; `which` of those."""
        if not isinstance(values, np.ndarray):
            return values
        return values[self.records_of(run if which is None else run[which])]


def sort_requests(
    requests: RequestBatch,
    geometry: Geometry,
    cost: CostModel,
    l2_budget: int,
    min_piece: int | None,
    visits: Visits | None = None,
) -> Records:
    """Sorts requests by the cost of the tile with the last query rows, descending.

    `min_piece` None: as `shortest_piece` says. `visits`: KV blocks that tiles visit, if those are
    not all within the band.
    """
    q_len = requests.equal_q_len
    one_section = geometry.num_kv_heads <= MAX_SECTION_HEADS
    by_head = geometry.by_head(requests)
    if one_section and 0 < q_len * geometry.group <= geometry.tile_q and not by_head:
        return _sort_decodes(requests, geometry, cost, q_len, min_piece, visits)

    tile_q, heads = geometry.tile_q, geometry.num_kv_heads
    packed = requests.q_len * geometry.group
    q_tiles = (packed + (tile_q - 1)) // tile_q
    most_q_tiles = most(q_tiles)
    last_row = np.maximum(q_tiles - 1, 0) * tile_q
    if visits is None:
        blocks = last_tile_blocks(geometry, requests, last_row, packed)
    else:
        blocks = visits.of_last_tiles()
    if by_head:  # the L2 has the keys
        block_cost: Each = cost.block(geometry, 1, read_block=0)
    else:
        block_cost = _block_cost(requests, geometry, cost, blocks, q_tiles, most_q_tiles, visits)
    tile_cost = blocks * block_cost if isinstance(block_cost, np.ndarray) else blocks
    order = _falling((tile_cost + 1) * (q_tiles > 0))
    if by_head:
        ids = order if requests.ids is None else requests.ids[order]
        head = np.where(q_tiles[order] > 0, ids % geometry.heads_in_ids, geometry.heads_in_ids)
        order = order[head.argsort(kind="stable")]

    q_tiles, rows = q_tiles[order], np.minimum(packed, tile_q)[order]
    block_cost = pick(block_cost, order)
    table = requests.table.take(order, axis=1)
    # Tiles of one query tile have no KV to share: all their heads are one section.
    fit: Each = heads
    if most_q_tiles > 1 or not one_section:
        most_heads = min(heads, MAX_SECTION_HEADS)
        shared = l2_budget // np.maximum(table[3] * cost.key_bytes, 1)
        fit = np.where(q_tiles > 1, np.maximum(np.minimum(shared, most_heads), 1), most_heads)
    sections = (fit + (heads - 1)) // fit
    partial_cost = rows * cost.partial_row_ps // 1000
    return Records(
        order=order,
        ids=order if requests.ids is None else requests.ids[order],
        table=table,
        q_tiles=q_tiles,
        last_blocks=blocks[order],
        block_cost=block_cost,
        partial_cost=partial_cost,
        merge_cost=rows * cost.merge_row_ps // 1000,
        min_piece=min_piece or shortest_piece(geometry, partial_cost, block_cost),
        section_heads=(sections + (heads - 1)) // sections,
        most_q_tiles=most_q_tiles,
        visits=visits,
        by_head=by_head,
    )


def _sort_decodes(
    requests: RequestBatch,
    geometry: Geometry,
    cost: CostModel,
    q_len: int,
    min_piece: int | None,
    visits: Visits | None,
) -> Records:
    """`sort_requests` where each request has `q_len` query tokens, in one query tile."""
    costs = DecodeCosts.of(geometry, cost, q_len)
    if visits is None:
        blocks = last_tile_blocks(geometry, requests, 0, q_len * geometry.group)
    else:
        blocks = visits.blocks
    order = _falling(blocks)
    return Records(
        order=order,
        ids=order if requests.ids is None else requests.ids[order],
        table=requests.table.take(order, axis=1),
        q_tiles=1,
        last_blocks=blocks[order],
        block_cost=costs.block_cost,
        partial_cost=costs.partial_cost,
        merge_cost=costs.merge_cost,
        min_piece=min_piece or costs.min_piece,
        section_heads=geometry.num_kv_heads,
        most_q_tiles=1,
        visits=visits,
    )


def _block_cost(
    requests: RequestBatch,
    geometry: Geometry,
    cost: CostModel,
    blocks: Int64Array,
    q_tiles: Each,
    most_q_tiles: int,
    visits: Visits | None,
) -> Each:
    """Cost of a KV block of each request; `blocks`: of the tile with the last query rows."""
    if most_q_tiles <= 1:
        return cost.block(geometry, 1)
    read_block = None
    if np.count_nonzero(q_tiles == 1):
        # Between the first and the last query tile the visible range grows evenly.
        if visits is None:
            shift, row_end = requests.q_pos - requests.kv_pos, requests.q_len * geometry.group
            row_end = np.minimum(row_end, geometry.tile_q)
            first = visible_blocks(geometry, shift, requests.kv_len, 0, row_end)
        else:
            first = visits.of_first_tiles()
        tall = q_tiles * (q_tiles > 1)
        computed = int(tall @ (first + blocks)) // 2
        read_block = cost.read_block_in_step(geometry, total(blocks, blocks.size), computed)
    return cost.block(geometry, q_tiles, read_block)


def _falling(values: Int64Array) -> Int64Array:
    """Their order from the largest to the smallest, equal ones by index; none is negative."""
    if values.size >= _RADIX_SORT and most(values) < 1 << 16:
        return (~values.astype(np.uint16)).argsort(kind="stable")  # a radix sort
    return (-values).argsort(kind="stable")


def make_runs(records: Records, geometry: Geometry, item: int) -> Runs:
    """Runs of all records: sections of KV heads; in a section the last query tile first.

    `item`: cost of an item beside its KV blocks.
    """
    num_heads, q_tiles = geometry.num_kv_heads, records.q_tiles
    owner: Int64Array | slice
    heads: Each = num_heads
    if records.most_q_tiles <= 1 and num_heads <= MAX_SECTION_HEADS and not records.by_head:
        # One run per request that has queries; those without are last.
        count = total(q_tiles, records.count)
        owner = slice(count)
        blocks = records.last_blocks[:count]
        tile_cost = blocks * records.block_cost + item
    else:
        section_heads = spread(records.section_heads, records.count)
        sections = (section_heads + (num_heads - 1)) // section_heads
        owner = np.arange(records.count).repeat(q_tiles * sections)
        q_tiles = spread(q_tiles, records.count)
        blocks = _blocks_of_tiles(records, q_tiles, geometry)
        block_cost = spread(records.block_cost, records.count)
        tile_cost = blocks * block_cost.repeat(q_tiles) + item
        if most(sections) > 1:
            source, heads = _repeat_sections(q_tiles, sections, section_heads, num_heads)
            blocks, tile_cost = blocks[source], tile_cost[source]
    tile_begin = running_sum(heads, blocks.size) if isinstance(heads, np.ndarray) else None
    one = tile_begin is None and heads == 1
    run_cost = tile_cost if one else heads * tile_cost
    cost_begin = running_sum(run_cost, blocks.size)
    return Runs(
        owner,
        heads,
        blocks,
        tile_cost,
        tile_begin,
        cost_begin,
        num_tiles=total(heads, blocks.size),
        total_cost=int(cost_begin[-1]),
    )


def _blocks_of_tiles(records: Records, q_tiles: Int64Array, geometry: Geometry) -> Int64Array:
    """KV blocks of each (record, query tile), query tiles downwards."""
    if records.visits is not None:
        return records.visits.of_tiles_downwards(records.order)
    _, q_len, _, kv_len, q_pos, kv_pos = records.table
    ends = q_tiles.cumsum().repeat(q_tiles)
    row = (ends - np.arange(1, ends.size + 1)) * geometry.tile_q
    packed = (q_len * geometry.group).repeat(q_tiles)
    return visible_blocks(
        geometry,
        (q_pos - kv_pos).repeat(q_tiles),
        kv_len.repeat(q_tiles),
        row,
        np.minimum(packed, row + geometry.tile_q),
    )


def _repeat_sections(
    q_tiles: Int64Array, sections: Int64Array, section_heads: Int64Array, num_heads: int
) -> tuple[Int64Array, Each]:
    """(index of its query tile, heads) of every run: each record's tiles once per section."""
    pair_record = np.arange(sections.size).repeat(sections)
    section = np.arange(pair_record.size) - (sections.cumsum() - sections)[pair_record]
    most_heads = section_heads[pair_record]
    pair_heads = np.minimum(most_heads, num_heads - section * most_heads)
    runs = q_tiles[pair_record]
    first: Int64Array = (np.cumsum(q_tiles) - q_tiles)[pair_record]
    begin: Int64Array = np.cumsum(runs) - runs
    source: Int64Array = (first - begin).repeat(runs)
    source += np.arange(source.size)
    alike = pair_heads.size and int(pair_heads.min()) == int(pair_heads.max())
    return source, int(pair_heads[0]) if alike else pair_heads.repeat(runs)
