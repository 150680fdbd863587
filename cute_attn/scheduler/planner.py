"""`plan_batch`: this step's lengths in, the plan buffer out.

Policy "balanced": records are sorted by the cost of their longest tile. Then two ways to hand out
tiles meet in the middle.

* Whole tiles, in rounds (see `rounds`): as many rounds (and then single tiles) as leave every block
  within the ideal share. Tiles that run at the same time share KV through the L2 cache.
* The rest is one line of KV blocks, cut (stream-K) so that all blocks end together.

A batch in which every request has one query tile (decode) has nothing to share: all of it is the
line. Splitting costs partial results and a merge, so several ways are priced (all tiles whole, line
cut between tiles only, line cut anywhere, few tiles in even pieces) and the cheapest is taken. All
tiles whole, if that leaves less idle than splitting costs, is taken without a look at the others:
it also depends least on what the model says.

Policy "whole" never splits: what a request's result is computed from, and in which order, then does
not depend on the rest of the batch.

Everything is integer arithmetic in NumPy with 64-bit sums, ties are broken by index, nothing is
iterated to convergence: equal input gives an equal plan, to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cute_attn.abi.plan import (
    HEADER_FIELDS,
    REQUEST_FIELDS,
    START_FIELDS,
    START_RECORD,
    UNBOUNDED,
    IntArray,
    PlanLayout,
    PlanView,
    pack_meta,
)
from cute_attn.scheduler.batch import Geometry, Int64Array, RequestBatch
from cute_attn.scheduler.cost import DEFAULT_COST, CostModel
from cute_attn.scheduler.cuts import (
    Cuts,
    cut_anywhere,
    cut_between_tiles,
    cut_evenly,
    line_shares,
    mark_line,
    number_slots,
)
from cute_attn.scheduler.rounds import Rounds, hand_out_rounds, sort_last_rounds
from cute_attn.scheduler.tiles import Records, Runs, make_runs, sort_requests
from cute_attn.scheduler.workspace import max_slots

POLICIES = ("balanced", "whole")
# Far below the 60 MB of an H200's L2: two generations of heads overlap, each half of the L2 keeps
# its own copy, and causal tiles read their KV at different places. (192, 128) causal, 128 heads of
# 8k keys: 601 TFLOP/s with 24 MB, 618 with 12, 654 with 8, 680 with 4.
DEFAULT_L2_BUDGET = 4 << 20
_INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True)
class Plan:
    """A plan and what is known about it.

    Attributes:
        buffer: (layout.used_size(num_requests, listed rounds),) int32, what goes to the device.
        layout: offsets, from the capacities.
        num_requests, num_tiles, num_whole_tiles, num_split_tiles, num_slots: as in the header.
        block_costs: (num_blocks,) int64, model cost of each block, ns.
        merge_cost: model cost of the merge, ns; 0 if no tile is split.
    """

    buffer: IntArray
    layout: PlanLayout
    num_requests: int
    num_tiles: int
    num_whole_tiles: int
    num_split_tiles: int
    num_slots: int
    block_costs: Int64Array
    merge_cost: int

    @cached_property
    def view(self) -> PlanView:
        """NumPy views of the buffer's sections."""
        return PlanView(self.buffer, self.layout)

    @property
    def imbalance(self) -> float:
        """Cost of the busiest block over the mean; 1.0 is perfect."""
        total = int(self.block_costs.sum())
        return float(self.block_costs.max()) * self.block_costs.size / total if total else 1.0

    @property
    def predicted_us(self) -> float:
        """Time by the cost model: the busiest block, then the merge. See also `simulate`."""
        return (int(self.block_costs.max()) + self.merge_cost) / 1000


Slots = tuple[Int64Array, Int64Array, Int64Array]
"""What `number_slots` returns."""


