"""What ways to hand out the tiles cost: the busiest thread block, then the merge."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from cute_attn.scheduler.cost import CostModel
from cute_attn.scheduler.cuts import Cuts, Slots, number_slots
from cute_attn.scheduler.each import Int64Array, most
from cute_attn.scheduler.rounds import Rounds
from cute_attn.scheduler.tiles import Records, Runs


@dataclass(slots=True)
class Candidate:
    """One way to hand out the tiles."""

    num_whole: int
    cuts: Cuts
    costs: Int64Array
    merge: int = 0
    rounds: Rounds | None = None
    slots: Slots | None = None  # None: no tile is split
    finish: int = field(init=False)

    def __post_init__(self) -> None:
        self.finish = most(self.costs) + self.merge


def price_split(
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
    costs = line_costs(cuts, loads)
    merge = 0
    if slots is not None:
        # A partial result per piece, and queries loaded once more by who begins inside a tile.
        partial = runs.of_records(records.partial_cost, cuts.run, slots.cut)
        begins = partial + item
        costs[slots.cut] += begins if slots.moved is None else slots.moved * begins
        costs[slots.lead - 1] += runs.of_records(records.partial_cost, cuts.run, slots.lead)
        merge_cost = runs.of_records(records.merge_cost, cuts.run, slots.lead)
        merge = cost.merge_ns + most(slots.pieces * merge_cost)  # the tile with the most to read
    return Candidate(num_whole, cuts, costs, merge, rounds, slots)


def line_costs(cuts: Cuts, loads: Int64Array | None) -> Int64Array:
    """Cost of each block but for what cuts inside tiles add."""
    line: Int64Array = cuts.cost[1:] - cuts.cost[:-1]
    return line if loads is None else line + loads


def price_whole(runs: Runs, rounds: Rounds) -> Candidate:
    """All tiles in rounds; every cut lies at the end of the line."""
    loads = rounds.after(rounds.count)
    size = loads.size + 1
    run = np.full(size, runs.blocks.size - 1)
    end = np.full(size, runs.num_tiles)
    return Candidate(runs.num_tiles, Cuts(end, np.zeros_like(end), run, end), loads, 0, rounds)
