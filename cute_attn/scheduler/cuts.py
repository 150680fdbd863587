"""The stream-K half of a plan: how the line of tiles is shared out and where it is cut.

The line is cut so that every block that takes part ends at the same cost, given what it already
has ("water filling" with a minimal share). A cut that would leave a piece shorter than `min_piece`
KV blocks moves to where it does not. A line of few tiles can also be cut in even pieces, one per
block. All of it is integer arithmetic on arrays of num_blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cute_attn.scheduler.each import BoolArray, Int64Array, pick, running_sum
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
    """Where the ideal cuts fall: in `tile` of `run`, `rest` of its cost after its begin."""

    run: Int64Array
    tile: Int64Array
    begin: Int64Array  # cost of everything before the tile
    rest: Int64Array
    tile_cost: Int64Array
    past: BoolArray  # nearer to the end of the tile than to its begin


def share_line(loads: Int64Array, line_cost: int, min_share: int) -> tuple[Int64Array, int]:
    """(num_blocks + 1,) ideal cuts, as cost from the begin of the line; the smallest share.

    The blocks with the least load take part, as many as can each take at least `min_share` while
    all of them end at the same cost; at least one. The last cuts may lie past the end.
    """
    order = loads.argsort(kind="stable")
    filled = loads[order]
    count = np.arange(1, loads.size + 1)
    level = (filled.cumsum() + count + (line_cost - 1)) // count
    # level - filled falls with every block that joins, so the true ones are a prefix.
    joined = max(1, int(np.count_nonzero(level - filled >= min_share)))
    shares = np.zeros(loads.size, np.int64)
    shares[order[:joined]] = level[joined - 1] - filled[:joined]
    return running_sum(shares, shares.size), int(level[joined - 1] - filled[joined - 1])


def share_line_equally(num_blocks: int, line_cost: int, min_share: int) -> tuple[Int64Array, int]:
    """`share_line` for blocks without a load and a line that is not empty."""
    if line_cost >= 1 << 46:  # the multiples below may not fit
        return share_line(np.zeros(num_blocks, np.int64), line_cost, min_share)
    joined = num_blocks
    if min_share > 1:  # the most blocks whose share, rounded up, is that much
        joined = max(1, min(num_blocks, (line_cost - 1) // (min_share - 1)))
    share = -(-line_cost // joined)
    return np.arange(0, (num_blocks + 1) * share, share), share


def mark_line(runs: Runs, begin_cost: int, shared: Int64Array) -> Marks:
    """Ideal cuts of the line that begins after `begin_cost` and ends with the last tile.

    Args:
        runs: all tiles.
        begin_cost: cost of the tiles before the line.
        shared: ideal cuts, from `share_line`.
    """
    position = np.minimum(shared + begin_cost if begin_cost else shared, runs.total_cost)
    run = runs.cost_begin[1:-1].searchsorted(position, "right")
    tile_cost = runs.tile_cost[run]
    # The very end is the end of the last run's last tile: `local` is then the run's `heads`.
    local, rest = np.divmod(position - runs.cost_begin[run], tile_cost)
    past = rest + rest >= tile_cost
    return Marks(run, runs.tiles_before(run) + local, position - rest, rest, tile_cost, past)


def cut_between_tiles(marks: Marks) -> Cuts:
    """Moves every cut to the nearest tile boundary."""
    cost = marks.begin + marks.past * marks.tile_cost
    return Cuts(marks.tile + marks.past, np.zeros(cost.size, np.int64), marks.run, cost)


def cut_anywhere(records: Records, runs: Runs, marks: Marks, fixed: int, *, near: bool) -> Cuts:
    """Cuts inside tiles, but leaves no piece too short.

    Args:
        records, runs: all requests and tiles.
        marks: ideal cuts.
        fixed: cost of a tile beside its KV blocks.
        near: a cut too close to a tile boundary goes to the nearer of the boundary and `min_piece`
            away from it; only sound if every share is at least twice the longest `min_piece`.
            Otherwise it goes to the boundary.
    """
    blocks, block_cost = runs.blocks[marks.run], runs.of_records(records.block_cost, marks.run)
    at = (marks.rest + (block_cost // 2 - fixed)) // block_cost  # nearest; negative: in `fixed`
    piece = runs.of_records(records.min_piece, marks.run)
    margin = (piece + 1) // 2 if near else piece
    last = blocks - piece
    long = last >= piece
    over = at > blocks - margin
    inside = (at >= margin) & ~over & long
    # A tile too short to split has its cuts at the nearer end.
    past: BoolArray = np.where(long, over, marks.past)
    if near:
        at = np.minimum(np.maximum(at, piece), last)
    at *= inside
    cost = marks.begin + past * marks.tile_cost
    cost += at * block_cost
    cost += inside * fixed
    return Cuts(marks.tile + past, at, marks.run, cost)


def cut_evenly(records: Records, runs: Runs, num_blocks: int) -> Cuts | None:
    """Cuts each tile in pieces of equal length, for one block each: no block has two pieces.

    Tries how many pieces the dearest tile should have; the others get pieces that cost no more. The
    best number balances the pieces' length against their merge.

    Returns:
        The cuts, or None if there are too many tiles, or no tile is worth cutting.
    """
    if 2 * runs.num_tiles > num_blocks:
        return None
    blocks, heads = runs.blocks, runs.heads
    block_cost = pick(records.block_cost, runs.records)
    loop = blocks * block_cost
    fixed = runs.tile_cost - loop
    dearest = int(loop.max())
    tried = np.arange(1, min(num_blocks - runs.num_tiles + 1, _MOST_PIECES) + 1)[:, None]
    longest = np.maximum((dearest + (tried - 1)) // tried, 1)
    most = np.maximum(blocks // pick(records.min_piece, runs.records), 1)
    # (tried, runs) pieces per tile, and when the last of them is merged.
    pieces = np.maximum(np.minimum((loop + (longest - 1)) // longest, most), 1)
    ends = (blocks + (pieces - 1)) // pieces * block_cost + fixed
    merge = pieces * pick(records.merge_cost, runs.records)
    merge += pick(records.partial_cost, runs.records)
    ends += merge * (pieces > 1)
    finish = ends.max(axis=1)
    finish[(heads * pieces).sum(axis=1) > num_blocks] = np.iinfo(np.int64).max
    best = int(finish.argmin())
    of_run = pieces[best]
    if int(of_run.max()) == 1:
        return None

    per_run = heads * of_run
    run = np.arange(per_run.size).repeat(per_run)
    own = np.arange(run.size) - (per_run.cumsum() - per_run)[run]
    local, piece = own // of_run[run], own % of_run[run]
    at = piece * blocks[run] // of_run[run]
    cost = runs.cost_begin[run] + local * runs.tile_cost[run]
    cost += (piece > 0) * (fixed[run] + at * pick(block_cost, run))
    unused = num_blocks + 1 - run.size
    end = (runs.num_tiles, 0, per_run.size - 1, runs.total_cost)
    tile, at, run, cost = (
        np.concatenate((begins, np.full(unused, value)))
        for begins, value in zip((runs.tiles_before(run) + local, at, run, cost), end, strict=True)
    )
    return Cuts(tile, at, run, cost)


@dataclass
class Slots:
    """Partial slots of a set of cuts.

    Attributes:
        inner: (num_blocks + 1,) whether the cut lies inside a tile.
        leads: (num_blocks + 1,) whether it does as the first one in its tile.
        moved: (num_blocks,) whether anything lies between the cut and the next one.
        slot: (num_blocks + 1,) slot of the piece after each cut, -1 for a cut between tiles.
        cut: first cut of each split tile.
        first: first slot of each split tile.
        pieces: pieces of each split tile.
        count: slots of all.
    """

    inner: BoolArray
    leads: BoolArray
    moved: BoolArray
    slot: Int64Array
    cut: Int64Array
    first: Int64Array
    pieces: Int64Array
    count: int


def number_slots(cuts: Cuts) -> Slots:
    """Numbers the partial slots along the line."""
    inner = cuts.block > 0
    moved = cuts.cost[1:] > cuts.cost[:-1]
    leads = inner.copy()
    leads[1:] &= (cuts.tile[1:] > cuts.tile[:-1]) | ~inner[:-1]
    # Blocks without a share repeat a cut. The first cut in a tile makes two pieces, every further
    # one makes one.
    made = inner.astype(np.int64)
    made[1:] *= moved
    made += leads
    np.add.accumulate(made, out=made)
    cut = leads.nonzero()[0]
    ends = made[cut]
    count = int(made[-1])
    pieces = np.empty_like(ends)
    if cut.size:
        np.subtract(ends[1:], ends[:-1], out=pieces[:-1])
        pieces[-1] = count - ends[-1] + 2
    return Slots(inner, leads, moved, made * inner - 1, cut, ends - 2, pieces, count)