@dataclass
class _Candidate:
    """One way to hand out the tiles."""

    num_whole: int
    cuts: Cuts
    costs: Int64Array
    merge: int = 0
    rounds: Rounds | None = None
    slots: Slots | None = None

    @property
    def finish(self) -> int:
        return int(self.costs.max()) + self.merge


def plan_batch(
    requests: RequestBatch,
    geometry: Geometry,
    num_blocks: int,
    *,
    max_requests: int | None = None,
    cost: CostModel = DEFAULT_COST,
    policy: str = "balanced",
    min_piece: int | None = None,
    l2_budget: int = DEFAULT_L2_BUDGET,
) -> Plan:
    """Plans one step.

    Args:
        requests: lengths and addresses of the requests.
        geometry: the kernel's tile shape and the visible band.
        num_blocks: thread blocks of the persistent grid.
        max_requests: capacity of the plan; default: the number of requests. It does not change the
            contents, only what `layout.size` says and what is refused.
        cost: the cost model.
        policy: "balanced" or "whole" (no split tiles).
        min_piece: no piece of a split tile is shorter than this many KV blocks. Default: 128 keys,
            or as many as writing a partial result costs.
        l2_budget: bytes of K and V that tiles running at the same time should share.

    Raises:
        ValueError: an argument is out of range, or the requests exceed the capacity.

    Source: stream-K after Osama et al., arXiv 2301.03598; what is balanced and why follows the
    scheduler of the FlashInfer paper (arXiv 2501.01005, section 3.3), whose own algorithm is in
    `cute_attn.scheduler.min_heap`.
    """
    if not 1 <= num_blocks < 1 << 16:
        raise ValueError(f"num_blocks is {num_blocks}; it takes 1 .. {(1 << 16) - 1}")
    if policy not in POLICIES:
        raise ValueError(f"policy is {policy!r}; known: {', '.join(POLICIES)}")
    if l2_budget < 0:
        raise ValueError(f"l2_budget is {l2_budget}; it takes bytes, at least 0")
    if min_piece is not None and min_piece < 1:
        raise ValueError(f"min_piece is {min_piece}; it takes KV blocks, at least 1")
    n = requests.num_requests
    capacity = n if max_requests is None else max_requests
    if n > capacity:
        raise ValueError(f"the batch has {n} requests but max_requests is {capacity}")

    records = sort_requests(requests, geometry, cost, l2_budget, min_piece)
    if n and int(requests.q_len.max()) * geometry.group > _INT32_MAX:
        raise ValueError(f"q_len {int(requests.q_len.max())} times group must stay below 2^31")
    per_head = int(records.q_tiles.sum())
    if per_head * geometry.num_kv_heads > _INT32_MAX:
        raise ValueError(f"the batch has {per_head * geometry.num_kv_heads} tiles; 2^31 - 1 fit")

    runs = make_runs(requests, records, geometry, cost)
    item = cost.item(geometry)
    best = _hand_out(records, runs, num_blocks, item, cost, split=policy == "balanced")
    return _write(requests, records, runs, geometry, best, PlanLayout(num_blocks, capacity))


