"""`plan_fixed_pieces`: plans whose pieces depend on the request alone (batch invariance).

A balanced plan cuts tiles where thread blocks end, so what a request's result is added up from, and
in which order, depends on the rest of the batch. Here a tile is cut by a rule that knows only its
request (`abi.num_pieces`: about the square root of its keys, 8,192 in eight). With the same kernel
a request then has the same bits in every batch, at any place in it, on any number of SMs.

Two kinds of plans. A kernel that knows the rule (`KernelSpec.fixed_pieces`) takes an even share of
the line of all pieces per thread block. For the others a thread block has one piece, or
neighbouring whole tiles; there are as many blocks as that takes, and the device starts them in
order, the dearest first, as others end. Where they have no tile to cut, the plan is that of
`plan_batch` with the policy "whole".
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cute_attn.abi import PlanLayout
from cute_attn.abi.plan import CUT_FIELDS, plan_layout
from cute_attn.abi.work import KEYS_OF_SQUARE, MOST_PIECES, MOST_ROWS
from cute_attn.scheduler.batch import Geometry, RequestBatch
from cute_attn.scheduler.cost import DEFAULT_COST, CostModel
from cute_attn.scheduler.cuts import Cuts
from cute_attn.scheduler.each import Int64Array, most, pick, running_sum, spread
from cute_attn.scheduler.plan import Plan
from cute_attn.scheduler.planner import (
    DEFAULT_L2_BUDGET,
    check_arguments,
    check_counts,
    plan_batch,
    write_plan,
)
from cute_attn.scheduler.pricing import Candidate, Price, cut_inside, line_costs
from cute_attn.scheduler.tiles import Records, Runs, make_runs, sort_requests

_CUT_BLOCK, _CUT_SLOT = CUT_FIELDS.index("block"), CUT_FIELDS.index("slot")
_WAVES = 8
"""Whole tiles are handed out so that a device takes at least so many blocks of them."""


def count_pieces(blocks: Int64Array, tiles: Int64Array, geometry: Geometry) -> Int64Array:
    """The array form of `cute_attn.abi.num_pieces`.

    Args:
        blocks: KV blocks that each tile visits.
        tiles: tiles of its request, of all KV heads.
        geometry: the kernel's tile shape.
    """
    root = np.sqrt(blocks * geometry.tile_kv // KEYS_OF_SQUARE).astype(np.int64)
    largest = np.minimum(MOST_ROWS // (tiles * geometry.tile_q), MOST_PIECES)
    pieces: Int64Array = np.minimum(np.minimum(root, blocks), largest)
    return np.maximum(pieces, 1)


def plan_fixed_pieces(
    requests: RequestBatch,
    geometry: Geometry,
    num_blocks: int,
    *,
    in_kernel: bool,
    grid: int | None = None,
    max_requests: int | None = None,
    cost: CostModel = DEFAULT_COST,
) -> Plan:
    """Plans one step so that the pieces of a request do not depend on the other requests.

    Args:
        requests: lengths and addresses of the requests.
        geometry: the kernel's tile shape and the visible band.
        num_blocks: thread blocks that the device runs at the same time.
        in_kernel: for a kernel that cuts tiles itself, by the same rule; `num_blocks` is its grid.
        grid: for other kernels: thread blocks of the plan; those that are not needed stay empty.
            Default: as many as are needed, at least `num_blocks`.
        max_requests: capacity of the plan; default: the number of requests.
        cost: the cost model. It says who computes which pieces, not where tiles are cut.

    Raises:
        ValueError: an argument is out of range, or the step needs a larger grid.

    Source: fixed split sizes for batch invariance: He, "Defeating Nondeterminism in LLM Inference"
    (Thinking Machines Lab, 2025).
    """
    capacity = check_arguments(requests, num_blocks, max_requests)
    if grid is not None and (in_kernel or grid < num_blocks):
        raise ValueError(
            f"grid is {grid}; it takes None or at least num_blocks, {num_blocks}, and None with"
            " in_kernel"
        )
    records = sort_requests(requests, geometry, cost, DEFAULT_L2_BUDGET, None)
    check_counts(requests, records, geometry)
    runs = make_runs(records, geometry, cost.item(geometry))
    tiles = spread(records.q_tiles, records.count) * geometry.num_kv_heads
    pieces = count_pieces(runs.blocks, tiles[runs.records], geometry)
    if in_kernel:
        layout = plan_layout(num_blocks, capacity)
        return _share_pieces(records, runs, pieces, geometry, layout, cost)
    if not (pieces > 1).any():
        blocks = grid or num_blocks
        plan = plan_batch(
            requests, geometry, blocks, max_requests=max_requests, cost=cost, policy="whole"
        )
        return replace(plan, resident_blocks=num_blocks)
    cuts, needed = _cut_everywhere(records, runs, pieces, num_blocks, grid)
    if grid is not None and needed > grid:
        raise ValueError(
            f"the step needs {needed} thread blocks, but the grid has {grid}: plan the step with"
            " the most keys first"
        )
    best = cut_inside(records, runs, cuts, cost.item(geometry), cost)
    layout = plan_layout(cuts.tile.size - 1, capacity)
    plan = write_plan(records, runs, geometry, best, layout, cost)
    return replace(plan, resident_blocks=num_blocks)


def _share_pieces(
    records: Records,
    runs: Runs,
    pieces: Int64Array,
    geometry: Geometry,
    layout: PlanLayout,
    cost: CostModel,
) -> Plan:
    """The line of all pieces in even shares, each a number of whole pieces."""
    split, item = pieces > 1, cost.item(geometry)
    heads, block_cost = spread(runs.heads, pieces.size), pick(records.block_cost, runs.records)
    partial = pick(records.partial_cost, runs.records)
    tile_cost = runs.blocks * block_cost + pieces * item + split * pieces * partial
    cost_begin = running_sum(heads * tile_cost, pieces.size)
    slot_begin = running_sum(heads * split * pieces, pieces.size)

    # Ideal cuts, moved to the nearest begin of a piece.
    if runs.num_tiles == 0:
        none = np.zeros(layout.num_blocks + 1, np.int64)
        cuts, slot, before = Cuts(none, none, none, none), none, none
    else:
        ideal = np.arange(layout.num_blocks + 1) * int(cost_begin[-1]) // layout.num_blocks
        run = cost_begin[1:-1].searchsorted(ideal, "right")
        local, rest = np.divmod(ideal - cost_begin[run], tile_cost[run])
        count = pieces[run]
        piece = (2 * rest * count + tile_cost[run]) // (2 * tile_cost[run])
        local, piece = local + piece // count, piece % count
        at = piece * runs.blocks[run] // count
        begin = cost_begin[run] + local * tile_cost[run]
        before = at * pick(block_cost, run) + piece * (item + pick(partial, run) * split[run])
        before += begin
        cuts = Cuts(runs.tiles_before(run) + local, at, run, begin)
        slot = slot_begin[run] + (local * count + piece) * split[run]

    merge = 0
    if split.any():
        merge = cost.merge_ns + most(pieces * split * pick(records.merge_cost, runs.records))
    best = Candidate(0, cuts, Price.known(line_costs(before, None), merge))
    plan = write_plan(records, runs, geometry, best, layout, cost)
    num_slots, num_split = int(slot_begin[-1]), int((heads * split).sum())
    plan.view.set(fixed_pieces=1, num_slots=num_slots)
    plan.view.cuts[:, _CUT_BLOCK], plan.view.cuts[:, _CUT_SLOT] = cuts.block, slot
    return replace(plan, num_slots=num_slots, num_split_tiles=num_split)


def _cut_everywhere(
    records: Records, runs: Runs, pieces: Int64Array, num_blocks: int, grid: int | None
) -> tuple[Cuts, int]:
    """Cuts between all pieces and some whole tiles, and how many thread blocks have work."""
    # One entry for every piece; whole tiles are one piece.
    per_run = spread(runs.heads, pieces.size) * pieces
    run = np.arange(per_run.size).repeat(per_run)
    own = np.arange(run.size) - (per_run.cumsum() - per_run)[run]
    local, piece = own // pieces[run], own % pieces[run]
    at = piece * runs.blocks[run] // pieces[run]
    block_cost = pick(records.block_cost, runs.records)
    fixed = runs.tile_cost - runs.blocks * block_cost
    begin = runs.cost_begin[run] + local * runs.tile_cost[run]
    cost = begin + (piece > 0) * (fixed[run] + at * pick(block_cost, run))

    # Whole tiles that begin in the same share of the line go to one block.
    share = cost // max(runs.total_cost // (_WAVES * num_blocks), 1)
    first = pieces[run] > 1
    first[0] = True
    first[1:] |= (share[1:] > share[:-1]) | (pieces[run[:-1]] > 1)
    needed = int(np.count_nonzero(first))
    unused = max(needed, grid or num_blocks) + 1 - needed
    end = (runs.num_tiles, 0, per_run.size - 1, runs.total_cost)
    tile, at, run, begin = (
        np.concatenate((values[first], np.full(unused, value)))
        for values, value in zip((runs.tiles_before(run) + local, at, run, begin), end, strict=True)
    )
    return Cuts(tile, at, run, begin), needed
