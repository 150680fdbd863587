"""The stream-K half of a plan: how the line of tiles is shared out and where it is cut.

The line is cut so that every block that takes part ends at the same cost, given what it already
has ("water filling" with a minimal share). A cut that would leave a piece shorter than `min_piece`
KV blocks moves to where it does not. A line of few tiles can also be cut in even pieces, one per
block. All of it is integer arithmetic on arrays of num_blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cute_attn.scheduler.batch import Int64Array
from cute_attn.scheduler.tiles import Records, Runs

_MOST_PIECES = 64
"""Of one tile, where tiles are cut evenly: more are not worth their merge."""


@dataclass
class Cuts:
    """num_blocks + 1 positions on the line; (num_blocks + 1,) int64 each."""

    tile: Int64Array
    block: Int64Array  # KV block of the tile before which the cut lies
    run: Int64Array
    cost: Int64Array  # cost of everything before the cut


@dataclass
class Marks:
    """Where the ideal cuts fall: in tile `local` of a run, `rest` of its cost after its begin."""

    run: Int64Array
    local: Int64Array
    rest: Int64Array
    heads: Int64Array
    blocks: Int64Array
    block_cost: Int64Array
    tile_cost: Int64Array


def line_shares(loads: Int64Array, line_cost: int, min_share: int) -> tuple[Int64Array, int]:
    """Cost of the line that each block takes, and the smallest share handed out.

    The blocks with the least load take part, as many as can each take at least `min_share` while
    all of them end at the same cost; at least one.
    """
    order = loads.argsort(kind="stable")
    filled = loads[order]
    count = np.arange(1, loads.size + 1)
    level = (filled.cumsum() + count + (line_cost - 1)) // count
    # level - filled falls with every block that joins, so the true ones are a prefix.
    joined = max(1, int(np.count_nonzero(level - filled >= min_share)))
    shares = np.zeros(loads.size, np.int64)
    shares[order[:joined]] = level[joined - 1] - filled[:joined]
    return shares, int(level[joined - 1] - filled[joined - 1])


def mark_line(runs: Runs, begin_cost: int, shares: Int64Array) -> Marks:
    """Ideal cuts of the line that begins after `begin_cost` and ends with the last tile.

    Args:
        runs: all tiles.
        begin_cost: cost of the tiles before the line.
        shares: (num_blocks,) cost per block; their sum reaches the end of the line.
    """
    position = np.empty(shares.size + 1, np.int64)
    position[0] = begin_cost
    shares.cumsum(out=position[1:])
    position[1:] += begin_cost
    np.minimum(position, runs.total_cost, out=position)
    run = runs.cost_begin[1:-1].searchsorted(position, side="right")
    heads, tile_cost = runs.heads[run], runs.tile_cost[run]
    rest = position - runs.cost_begin[run]
    local = np.minimum(rest // tile_cost, heads)
    rest -= local * tile_cost
    return Marks(run, local, rest, heads, runs.blocks[run], runs.block_cost[run], tile_cost)


def cut_between_tiles(runs: Runs, marks: Marks) -> Cuts:
    """Moves every cut to the nearest tile boundary."""
    local = np.minimum(marks.local + (2 * marks.rest >= marks.tile_cost), marks.heads)
    zeros = np.zeros_like(local)
    cost: Int64Array = local * marks.tile_cost
    cost += runs.cost_begin[marks.run]
    return Cuts(runs.tile_begin[marks.run] + local, zeros, marks.run, cost)


def cut_anywhere(runs: Runs, marks: Marks, min_piece: Int64Array, *, near: bool) -> Cuts:
    """Cuts inside tiles, but leaves no piece too short.

    Args:
        min_piece: (num_requests,) least KV blocks of a piece, by record.
        near: a cut too close to a tile boundary goes to the nearer of the boundary and `min_piece`
            away from it; only sound if every share is at least twice the longest `min_piece`.
            Otherwise it goes to the boundary.
    """
    blocks, block_cost, rest = marks.blocks, marks.block_cost, marks.rest
    fixed = marks.tile_cost - blocks * block_cost
    at = (rest - fixed + block_cost // 2) // block_cost  # nearest KV block; negative: in `fixed`
    piece = min_piece[runs.record[marks.run]]
    last = blocks - piece
    if near:
        margin = (piece + 1) // 2
        at += (at >= margin) * np.maximum(piece - at, 0)
        at -= (blocks - at >= margin) * np.maximum(at - last, 0)
    inside = (at >= piece) & (at <= last)
    # A tile too short to split has its cuts at the nearer end.
    past = np.where(last >= piece, at > last, 2 * rest >= marks.tile_cost)
    at *= inside
    local = np.minimum(marks.local + past, marks.heads)
    cost: Int64Array = local * marks.tile_cost
    cost += runs.cost_begin[marks.run]
    cost += inside * (fixed + at * block_cost)
    return Cuts(runs.tile_begin[marks.run] + local, at, marks.run, cost)


def cut_evenly(records: Records, runs: Runs, num_blocks: int) -> Cuts | None:
    """Cuts each tile in pieces of equal length, for one block each: no block has two pieces.

    Tries how many pieces the dearest tile should have; the others get pieces that cost no more. The
    best number balances the pieces' length against their merge.

    Returns:
        The cuts, or None if there are too many tiles, or no tile is worth cutting.
    """
    if 2 * runs.num_tiles > num_blocks:
        return None
    record, blocks = runs.record, runs.blocks
    loop = blocks * runs.block_cost
    fixed = runs.tile_cost - loop
    dearest = int(loop.max())
    tried = np.arange(1, min(num_blocks - runs.num_tiles + 1, _MOST_PIECES) + 1)
    longest = np.maximum((dearest + (tried - 1)) // tried, 1)
    most = np.maximum(blocks // records.min_piece[record], 1)
    # (runs, tried) pieces per tile, and when the last of them is merged.
    pieces = np.minimum((loop[:, None] + (longest - 1)) // longest, most[:, None])
    pieces = np.maximum(pieces, 1)
    ends = (blocks[:, None] + (pieces - 1)) // pieces * runs.block_cost[:, None] + fixed[:, None]
    merge = records.partial_cost[record][:, None] + pieces * records.merge_cost[record][:, None]
    ends += merge * (pieces > 1)
    finish = ends.max(axis=0)
    finish[runs.heads @ pieces > num_blocks] = np.iinfo(np.int64).max
    best = int(finish.argmin())
    if int(pieces[:, best].max()) == 1:
        return None

    of_run = pieces[:, best]
    per_run = runs.heads * of_run
    run = np.arange(per_run.size).repeat(per_run)
    own = np.arange(run.size) - (per_run.cumsum() - per_run)[run]
    local, piece = own // of_run[run], own % of_run[run]
    at = piece * blocks[run] // of_run[run]
    cost = runs.cost_begin[run] + local * runs.tile_cost[run]
    cost += (piece > 0) * (fixed[run] + at * runs.block_cost[run])
    unused = num_blocks + 1 - run.size
    end = (runs.num_tiles, 0, per_run.size - 1, runs.total_cost)
    tile, at, run, cost = (
        np.concatenate((begins, np.full(unused, value)))
        for begins, value in zip((runs.tile_begin[run] + local, at, run, cost), end, strict=True)
    )
    return Cuts(tile, at, run, cost)


def number_slots(cuts: Cuts) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Partial slots of a set of cuts.

    Returns:
        slot: (num_blocks + 1,) slot of the piece after each cut, -1 for a cut between tiles.
        first: indices of the cuts that are the first in their tile.
        pieces: pieces of each split tile.
    """
    inner = cuts.block > 0
    first = inner.copy()
    first[1:] &= (cuts.tile[1:] != cuts.tile[:-1]) | ~inner[:-1]
    fresh = first.copy()  # cuts at different places; blocks without a share repeat a cut
    fresh[1:] |= inner[1:] & (cuts.block[1:] != cuts.block[:-1])
    # The first cut in a tile makes two pieces, every further one makes one.
    slot = np.where(inner, (fresh.astype(np.int64) + first).cumsum() - 1, -1)
    where = first.nonzero()[0]
    if where.size == 0:
        return slot, where, where
    begins = slot[where] - 1
    pieces = np.empty_like(begins)
    pieces[:-1] = begins[1:] - begins[:-1]
    pieces[-1] = int(slot.max()) + 1 - begins[-1]
    return slot, where, pieces
