"""Whole tiles in rounds: every thread block takes one of `num_blocks` neighbouring tiles.

Neighbours run at the same time and share KV through the L2 cache, and all blocks get equally many
tiles: a plan that stays balanced where the model errs about what a tile and a KV block cost. Within
a round the order is free, so each round gives its longest tile to the block with the least cost so
far. That needs a list of places in the plan; the last `MAX_LISTED_ROUNDS` rounds have one. Earlier
rounds, and tiles that all cost the same, go out in snake order, which needs none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cute_attn.abi.plan import MAX_LISTED_ROUNDS
from cute_attn.scheduler.each import Int64Array, most

_LAST_ROUNDS = 4
_BLOCK_BITS = 16  # of a sort key that holds a cost and a thread block
_MOST_COST = 1 << (62 - _BLOCK_BITS)


@dataclass
class Rounds:
    """Whole tiles, handed out in rounds.

    Attributes:
        costs: (num_tiles,) cost of each tile in plan order.
        first_listed: rounds from this one on are in no order that the kernels know.
        before: (num_blocks,) cost of each block before the first listed round.
        takers: (listed rounds, num_blocks) thread blocks of each round, by cost.
        loads: (listed rounds, num_blocks) cost of `takers` after the round.
        tiles: (listed rounds, num_blocks) tile of each taker, from the first listed round's first.
    """

    costs: Int64Array
    first_listed: int
    before: Int64Array
    takers: Int64Array
    loads: Int64Array
    tiles: Int64Array

    @property
    def count(self) -> int:
        return self.first_listed + int(self.takers.shape[0])

    def after(self, count: int) -> Int64Array:
        """(num_blocks,) cost of each block after `count` rounds."""
        listed = count - self.first_listed
        if listed < 0:
            return _snake_loads(_by_round(self.costs[: count * self.before.size], self.before.size))
        if listed == 0:
            return self.before.copy()
        loads = np.empty_like(self.before)
        loads[self.takers[listed - 1]] = self.loads[listed - 1]
        return loads

    def within(self, share: int) -> int:
        """The most rounds that keep every block within `share`."""
        if most(self.before) > share:
            num_blocks = self.before.size
            table = _by_round(self.costs[: self.first_listed * num_blocks], num_blocks).copy()
            table[1::2] = table[1::2, ::-1].copy()
            busiest = table.cumsum(axis=0).max(axis=1)
            return int(busiest.searchsorted(share, "right"))
        return self.first_listed + int(self.loads.max(axis=1).searchsorted(share, "right"))

    def places(self, count: int) -> Int64Array:
        """(listed rounds, num_blocks) tile of each block in the listed ones of `count` rounds."""
        takers = self.takers[: max(count - self.first_listed, 0)]
        places = np.empty(takers.size, np.int64)
        rows = np.arange(0, takers.size, takers.shape[1])
        places[takers + rows[:, None]] = self.tiles[: rows.size]
        return places.reshape(takers.shape)

    def prefix(self, share: int) -> tuple[int, Int64Array]:
        """How many tiles go out whole, and the cost each block then has.

        The largest number of full rounds, then of single tiles, that keep every block within
        `share`.
        """
        num_blocks = self.takers.shape[1]
        full = self.within(share)
        loads = self.after(full)
        begin = full * num_blocks
        rest = self.costs[begin : begin + num_blocks]
        if rest.size == 0:
            return self.costs.size, loads
        listed = full - self.first_listed
        if listed >= 0:
            block = self.takers[listed][self.tiles[listed].argsort()][: rest.size]
        else:
            block = np.arange(num_blocks)[:: -1 if full % 2 else 1][: rest.size]
        over = loads[block] + rest > share
        single = int(over.argmax()) if over.any() else rest.size
        loads[block[:single]] += rest[:single]
        return begin + single, loads


def hand_out_rounds(tiles: Int64Array, num_blocks: int) -> Rounds:
    """Hands out all tiles whole.

    Args:
        tiles: (num_tiles,) cost of each tile in plan order, at least one.
        num_blocks: thread blocks.
    """
    rounds = -(-tiles.size // num_blocks)
    listable = (
        rounds > 1
        and num_blocks * MAX_LISTED_ROUNDS <= 1 << _BLOCK_BITS
        and (longest := int(tiles.max())) > int(tiles.min())
        and longest < _MOST_COST // rounds
    )
    first = max(0, rounds - MAX_LISTED_ROUNDS) if listable else rounds
    before = _snake_loads(_by_round(tiles[: first * num_blocks], num_blocks))
    if not listable:
        none = np.zeros((0, num_blocks), np.int64)
        return Rounds(tiles, first, before, none, none, none)
    listed = _by_round(tiles[first * num_blocks :], num_blocks)
    order = (-listed).argsort(axis=1, kind="stable")
    order += np.arange(0, listed.size, num_blocks)[:, None]
    takers, loads = _longest_to_least(listed.reshape(-1)[order], before)
    return Rounds(tiles, first, before, takers, loads, order)


def _by_round(tiles: Int64Array, num_blocks: int) -> Int64Array:
    """(rounds, num_blocks) costs of neighbouring tiles, padded by zeros."""
    rounds = -(-tiles.size // num_blocks)
    if tiles.size < rounds * num_blocks:
        padded = np.zeros(rounds * num_blocks, np.int64)
        padded[: tiles.size] = tiles
        tiles = padded
    return tiles.reshape(rounds, num_blocks)


def _snake_loads(table: Int64Array) -> Int64Array:
    """(num_blocks,) sums of (rounds, num_blocks) costs, every other row from right to left."""
    loads: Int64Array = table[::2].sum(axis=0)
    loads += table[1::2].sum(axis=0)[::-1]
    return loads


def sort_last_rounds(rounds: Rounds) -> Rounds:
    """The same with the tiles of the last rounds in one order, the shortest in the very last.

    Blocks end closer together, for less sharing at the end. Only for all tiles whole: the rounds
    are no longer made of neighbours.
    """
    listed, num_blocks = rounds.tiles.shape
    keep = max(listed - _LAST_ROUNDS, 0)
    begin = (rounds.first_listed + keep) * num_blocks
    costs = _by_round(rounds.costs[begin:], num_blocks).reshape(-1)
    order = (-costs).argsort(kind="stable").reshape(-1, num_blocks)
    takers, loads = _longest_to_least(costs[order], rounds.after(rounds.first_listed + keep))
    return Rounds(
        rounds.costs,
        rounds.first_listed,
        rounds.before,
        np.concatenate((rounds.takers[:keep], takers)),
        np.concatenate((rounds.loads[:keep], loads)),
        np.concatenate((rounds.tiles[:keep], order + keep * num_blocks)),
    )


def _longest_to_least(falling: Int64Array, load: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Gives each round's tiles to thread blocks: the longer, the less the block has so far.

    Args:
        falling: (rounds, num_blocks) cost of each round's tiles, falling.
        load: (num_blocks,) cost of each block before.

    Returns:
        takers, loads: (rounds, num_blocks) the block that gets the tile, and its cost after it.
    """
    step = falling << _BLOCK_BITS
    keys = np.empty_like(falling)
    key = (load << _BLOCK_BITS) + np.arange(load.size)  # ties by block
    for at, more in enumerate(step):
        key.sort()
        key += more
        keys[at] = key
    return keys & ((1 << _BLOCK_BITS) - 1), keys >> _BLOCK_BITS
