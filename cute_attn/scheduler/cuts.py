"""The stream-K half of a plan: how the line of tiles is shared out and where it is cut.

The line is cut so that every block that takes part ends at the same cost, given what it already
has ("water filling" with a minimal share). A cut that would leave a piece shorter than `min_piece`
KV blocks moves to where it does not. A line of few tiles can also be cut in even pieces, one per
block. All of it is integer arithmetic on arrays of num_blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cute_attn.scheduler.each import BoolArray, Int64Array, most, pick, running_sum
from cute_attn.scheduler.tiles import Records, Runs

_MOST_PIECES = 64
"""Of one tile, where tiles are cut evenly: more are not worth their merge."""


@dataclass(slots=True)
class Cuts:
    """num_blocks + 1 positions on the line; (num_blocks + 1,) int64 each."""

    tile: Int64Array
    block: Int64Array  # KV block of the tile before which the cut lies
    run: Int64Array
    cost: Int64Array  # cost of everything before the cut


@dataclass
class Marks:
    """Where the ideal cuts fall: in tile `local` of `run`, `rest` of its cost after its begin."""

    run: Int64Array
    tile: Int64Array  # first of the run
    begin: Int64Array  # cost of everything before the run
    tile_cost: Int64Array
    local: Int64Array
    rest: Int64Array

    @cached_property
    def past(self) -> BoolArray:
        """Which of them are nearer to the end of the tile than to its begin."""
        return self.rest + self.rest >= self.tile_cost


def share_line(loads: Int64Array, line_cost: int, min_share: int) -> tuple[Int64Array, int]:
    """(num_blocks + 1,) ideal cuts, as cost from the begin of the line; the smallest share.

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
    cuts = np.minimum(running_sum(shares, shares.size), line_cost)
    return cuts, int(level[joined - 1] - filled[joined - 1])


