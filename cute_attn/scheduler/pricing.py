"""What ways to hand out the tiles cost: the busiest thread block, then the merge."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from cute_attn.scheduler.cost import CostModel
from cute_attn.scheduler.cuts import Cuts, Slots, number_slots
from cute_attn.scheduler.each import Int64Array, most, pick
from cute_attn.scheduler.rounds import Rounds
from cute_attn.scheduler.tiles import Records, Runs


@dataclass
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
    slots = number_slots(cuts)
    costs = line_costs(cuts, loads)
    merge = 0
    if slots.cut.size:
        costs += _split_costs(records, runs, cuts, slots, item)
        merge_cost = runs.of_records(records.merge_cost, cuts.run[slots.cut])
        merge = cost.merge_ns + most(slots.pieces * merge_cost)  # the tile with the most to read
    return Candidate(num_whole, cuts, costs, merge, rounds, slots)


def line_costs(cuts: Cuts, loads: Int64Array | None) -> Int64Array:
    """Cost of each block but for what cuts inside tiles add."""
    line: Int64Array = cuts.cost[1:] - cuts.cost[:-1]
    return line if loads is None else line + loads


def _split_costs(records: Records, runs: Runs, cuts: Cuts, slots: Slots, item: int) -> Int64Array:
    """What the cuts add to each block: a partial result per piece, queries loaded once more."""
    partial = runs.of_records(records.partial_cost, cuts.run)
    extra: Int64Array = slots.inner[:-1] * (pick(partial, slice(None, -1)) + item)
    # A piece with a cut at either end is one piece.
    extra += slots.leads[1:] * pick(partial, slice(1, None))
    extra *= slots.moved
    return extra


def price_whole(runs: Runs, rounds: Rounds) -> Candidate:
    """All tiles in rounds; every cut lies at the end of the line."""
    loads = rounds.after(rounds.count)
    size = loads.size + 1
    run = np.full(size, runs.blocks.size - 1)
    end = np.full(size, runs.num_tiles)
    return Candidate(runs.num_tiles, Cuts(end, np.zeros_like(end), run, end), loads, 0, rounds)