def _hand_out(
    records: Records, runs: Runs, num_blocks: int, item: int, cost: CostModel, *, split: bool
) -> _Candidate:
    """The cheapest way to hand out the tiles; of equals the one with fewer splits.

    `item`: fixed cost of an item.
    """
    loads = np.zeros(num_blocks, np.int64)
    if runs.num_tiles == 0:
        none = np.zeros(num_blocks + 1, np.int64)
        return _Candidate(0, Cuts(none, none, none, none), loads)
    candidates = []
    num_whole, rounds = 0, None
    share = -(-runs.total_cost // num_blocks)
    if records.most_q_tiles > 1:
        tiles = runs.tile_cost.repeat(runs.heads)
        rounds = hand_out_rounds(tiles, num_blocks)
        whole = _all_whole(runs, rounds)
        slack = share // 512
        if whole.finish > share + slack and rounds.tiles.size:
            sorted_end = _all_whole(runs, sort_last_rounds(rounds))
            whole = min(whole, sorted_end, key=lambda candidate: candidate.finish)
        # No split plan does better than one more item per block and a merge.
        if whole.finish <= share + max(slack, item + cost.merge_ns):
            return whole
        candidates.append(whole)
        num_whole, loads = rounds.prefix(tiles.size, share)

    begin_cost = int(loads.sum())
    piece = int((records.min_piece * records.block_cost).max()) + item
    # Pieces of a tile get long enough if shares are; without tiles to split that is no matter.
    splittable = split and bool((runs.blocks >= 2 * records.min_piece[runs.record]).any())
    min_share = min(piece, int(runs.tile_cost.max())) if splittable else 0
    shares, smallest = line_shares(loads, runs.total_cost - begin_cost, min_share)
    marks = mark_line(runs, begin_cost, shares)
    cuts = cut_between_tiles(runs, marks)
    candidates.append(_Candidate(num_whole, cuts, loads + _steps(cuts.cost), 0, rounds))
    if splittable:
        cuts = cut_anywhere(runs, marks, records.min_piece, near=smallest >= 2 * piece)
        costs = loads + _steps(cuts.cost) + _split_costs(records, runs, cuts, item)
        slots = number_slots(cuts)
        merge = _merge_cost(records, runs, cuts, slots, cost)
        candidates.append(_Candidate(num_whole, cuts, costs, merge, rounds, slots))
        even = cut_evenly(records, runs, num_blocks) if records.most_q_tiles > 1 else None
        if even is not None:
            costs = _steps(even.cost) + _split_costs(records, runs, even, item)
            slots = number_slots(even)
            merge = _merge_cost(records, runs, even, slots, cost)
            candidates.append(_Candidate(0, even, costs, merge, None, slots))
    return min(candidates, key=lambda candidate: candidate.finish)


def _steps(x: Int64Array) -> Int64Array:
    steps: Int64Array = x[1:] - x[:-1]
    return steps


def _split_costs(records: Records, runs: Runs, cuts: Cuts, item: int) -> Int64Array:
    """What the cuts add to each block: a partial result per piece, queries loaded once more."""
    inner = cuts.block > 0
    partial = records.partial_cost[runs.record[cuts.run]] * inner
    after = partial[:-1] + inner[:-1] * item
    # A piece with a cut at either end is one piece.
    before = partial[1:] * ~(inner[:-1] & (cuts.tile[1:] == cuts.tile[:-1]))
    extra: Int64Array = (after + before) * (_steps(cuts.cost) > 0)
    return extra


def _merge_cost(records: Records, runs: Runs, cuts: Cuts, slots: Slots, cost: CostModel) -> int:
    """What merging adds to the step: the tile with the most to read; 0 if no tile is split."""
    _, first, pieces = slots
    if first.size == 0:
        return 0
    return cost.merge_ns + int((pieces * records.merge_cost[runs.record[cuts.run[first]]]).max())


def _all_whole(runs: Runs, rounds: Rounds) -> _Candidate:
    """All tiles in rounds; every cut lies at the end of the line."""
    loads = rounds.after(rounds.most.size)
    size = loads.size + 1
    run = np.full(size, runs.heads.size - 1)
    end = np.full(size, runs.num_tiles)
    return _Candidate(runs.num_tiles, Cuts(end, np.zeros_like(end), run, end), loads, 0, rounds)


def _listed_places(best: _Candidate, num_blocks: int) -> Int64Array:
    """(listed rounds, num_blocks) places of whole tiles, counted from the first listed round's."""
    if best.rounds is None or best.rounds.tiles.size == 0:
        return np.zeros((0, num_blocks), np.int64)
    return best.rounds.places(-(-best.num_whole // num_blocks))


def _write_starts(view: PlanView, places: Int64Array) -> None:
    """Fills `starts` from the other sections."""
    num_blocks = view.layout.num_blocks
    listed = view.get("first_listed_round") == 0
    tile = places[0].astype(np.int32) if listed else np.arange(num_blocks, dtype=np.int32)
    tile = np.where(tile < view.get("num_whole_tiles"), tile, view.cuts[:num_blocks, 0])
    ends = view.requests[1:, REQUEST_FIELDS.index("tile_begin")]
    request = ends.searchsorted(tile, side="right")  # without work: the sentinel
    view.starts[:, 0] = tile
    view.starts[:, 1] = request
    for column, name in enumerate(START_FIELDS):
        if name in HEADER_FIELDS:
            view.starts[:, column] = view.get(name)
    view.starts[:, START_RECORD] = view.requests[request]


def _write(
    requests: RequestBatch,
    records: Records,
    runs: Runs,
    geometry: Geometry,
    best: _Candidate,
    layout: PlanLayout,
) -> Plan:
    """Fills the buffer."""
    n, num_blocks = requests.num_requests, layout.num_blocks
    cuts = best.cuts
    slot, first, pieces = best.slots or number_slots(cuts)
    num_slots = int(pieces.sum())
    assert num_slots <= max_slots(num_blocks)
    num_tiles = runs.num_tiles
    places = _listed_places(best, num_blocks)
    buffer = np.zeros(layout.used_size(n, places.shape[0]), np.int32)
    view = PlanView(buffer[: layout.used_size(n)], layout)
    values = {
        "num_requests": n,
        "num_tiles": num_tiles,
        "num_whole_tiles": best.num_whole,
        "num_split_tiles": first.size,
        "window_left": geometry.window_left,
        "window_right": geometry.window_right,
        "num_slots": num_slots,
        "tile_q": geometry.tile_q,
        "tile_kv": geometry.tile_kv,
        "group": geometry.group,
        "num_kv_heads": geometry.num_kv_heads,
        "num_blocks": num_blocks,
        "first_listed_round": UNBOUNDED,
    }
    if places.size:
        assert best.rounds is not None
        values |= {"first_listed_round": best.rounds.first_listed, "places": layout.places(n)}
        buffer[layout.places(n) :].view(np.uint16)[: places.size] = places.reshape(-1)
    view.header[:] = [values.get(name, 0) for name in HEADER_FIELDS]

    view.cuts[:, 0] = cuts.tile
    view.cuts[:, 1] = cuts.block
    if num_tiles:
        view.cuts[:, 2] = runs.record[cuts.run]
    view.cuts[:, 3] = slot
    if first.size:
        inner = cuts.block > 0
        of_cut = np.searchsorted(first, np.flatnonzero(inner), side="right") - 1  # its split tile
        view.cuts[inner, 4] = slot[first][of_cut] - 1
        view.cuts[inner, 5] = pieces[of_cut]
        splits = view.splits[: first.size]
        splits[:, 0] = cuts.tile[first]
        splits[:, 1] = runs.record[cuts.run[first]]
        splits[:, 2] = slot[first] - 1
        splits[:, 3] = pieces

    rows, order = view.requests, records.order
    rows[:n, 0] = requests.q_start[order]
    rows[:n, 1] = records.q_len
    rows[:n, 2] = requests.kv_start[order]
    rows[:n, 3] = records.kv_len
    rows[:n, 4] = requests.q_pos[order]
    rows[:n, 5] = requests.kv_pos[order]
    ends = np.cumsum(records.q_tiles * geometry.num_kv_heads)
    rows[1 : n + 1, 6] = ends
    ids = order if requests.ids is None else requests.ids[order]
    rows[:n, 7] = pack_meta(ids, 0, records.section_heads)
    _write_starts(view, places)
    return Plan(
        buffer=buffer,
        layout=layout,
        num_requests=n,
        num_tiles=num_tiles,
        num_whole_tiles=best.num_whole,
        num_split_tiles=first.size,
        num_slots=num_slots,
        block_costs=best.costs,
        merge_cost=best.merge,
    )