def share_line_equally(num_blocks: int, line_cost: int, min_share: int) -> tuple[Int64Array, int]:
    """`share_line` for blocks without a load and a line that is not empty."""
    if line_cost >= 1 << 46:  # the multiples below may not fit
        return share_line(np.zeros(num_blocks, np.int64), line_cost, min_share)
    joined = num_blocks
    if min_share > 1:  # the most blocks whose share, rounded up, is that much
        joined = max(1, min(num_blocks, (line_cost - 1) // (min_share - 1)))
    share = -(-line_cost // joined)
    cuts = np.arange(0, (num_blocks + 1) * share, share)
    cuts[line_cost // share + 1 :] = line_cost
    return cuts, share


def mark_line(runs: Runs, begin_cost: int, shared: Int64Array) -> Marks:
    """Ideal cuts of the line that begins after `begin_cost` and ends with the last tile.

    Args:
        runs: all tiles.
        begin_cost: cost of the tiles before the line.
        shared: ideal cuts, from `share_line`.
    """
    position = shared + begin_cost if begin_cost else shared
    run = runs.cost_begin[1:-1].searchsorted(position, "right")
    begin, tile_cost = runs.cost_begin[run], runs.tile_cost[run]
    # The very end is the end of the last run's last tile: `local` is then the run's `heads`.
    local, rest = np.divmod(position - begin, tile_cost)
    return Marks(run, runs.tiles_before(run), begin, tile_cost, local, rest)


def cut_between_tiles(marks: Marks) -> Cuts:
    """Moves every cut to the nearest tile boundary."""
    local = marks.local + marks.past
    cost = marks.begin + local * marks.tile_cost
    return Cuts(marks.tile + local, np.zeros(local.size, np.int64), marks.run, cost)


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
    is_past: BoolArray = at > blocks - margin
    is_inside = (at >= margin) > is_past
    short = blocks < 2 * piece
    if np.count_nonzero(short):  # a tile too short to split has its cuts at the nearer end
        is_past = np.where(short, marks.past, is_past)
        is_inside &= ~short
    inside = is_inside.astype(np.int64)
    if near and most(piece) > 1:
        at = np.minimum(np.maximum(at, piece), blocks - piece)
    at *= inside
    local = marks.local + is_past
    cost = marks.begin + local * marks.tile_cost
    cost += inside * fixed
    cost += at * block_cost
    return Cuts(marks.tile + local, at, marks.run, cost)


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
    tried = np.arange(1, min(num_blocks - runs.num_tiles + 1, _MOST_PIECES) + 1)[:, None]
    longest = np.maximum((most(loop) + (tried - 1)) // tried, 1)
    limit = np.maximum(blocks // pick(records.min_piece, runs.records), 1)
    # (tried, runs) pieces per tile, and when the last of them is merged.
    pieces = np.maximum(np.minimum((loop + (longest - 1)) // longest, limit), 1)
    ends = (blocks + (pieces - 1)) // pieces * block_cost + fixed
    merge = pieces * pick(records.merge_cost, runs.records)
    merge += pick(records.partial_cost, runs.records)
    ends += merge * (pieces > 1)
    per_run = heads * pieces
    finish = np.maximum.reduce(ends, axis=1)
    finish[np.add.reduce(per_run, axis=1) > num_blocks] = np.iinfo(np.int64).max
    best = finish.argmin()
    of_tile, per_run = pieces[best], per_run[best]
    if most(of_tile) == 1:
        return None

    # A cut before every piece; the others at the end of the last run.
    begin = running_sum(per_run, per_run.size)
    cuts = per_run.copy()
    cuts[-1] += num_blocks + 1 - begin[-1]
    run = np.arange(per_run.size).repeat(cuts)
    own = np.minimum(np.arange(num_blocks + 1), begin[-1]) - begin[run]
    local, piece = np.divmod(own, of_tile[run])
    at = piece * blocks[run] // of_tile[run]
    cost = runs.cost_begin[run] + local * runs.tile_cost[run]
    cost += (piece > 0) * (fixed[run] + at * pick(block_cost, run))
    return Cuts(runs.tiles_before(run) + local, at, run, cost)


@dataclass(slots=True)
class Slots:
    """Partial slots of a set of cuts, at least one of which lies inside a tile.

    Attributes:
        cut: (inner,) the cuts inside tiles.
        slot: (inner,) slot of the piece after each.
        moved: (inner,) whether anything lies between it and the next cut; None: everywhere.
        split: (inner,) which of the split tiles it is in, counted from 0.
        lead: (split tiles,) the first cut in each.
        first: (split tiles,) first slot of each.
        pieces: (split tiles,) pieces of each.
        count: slots of all.
    """

    cut: Int64Array
    slot: Int64Array
    moved: BoolArray | None
    split: Int64Array
    lead: Int64Array
    first: Int64Array
    pieces: Int64Array
    count: int


def number_slots(cuts: Cuts, *, repeated: bool) -> Slots | None:
    """Numbers the partial slots along the line; None if every cut lies between tiles.

    `repeated`: cuts inside tiles may be those of the blocks before them, which have no share.
    """
    cut = cuts.block.nonzero()[0]
    if cut.size == 0:
        return None
    tile = cuts.tile[cut]
    leads = np.empty(cut.size, np.bool_)
    leads[0] = True
    np.not_equal(tile[1:], tile[:-1], out=leads[1:])
    lead = leads.nonzero()[0]
    leads[0] = False
    split = np.add.accumulate(leads.astype(np.int64))
    # A cut makes one piece more, and the first one in a tile two.
    slot, moved = np.arange(1, cut.size + 1), None
    if repeated:
        cost = cuts.cost[cut]
        moved = np.ones(cut.size, np.bool_)
        np.not_equal(cost[1:], cost[:-1], out=moved[:-1])
        slot[1:] = 1 + np.add.accumulate(moved[:-1], dtype=np.int64)
    slot += split
    count = int(slot[-1]) + 1
    bounds = np.empty(lead.size + 1, np.int64)
    bounds[:-1] = slot[lead] - 1
    bounds[-1] = count
    first = bounds[:-1]
    return Slots(cut, slot, moved, split, cut[lead], first, bounds[1:] - first, count)
