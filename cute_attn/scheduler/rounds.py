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
from cute_attn.scheduler.batch import Int64Array

_LAST_ROUNDS = 4
_MAX_PLACE = (1 << 16) - 1


@dataclass
class Rounds:
    """Whole tiles, handed out in rounds.

    Attributes:
        places: (rounds, num_blocks) which tile each block takes, counted from the round's first.
        loads: (rounds, num_blocks) cost of each block after the round.
        first_listed: rounds from this one on are in no order that the kernels know.
    """

    places: Int64Array
    loads: Int64Array
    first_listed: int

    def prefix(self, tiles: Int64Array, share: int) -> tuple[int, Int64Array]:
        """How many tiles go out whole, and the cost each block then has.

        The largest number of full rounds, then of single tiles, that keep every block within
        `share`.
        """
        num_blocks = self.loads.shape[1]
        full = int(self.loads.max(axis=1).searchsorted(share, side="right"))
        loads = self.loads[full - 1].copy() if full else np.zeros(num_blocks, np.int64)
        begin = full * num_blocks
        rest = tiles[begin : begin + num_blocks]
        if rest.size == 0:
            return tiles.size, loads
        block = self.places[full].argsort()[: rest.size]  # of each place
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
    costs = np.zeros((rounds, num_blocks), np.int64)
    costs.reshape(-1)[: tiles.size] = tiles
    places = np.empty((rounds, num_blocks), np.int64)
    places[:] = np.arange(num_blocks)
    places[1::2] = places[0, ::-1]
    alike = int(tiles.max()) == int(tiles.min())
    listable = rounds > 1 and not alike and num_blocks * MAX_LISTED_ROUNDS <= _MAX_PLACE
    first = max(0, rounds - MAX_LISTED_ROUNDS) if listable else rounds
    costs[1:first:2] = costs[1:first:2, ::-1].copy()
    loads = costs.cumsum(axis=0)
    if listable:
        longest_first = (-costs[first:]).argsort(axis=1, kind="stable")
        falling = np.take_along_axis(costs[first:], longest_first, axis=1)
        _longest_to_least(falling, longest_first, loads, places, first)
    return Rounds(places, loads, first)


def sort_last_rounds(tiles: Int64Array, rounds: Rounds) -> Rounds:
    """The same with the tiles of the last rounds in one order, the shortest in the very last.

    Blocks end closer together, for less sharing at the end.
    """
    count, num_blocks = rounds.places.shape
    begin = max(count - _LAST_ROUNDS, rounds.first_listed)
    costs = np.zeros((count - begin) * num_blocks, np.int64)
    costs[: tiles.size - begin * num_blocks] = tiles[begin * num_blocks :]
    longest_first = (-costs).argsort(kind="stable")
    falling = costs[longest_first].reshape(-1, num_blocks)
    place = longest_first.reshape(-1, num_blocks)
    place -= np.arange(0, costs.size, num_blocks)[:, None]
    places, loads = rounds.places.copy(), rounds.loads.copy()
    _longest_to_least(falling, place, loads, places, begin)
    return Rounds(places, loads, rounds.first_listed)


def _longest_to_least(
    falling: Int64Array, place: Int64Array, loads: Int64Array, places: Int64Array, begin: int
) -> None:
    """Fills rows of `loads` and `places` from `begin` on: long tiles to blocks with little cost.

    `falling`, `place`: (rounds, num_blocks) costs of each round's tiles, falling, and their places.
    """
    load = loads[begin - 1].copy() if begin else np.zeros(falling.shape[1], np.int64)
    taker = np.empty_like(falling)
    for at, row in enumerate(falling):
        least_first = load.argsort(kind="stable")
        taker[at] = least_first
        load[least_first] += row
        loads[begin + at] = load
    np.put_along_axis(places[begin:], taker, place, axis=1)
