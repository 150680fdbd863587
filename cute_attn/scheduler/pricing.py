"""What ways to hand out the tiles cost: the busiest thread block, then the merge.

A price is computed when it is asked for: where there is one way only, no plan needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from cute_attn.scheduler.cost import CostModel
from cute_attn.scheduler.cuts import Cuts, Slots, number_slots
from cute_attn.scheduler.each import Int64Array, largest_product, most
from cute_attn.scheduler.rounds import Rounds
from cute_attn.scheduler.tiles import Records, Runs


class Price:
    """Cost of each thread block, (num_blocks,) int64, and of the merge.

    Args:
        compute: returns both.
    """

    __slots__ = ("_compute", "_computed", "_finish")

    def __init__(self, compute: Callable[[], tuple[Int64Array, int]]) -> None:
        self._compute = compute
        self._computed: tuple[Int64Array, int] | None = None
        self._finish: int | None = None

    @classmethod
    def known(cls, blocks: Int64Array, merge: int = 0) -> Price:
        """What is computed already."""
        return cls(partial(_both, blocks, merge))

    def numbers(self) -> tuple[Int64Array, int]:
        """Of the blocks, and of the merge."""
        if self._computed is None:
            self._computed = self._compute()
        return self._computed

    def finish(self) -> int:
        """When the busiest block ends, and the merge."""
        if self._finish is None:
            blocks, merge = self.numbers()
            self._finish = most(blocks) + merge
        return self._finish


def _both(blocks: Int64Array, merge: int) -> tuple[Int64Array, int]:
    return blocks, merge


@dataclass(slots=True)
class Candidate:
    """One way to hand out the tiles."""

    num_whole: int
    cuts: Cuts
    price: Price
    rounds: Rounds | None = None
    slots: Slots | None = None  # None: no tile is split

    @property
    def finish(self) -> int:
        """When its busiest block ends, and the merge."""
        return self.price.finish()


def cut_inside(
    records: Records,
    runs: Runs,
    cuts: Cuts,
    item: int,
    cost: CostModel,
    loads: Int64Array | None = None,
    num_whole: int = 0,
    rounds: Rounds | None = None,
) -> Candidate:
    """The candidate that cuts inside tiles make; `loads`: cost of each block's whole tiles."""
    # Without loads only blocks behind the end of the line have no share.
    slots = number_slots(cuts, repeated=loads is not None)
    price = Price(partial(_price_inside, records, runs, cuts, slots, item, cost, loads))
    return Candidate(num_whole, cuts, price, rounds, slots)


def cut_between(
    cuts: Cuts, loads: Int64Array | None, num_whole: int, rounds: Rounds | None
) -> Candidate:
    """The candidate that cuts between tiles make."""
    return Candidate(num_whole, cuts, Price.known(line_costs(cuts.begin, loads)), rounds)


def _price_inside(
    records: Records,
    runs: Runs,
    cuts: Cuts,
    slots: Slots | None,
    item: int,
    cost: CostModel,
    loads: Int64Array | None,
) -> tuple[Int64Array, int]:
    if slots is None:
        return line_costs(cuts.begin, loads), 0
    before = cuts.block * runs.of_records(records.block_cost, cuts.run)
    before += cuts.begin
    before[slots.cut] += item
    costs = line_costs(before, loads)
    # A partial result per piece, and queries loaded once more by who begins inside a tile.
    begins = runs.of_records(records.partial_cost, cuts.run, slots.cut) + item
    costs[slots.cut] += begins if slots.moved is None else slots.moved * begins
    costs[slots.lead - 1] += runs.of_records(records.partial_cost, cuts.run, slots.lead)
    merge_cost = runs.of_records(records.merge_cost, cuts.run, slots.lead)
    # The tile with the most to read.
    return costs, cost.merge_ns + largest_product(slots.pieces, merge_cost)


def line_costs(before: Int64Array, loads: Int64Array | None) -> Int64Array:
    """Cost of each block's share of the line; `before`: of everything before each cut."""
    line: Int64Array = before[1:] - before[:-1]
    return line if loads is None else line + loads


def price_whole(runs: Runs, rounds: Rounds) -> Candidate:
    """All tiles in rounds; every cut lies at the end of the line."""
    loads = rounds.after(rounds.count)
    size = loads.size + 1
    run = np.full(size, runs.blocks.size - 1)
    end = np.full(size, runs.num_tiles)
    cuts = Cuts(end, np.zeros_like(end), run, end)
    return Candidate(runs.num_tiles, cuts, Price.known(loads), rounds)
