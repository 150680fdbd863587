"""`plan_batch`: this step's lengths in, the plan buffer out.

Policy "balanced": records are sorted by the cost of their longest tile. Then two ways to hand out
tiles meet in the middle.

* Whole tiles, in snake order: as many rounds (and then single tiles) as leave every block within
  the ideal share. Tiles that run at the same time share KV through the L2 cache.
* The rest is one line of KV blocks, cut (stream-K) so that all blocks end together.

A batch in which every request has one query tile (decode) has nothing to share: all of it is the
line. Splitting costs partial results and a merge, so three ways are priced (all tiles whole, line
cut between tiles only, line cut anywhere) and the cheapest is taken.

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
    line_shares,
    mark_line,
    number_slots,
)
from cute_attn.scheduler.tiles import Records, Runs, make_runs, sort_requests
from cute_attn.scheduler.workspace import max_slots

POLICIES = ("balanced", "whole")
DEFAULT_L2_BUDGET = 24 << 20
_INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True)
class Plan:
    """A plan and what is known about it.

    Attributes:
        buffer: (layout.used_size(num_requests),) int32, what goes to the device.
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


@dataclass
class _Candidate:
    """One way to hand out the tiles."""

    num_whole: int
    cuts: Cuts
    costs: Int64Array
    merge: int

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
    best = _hand_out(records, runs, num_blocks, cost, split=policy == "balanced")
    return _write(requests, records, runs, geometry, best, PlanLayout(num_blocks, capacity))


def _hand_out(
    records: Records, runs: Runs, num_blocks: int, cost: CostModel, *, split: bool
) -> _Candidate:
    """The cheapest way to hand out the tiles; of equals the one with fewer splits."""
    loads = np.zeros(num_blocks, np.int64)
    if runs.num_tiles == 0:
        none = np.zeros(num_blocks + 1, np.int64)
        return _Candidate(0, Cuts(none, none, none, none), loads, 0)
    candidates = []
    num_whole = 0
    if records.most_q_tiles > 1:
        tiles = runs.tile_cost.repeat(runs.heads)
        rounds = _snake(tiles, num_blocks)
        candidates.append(_all_whole(runs, rounds[-1]))
        num_whole, loads = _whole_tiles(tiles, rounds, -(-runs.total_cost // num_blocks))

    begin_cost = int(loads.sum())
    piece = int((records.min_piece * records.block_cost).max()) + cost.tile_ns
    # Pieces of a tile get long enough if shares are; without tiles to split that is no matter.
    splittable = split and bool((runs.blocks >= 2 * records.min_piece[runs.record]).any())
    min_share = min(piece, int(runs.tile_cost.max())) if splittable else 0
    shares, smallest = line_shares(loads, runs.total_cost - begin_cost, min_share)
    marks = mark_line(runs, begin_cost, shares)
    cuts = cut_between_tiles(runs, marks)
    candidates.append(_Candidate(num_whole, cuts, loads + _steps(cuts.cost), 0))
    if splittable:
        cuts = cut_anywhere(runs, marks, records.min_piece, near=smallest >= 2 * piece)
        costs = loads + _steps(cuts.cost) + _split_costs(records, runs, cuts, cost)
        candidates.append(_Candidate(num_whole, cuts, costs, cost.merge_ns))
    return min(candidates, key=lambda candidate: candidate.finish)


def _steps(x: Int64Array) -> Int64Array:
    steps: Int64Array = x[1:] - x[:-1]
    return steps


def _split_costs(records: Records, runs: Runs, cuts: Cuts, cost: CostModel) -> Int64Array:
    """What the cuts add to each block: a partial result per piece, queries loaded once more."""
    inner = cuts.block > 0
    partial = records.partial_cost[runs.record[cuts.run]] * inner
    after = partial[:-1] + inner[:-1] * cost.tile_ns
    # A piece with a cut at either end is one piece.
    before = partial[1:] * ~(inner[:-1] & (cuts.tile[1:] == cuts.tile[:-1]))
    extra: Int64Array = (after + before) * (_steps(cuts.cost) > 0)
    return extra


def _all_whole(runs: Runs, loads: Int64Array) -> _Candidate:
    """All tiles in snake order; every cut lies at the end of the line."""
    size = loads.size + 1
    run = np.full(size, runs.heads.size - 1)
    end = np.full(size, runs.num_tiles)
    return _Candidate(runs.num_tiles, Cuts(end, np.zeros_like(end), run, end), loads, 0)


def _snake(tiles: Int64Array, num_blocks: int) -> Int64Array:
    """(rounds, num_blocks) cumulative cost of each block after each snake round."""
    rounds = -(-tiles.size // num_blocks)
    costs = np.zeros((rounds, num_blocks), np.int64)
    costs.reshape(-1)[: tiles.size] = tiles
    costs[1::2] = costs[1::2, ::-1].copy()
    return np.cumsum(costs, axis=0, out=costs)


def _whole_tiles(tiles: Int64Array, rounds: Int64Array, share: int) -> tuple[int, Int64Array]:
    """How many tiles go out whole, and the cost each block then has.

    The largest number of full rounds, then of single tiles, that keep every block within `share`.
    """
    num_blocks = rounds.shape[1]
    full = int(np.searchsorted(rounds.max(axis=1), share, side="right"))
    loads = rounds[full - 1].copy() if full else np.zeros(num_blocks, np.int64)
    begin = full * num_blocks
    rest = tiles[begin : begin + num_blocks]
    if rest.size == 0:
        return tiles.size, loads
    in_order = loads[::-1] if full % 2 else loads
    over = in_order[: rest.size] + rest > share
    single = int(over.argmax()) if over.any() else rest.size
    in_order[:single] += rest[:single]
    return begin + single, loads


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
    slot, first, pieces = number_slots(cuts)
    num_slots = int(pieces.sum())
    assert num_slots <= max_slots(num_blocks)
    num_tiles = runs.num_tiles
    buffer = np.zeros(layout.used_size(n), np.int32)
    view = PlanView(buffer, layout)
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
    }
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
    rows[:n, 7] = pack_meta(order, 0, records.section_heads)
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
