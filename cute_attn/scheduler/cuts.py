"""The stream-K half of a plan: how the line of tiles is shared out and where it is cut.

The line is cut so that every block that takes part ends at the same cost, given what it already
has ("water filling" with a minimal share). A cut that would leave a piece shorter than `min_piece`
KV blocks moves to where it does not. A line of few tiles can also be cut in even pieces, one per
block. All of it is integer arithmetic on arrays of num_blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cute_attn.scheduler.each import BoolArray, Each, Int64Array, most, numbers, pick, running_sum
from cute_attn.scheduler.tiles import Records, Runs

_MOST_PIECES = 64
"""Of one tile, where tiles are cut evenly: more are not worth their merge."""
_INT64_MAX = (1 << 63) - 1
_LOOKED_AT = 4
"""Blocks; of the first ones, which have the longest tiles, one mostly ends late enough."""


@dataclass(slots=True)
class Cuts:
    """num_blocks + 1 positions on the line; (num_blocks + 1,) int64 each."""

    tile: Int64Array
    block: Int64Array  # KV block of the tile before which the cut lies
    run: Int64Array
    begin: Int64Array  # cost of everything before the tile


@dataclass(slots=True)
class Marks:
    """Where the ideal cuts fall; costs are from the begin of the first tile."""

    position: Int64Array  # as cost
    run: Int64Array
    begin: Int64Array  # of the run
    tile_cost: Int64Array

    def moved(self, shift: Each) -> tuple[Int64Array, Int64Array, Int64Array]:
        """After a move by `shift`, at most a tile: which tile of its run each lies in, how much of
        the tile's cost lies before it, and where the tile begins.

        The very end is the end of the last run's last tile, which has the number of the run's
        tiles. So has a mark that moves beyond its run.
        """
        position = self.position + shift
        local, rest = np.divmod(position - self.begin, self.tile_cost)
        position -= rest
        return local, rest, position


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
    cuts = numbers(num_blocks + 1) * share
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
    return Marks(position, run, runs.cost_begin[run], runs.tile_cost[run])


def cut_between_tiles(runs: Runs, marks: Marks) -> Cuts:
    """Moves every cut to the nearest tile boundary."""
    tile, _, begin = marks.moved(marks.tile_cost // 2)
    tile += runs.tiles_before(marks.run)
    return Cuts(tile, np.zeros(tile.size, np.int64), marks.run, begin)


def cost_between_tiles(marks: Marks) -> int:
    """No more than the busiest block costs with `cut_between_tiles`: as much as one of the first
    few does, on a line from the first tile on."""
    busiest = before = 0
    some = slice(1, 1 + _LOOKED_AT)
    arrays = (marks.position, marks.begin, marks.tile_cost)
    for position, begin, tile_cost in zip(*(x[some].tolist() for x in arrays), strict=True):
        cost = begin + (position - begin + tile_cost // 2) // tile_cost * tile_cost
        busiest = max(busiest, cost - before)
        before = cost
    return busiest


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
    block_cost = runs.of_records(records.block_cost, marks.run)
    piece = runs.of_records(records.min_piece, marks.run)
    margin = (piece + 1) // 2 if near else piece
    # A cut goes to the nearest KV block, and less than `margin` before the end of a tile to that
    # end. Moved up by as much, all those are in the next tile.
    skipped = (margin - 1) * block_cost
    shift = skipped + block_cost // 2
    short = None
    # The end is no cut, but must not move a tile.
    if runs.shortest(marks.run[:-1]) < 2 * most(piece) or runs.tile_cost[-1] <= most(shift):
        short = runs.blocks[marks.run] < 2 * piece
        # A tile too short to split has its cuts at the nearer end.
        shift = np.where(short, marks.tile_cost // 2, shift)
    tile, at, begin = marks.moved(shift)
    at -= skipped + fixed
    at //= block_cost
    outside = at < margin
    if short is not None:
        outside |= short
    if near and most(piece) > 1:
        at = np.minimum(np.maximum(at, piece), runs.blocks[marks.run] - piece)
    at[outside] = 0
    tile += runs.tiles_before(marks.run)
    return Cuts(tile, at, marks.run, begin)


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
    tried = numbers(min(num_blocks - runs.num_tiles + 1, _MOST_PIECES) + 1)[1:, None]
    # Quotients are rounded up: minus the negative one rounded down.
    shorter = -most(loop) // tried
    limit = np.maximum(blocks // pick(records.min_piece, runs.records), 1)
    # (tried, runs) pieces per tile, and when the last of them is merged.
    pieces = np.maximum(np.minimum(-(loop // shorter), limit), 1)
    ends = -(-blocks // pieces) * block_cost + fixed
    merge = pieces * pick(records.merge_cost, runs.records)
    merge += pick(records.partial_cost, runs.records)
    ends += merge * (pieces > 1)
    per_run = heads * pieces
    finish = np.maximum.reduce(ends, axis=1)
    finish[np.add.reduce(per_run, axis=1) > num_blocks] = _INT64_MAX
    best = int(finish.argmin())
    of_tile: Int64Array = pieces[best]
    per_run = per_run[best]
    if most(of_tile) == 1:
        return None

    # A cut before every piece; the others at the end of the last run.
    begin = running_sum(per_run, per_run.size)
    used = int(begin[-1])
    cuts = per_run.copy()
    cuts[-1] += num_blocks + 1 - used
    run = numbers(per_run.size).repeat(cuts)
    own = numbers(num_blocks + 1) - begin[run]
    own[used:] = own[used]
    local, piece = divmod(own, of_tile[run])
    at = piece * blocks[run] // of_tile[run]
    tile_begin = runs.cost_begin[run] + local * runs.tile_cost[run]
    return Cuts(runs.tiles_before(run) + local, at, run, tile_begin)


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
    edges = np.empty(cut.size + 1, np.bool_)
    edges[0] = edges[-1] = True
    np.not_equal(tile[1:], tile[:-1], out=edges[1:-1])
    begins = edges.nonzero()[0]  # the first in each tile, then the end
    lead = begins[:-1]
    count = begins[1:] - lead
    number = numbers(lead.size)
    split = number.repeat(count)
    moved = None
    # A cut makes one piece more, and the first one in a tile two.
    if repeated:
        block = cuts.block[cut]
        moved = np.ones(cut.size, np.bool_)
        np.not_equal(block[1:], block[:-1], out=moved[:-1])
        moved |= edges[1:]
        before = running_sum(moved.astype(np.int64), cut.size)
        slot = split + 1 + before[:-1]
        first = before[begins]
        count = first[1:] - first[:-1]
        first = first[:-1] + number
    else:
        slot = split + numbers(cut.size + 1)[1:]
        first = lead + number
    pieces = count + 1
    return Slots(cut, slot, moved, split, cut[lead], first, pieces, int(slot[-1]) + 1)
