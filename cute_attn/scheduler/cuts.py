"""The stream-K half of a plan: how the line of tiles is shared out and where it is cut.

The line is cut so that every block that takes part ends at the same cost, given what it already
has ("water filling" with a minimal share). A cut that would leave a piece shorter than `min_piece`
KV blocks moves to where it does not. All of it is integer arithmetic on arrays of num_blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cute_attn.scheduler.batch import Int64Array
from cute_attn.scheduler.tiles import Runs


@dataclass
class Cuts:
    """num_blocks + 1 positions on the line; (num_blocks + 1,) int64 each."""

    tile: Int64Array
    block: Int64Array  # KV block of the tile before which the cut lies
    run: Int64Array
    cost: Int64Array  # cost of everything before the cut


def line_shares(loads: Int64Array, line_cost: int, min_share: int) -> tuple[Int64Array, int]:
    """Cost of the line that each block takes, and the smallest share handed out.

    The blocks with the least load take part, as many as can each take at least `min_share` while
    all of them end at the same cost; at least one.
    """
    order = np.argsort(loads, kind="stable")
    filled = loads[order]
    count = np.arange(1, loads.size + 1)
    level = -(-(np.cumsum(filled) + line_cost) // count)
    # level - filled falls with every block that joins, so the true ones are a prefix.
    joined = max(1, int(np.count_nonzero(level - filled >= min_share)))
    shares = np.zeros(loads.size, np.int64)
    shares[order[:joined]] = level[joined - 1] - filled[:joined]
    return shares, int(level[joined - 1] - filled[joined - 1])


def cut_line(
    runs: Runs, first_tile: int, shares: Int64Array, min_piece: int, *, split: bool, near: bool
) -> Cuts:
    """Cuts the line of tiles [first_tile, num_tiles) into consecutive shares.

    Args:
        runs: all tiles.
        first_tile: where the line begins.
        shares: (num_blocks,) cost per block; their sum reaches the end of the line.
        min_piece: no piece of a split tile is shorter than this many KV blocks.
        split: False moves every cut to the nearest tile boundary.
        near: a cut too close to a tile boundary goes to the nearer of the boundary and `min_piece`
            away from it; only sound if every share is at least 2 * min_piece KV blocks. Otherwise
            it goes to the boundary.
    """
    num_tiles, total = int(runs.tile_begin[-1]), int(runs.cost_begin[-1])
    first_run = int(np.searchsorted(runs.tile_begin, first_tile, side="right")) - 1
    position = np.empty(shares.size + 1, np.int64)
    if first_tile == num_tiles:
        position[0] = total
        first_run = max(runs.heads.size - 1, 0)
    else:
        inside = first_tile - int(runs.tile_begin[first_run])
        position[0] = runs.cost_begin[first_run] + inside * runs.tile_cost[first_run]
    np.cumsum(shares, out=position[1:])
    position[1:] += position[0]
    position[1:] = np.minimum(position[1:], total)
    position[-1] = total

    run = np.searchsorted(runs.cost_begin[1:-1], position, side="right")
    blocks, block_cost, tile_cost = runs.blocks[run], runs.block_cost[run], runs.tile_cost[run]
    rest = position - runs.cost_begin[run]
    local = np.minimum(rest // tile_cost, runs.heads[run])
    rest -= local * tile_cost

    if split:
        fixed = tile_cost - blocks * block_cost
        at = np.clip((2 * (rest - fixed) + block_cost) // (2 * block_cost), 0, blocks)
        low = high = min_piece
        if near:
            low = high = (min_piece + 1) // 2
        at = np.where(at < low, 0, np.where(at > blocks - high, blocks, at))
        if near:
            at = np.where((at > 0) & (at < blocks), np.clip(at, min_piece, blocks - min_piece), at)
        whole = blocks < 2 * min_piece
        at = np.where(whole, np.where(2 * rest < tile_cost, 0, blocks), at)
        # A tile without KV blocks is one piece, before or after the cut.
        past = (at == blocks) & ((blocks > 0) | (2 * rest >= tile_cost))
    else:
        at = np.zeros_like(rest)
        past = 2 * rest >= tile_cost
    at = np.where(past, 0, at)
    local += past & (local < runs.heads[run])
    cost = runs.cost_begin[run] + local * tile_cost
    cost += np.where(at > 0, tile_cost - (blocks - at) * block_cost, 0)
    return Cuts(runs.tile_begin[run] + local, at, run, cost)


def number_slots(cuts: Cuts) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Partial slots of a set of cuts.

    Returns:
        slot: (num_blocks + 1,) slot of the piece after each cut, -1 for a cut between tiles.
        first: indices of the cuts that are the first in their tile.
        pieces: pieces of each split tile.
    """
    inner = cuts.block > 0
    same_tile = np.zeros(inner.size, np.bool_)
    same_tile[1:] = (cuts.tile[1:] == cuts.tile[:-1]) & inner[:-1]
    fresh = inner.copy()
    fresh[1:] &= ~(same_tile[1:] & (cuts.block[1:] == cuts.block[:-1]))
    first = inner & ~same_tile
    slot = np.where(inner, np.cumsum(fresh) + np.cumsum(first) - 1, -1)
    where = np.flatnonzero(first)
    # Slots are handed out without gaps: each split tile begins where the last one ended.
    begins = slot[where] - 1
    end = int(slot.max()) + 1 if where.size else 0
    return slot, where, np.diff(begins, append=end)
