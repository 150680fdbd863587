"""`plan_batch`: this step's lengths in, the plan buffer out.

Policy "balanced": records are sorted by the cost of their longest tile. Then two ways to hand out
tiles meet in the middle.

* Whole tiles, in rounds (see `rounds`): as many rounds (and then single tiles) as leave every block
  within the ideal share. Tiles that run at the same time share KV through the L2 cache.
* The rest is one line of KV blocks, cut (stream-K) so that all blocks end together.

A batch in which every request has one query tile (decode) has nothing to share: all of it is the
line. Not so where all query rows of a KV head read the same keys, rows of a sparse pattern: the
records of each head stand together, and its tiles go out in rounds. Splitting costs partial results
and a merge, so several ways are priced (all tiles whole, line cut between tiles only, line cut
anywhere, few tiles in even pieces) and the cheapest is taken. All tiles whole, if that leaves less
idle than splitting costs, is taken without a look at the others: it also depends least on what the
model says.

Policy "whole" never splits: what a request's result is computed from, and in which order, then does
not depend on the rest of the batch.

Everything is integer arithmetic in NumPy with 64-bit sums, ties are broken by index, nothing is
iterated to convergence: equal input gives an equal plan, to the bit.
"""

from __future__ import annotations

from operator import attrgetter

import numpy as np

from cute_attn.abi.plan import (
    HEADER_FIELDS,
    REQUEST_FIELDS,
    UNBOUNDED,
    IntArray,
    PlanLayout,
    pack_meta,
    plan_layout,
)
from cute_attn.scheduler.batch import Geometry, RequestBatch
from cute_attn.scheduler.blank import blank_plan
from cute_attn.scheduler.cost import DEFAULT_COST, CostModel
from cute_attn.scheduler.cuts import (
    Cuts,
    Slots,
    cost_between_tiles,
    cut_anywhere,
    cut_between_tiles,
    cut_evenly,
    mark_line,
    share_line,
    share_line_equally,
)
from cute_attn.scheduler.each import Int64Array, at_most, most, pick, running_sum, spread, total
from cute_attn.scheduler.memory import PlanMemory
from cute_attn.scheduler.plan import Plan
from cute_attn.scheduler.pricing import Candidate, Price, cut_between, cut_inside, price_whole
from cute_attn.scheduler.rounds import hand_out_rounds, sort_last_rounds
from cute_attn.scheduler.sections import CUT, SPLIT, items
from cute_attn.scheduler.starts import write_copies, write_starts
from cute_attn.scheduler.tiles import Records, Runs, make_runs, sort_requests
from cute_attn.scheduler.visits import Visible, Visits, tile_of
from cute_attn.scheduler.workspace import max_slots

POLICIES = ("balanced", "whole")
# Far below the 60 MB of an H200's L2: two generations of heads overlap, each half of the L2 keeps
# its own copy, and causal tiles read their KV at different places. (192, 128) causal, 128 heads of
# 8k keys: 601 TFLOP/s with 24 MB, 618 with 12, 654 with 8, 680 with 4.
DEFAULT_L2_BUDGET = 4 << 20
_INT32_MAX = (1 << 31) - 1
_FINISH = attrgetter("finish")


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
    visible: Visible | None = None,
    memory: PlanMemory | None = None,
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
        min_piece: no piece of a split tile is shorter than this many KV blocks. Default: 64 keys,
            or as many as writing a partial result costs.
        l2_budget: bytes of K and V that tiles running at the same time should share.
        visible: of a mask that empties KV blocks within the band, which are then taken to cost
            nothing.
        memory: of earlier calls. It changes nothing but the time that it takes.

    Raises:
        ValueError: an argument is out of range, or the requests exceed the capacity.

    Source: stream-K after Osama et al., arXiv 2301.03598; what is balanced and why follows the
    scheduler of the FlashInfer paper (arXiv 2501.01005, section 3.3), whose own algorithm is in
    `cute_attn.scheduler.min_heap`.
    """
    capacity = check_arguments(requests, num_blocks, max_requests)
    if policy not in POLICIES:
        raise ValueError(f"policy is {policy!r}; known: {', '.join(POLICIES)}")
    if l2_budget < 0:
        raise ValueError(f"l2_budget is {l2_budget}; it takes bytes, at least 0")
    if min_piece is not None and min_piece < 1:
        raise ValueError(f"min_piece is {min_piece}; it takes KV blocks, at least 1")
    n = requests.num_requests
    common = requests.common_keys
    key = (geometry, num_blocks, capacity, cost, policy, min_piece, l2_budget, common)
    if visible is not None:
        memory = None  # which blocks are visited may change with every token
    if memory is not None and (plan := memory.recall(key, requests, geometry)) is not None:
        return plan
    visits = None if visible is None else Visits(requests, geometry, visible)
    records = sort_requests(requests, geometry, cost, l2_budget, min_piece, visits)
    if records.most_q_tiles > 1 or n * geometry.num_kv_heads > _INT32_MAX:
        check_counts(requests, records, geometry)
    item = cost.item(geometry)
    runs = make_runs(records, geometry, item)
    best = _hand_out(records, runs, num_blocks, item, cost, split=policy == "balanced")
    plan = write_plan(records, runs, geometry, best, plan_layout(num_blocks, capacity), cost)
    plan.visible, plan.common_keys = visible, common
    if memory is not None:
        memory.keep(key, requests, records, plan)
    return plan


def check_arguments(requests: RequestBatch, num_blocks: int, max_requests: int | None) -> int:
    """The capacity of the plan; raises if the grid is out of range or the capacity exceeded."""
    if not 1 <= num_blocks < 1 << 16:
        raise ValueError(f"num_blocks is {num_blocks}; it takes 1 .. {(1 << 16) - 1}")
    n = requests.num_requests
    capacity = n if max_requests is None else max_requests
    if n > capacity:
        raise ValueError(f"the batch has {n} requests but max_requests is {capacity}")
    return capacity


def check_counts(requests: RequestBatch, records: Records, geometry: Geometry) -> None:
    """Raises if what the kernels count in int32 does not fit."""
    longest = requests.most_q_len
    if longest * geometry.group > _INT32_MAX:
        raise ValueError(f"q_len {longest} times group must stay below 2^31")
    num_tiles = total(records.q_tiles, records.count) * geometry.num_kv_heads
    if num_tiles > _INT32_MAX:
        raise ValueError(f"the batch has {num_tiles} tiles; 2^31 - 1 fit")


def _hand_out(
    records: Records, runs: Runs, num_blocks: int, item: int, cost: CostModel, *, split: bool
) -> Candidate:
    """The cheapest way to hand out the tiles; of equals the one with fewer splits.

    `item`: fixed cost of an item.
    """
    if runs.num_tiles == 0:
        none = np.zeros(num_blocks + 1, np.int64)
        return Candidate(0, Cuts(none, none, none, none), Price.known(none[1:]))
    candidates: list[Candidate] = []
    num_whole, rounds, loads = 0, None, None
    if records.most_q_tiles > 1 or records.by_head:  # neighbours share keys
        share = -(-runs.total_cost // num_blocks)
        rounds = hand_out_rounds(runs.tile_costs(), num_blocks)
        whole = price_whole(runs, rounds)
        slack = share // 512
        if whole.finish > share + slack and rounds.tiles.size:
            sorted_end = price_whole(runs, sort_last_rounds(rounds))
            whole = min(whole, sorted_end, key=_FINISH)
        # No split plan does better than one more item per block and a merge.
        if whole.finish <= share + max(slack, item + cost.merge_ns):
            return whole
        candidates.append(whole)
        num_whole, loads = rounds.prefix(share)

    longest = runs.largest(runs.tile_cost)
    # Of requests that have tiles.
    piece = most(at_most(records.q_tiles, 1) * records.min_piece * records.block_cost) + item
    # Pieces of a tile get long enough if shares are; without tiles to split that is no matter.
    splittable = split and _is_splittable(records, runs)
    min_share = min(piece, longest) if splittable else 0
    begin_cost = 0
    if loads is None:
        shared, smallest = share_line_equally(num_blocks, runs.total_cost, min_share)
    else:
        begin_cost = int(loads.sum())
        shared, smallest = share_line(loads, runs.total_cost - begin_cost, min_share)
    marks = mark_line(runs, begin_cost, shared)
    splits = []
    if splittable:
        cuts = cut_anywhere(records, runs, marks, item, near=smallest >= 2 * piece)
        splits.append(cut_inside(records, runs, cuts, item, cost, loads, num_whole, rounds))
        even = cut_evenly(records, runs, num_blocks)
        if even is not None:
            splits.append(cut_inside(records, runs, even, item, cost))
        elif loads is None and _most_cost(records, longest, smallest, piece, item, cost) < longest:
            return splits[0]  # cut between tiles, a block has the longest one
    # With all tiles on the line, cut between them, a block has the longest tile, and more than one
    # where those are shorter than a share.
    finish = min(splits, key=_FINISH).finish if splits and not num_whole else 0
    if not finish or (finish >= longest and finish >= cost_between_tiles(marks)):
        candidates.append(cut_between(cut_between_tiles(runs, marks), loads, num_whole, rounds))
    candidates += splits
    return candidates[0] if len(candidates) == 1 else min(candidates, key=_FINISH)


def _most_cost(
    records: Records, longest: int, share: int, piece: int, item: int, cost: CostModel
) -> int:
    """No less than a step takes that is cut anywhere in shares of `share`.

    Args:
        records: of the step.
        longest: cost of the longest tile.
        share: cost of a share.
        piece: cost of the longest of all shortest pieces, which is as far as a cut moves.
        item, cost: as for `_hand_out`.
    """
    least = share - 2 * piece
    if least <= 0:
        return longest  # nobody knows how many pieces a tile has
    pieces = longest // least + 3
    merge = cost.merge_ns + pieces * most(records.merge_cost)
    return share + 2 * piece + item + 2 * most(records.partial_cost) + merge


def _is_splittable(records: Records, runs: Runs) -> bool:
    """Whether a tile is long enough for two pieces."""
    if not isinstance(records.min_piece, np.ndarray):
        return runs.largest(runs.blocks) >= 2 * records.min_piece
    # The tile with the last query rows is mostly the longest: one look at each request will do.
    some = (records.last_blocks >= 2 * records.min_piece) & (records.q_tiles > 0)
    return bool(some.any() or (runs.blocks >= 2 * records.min_piece[runs.records]).any())


def _listed_places(best: Candidate, num_blocks: int) -> tuple[int, Int64Array | None]:
    """The first listed round; (listed rounds, num_blocks) places, counted from its first tile, or
    None if there are none."""
    if best.rounds is not None and best.rounds.tiles.size:
        listed = best.rounds.places(-(-best.num_whole // num_blocks))
        if listed.size:
            return best.rounds.first_listed, listed
    return UNBOUNDED, None


_NUM_TILES, _NUM_SPLITS, _NUM_SLOTS = (
    HEADER_FIELDS.index(name) for name in ("num_tiles", "num_split_tiles", "num_slots")
)


def write_plan(
    records: Records,
    runs: Runs,
    geometry: Geometry,
    best: Candidate,
    layout: PlanLayout,
    cost: CostModel,
) -> Plan:
    """Fills the buffer."""
    n, num_blocks = records.count, layout.num_blocks
    cuts, slots = best.cuts, best.slots
    num_splits, num_slots = (slots.lead.size, slots.count) if slots else (0, 0)
    assert num_slots <= max_slots(num_blocks)
    places_at = layout.places(n)
    first_listed, listed = _listed_places(best, num_blocks)
    num_listed = 0 if listed is None else listed.size
    tiles = records.q_tiles * geometry.num_kv_heads  # of each request, or of every one
    alike = tiles if isinstance(tiles, int) else 0
    blank = blank_plan(geometry, num_blocks, n, alike)
    if listed is None:
        buffer = blank.copy()
    else:
        buffer = np.zeros(places_at + (num_listed + 1) // 2, np.int32)
        buffer[:places_at] = blank
        buffer[places_at:].view(np.uint16)[:num_listed] = listed.reshape(-1)
    buffer[_NUM_TILES] = runs.num_tiles
    buffer[_NUM_SPLITS] = num_splits
    buffer[_NUM_SLOTS] = num_slots
    if best.num_whole:
        copies = {"num_whole_tiles": best.num_whole, "first_listed_round": first_listed}
        write_copies(buffer, layout, copies | {"places": places_at if num_listed else 0})
    _write_cuts(buffer, layout, records, runs, geometry.num_kv_heads, cuts, slots)

    rows = items(buffer, layout.requests, (n + 1, len(REQUEST_FIELDS)), buffer.dtype)
    rows[:n, :6] = records.table.T
    rows[:n, 7] = records.ids | pack_meta(0, 0, records.section_heads)
    ends = None
    if not alike:
        rows[1:, 6] = ends = running_sum(tiles, n)[1:]

    tile = cuts.tile[:num_blocks]
    if best.num_whole:
        whole = np.arange(num_blocks) if listed is None or first_listed else listed[0]
        tile = np.where(whole < best.num_whole, whole, tile)
    # Without work: the sentinel.
    request = tile // tiles if ends is None else ends.searchsorted(tile, "right")
    write_starts(buffer, layout, n, tile, request)
    tiles_of = runs.num_tiles, best.num_whole, num_splits
    return Plan(buffer, layout, n, *tiles_of, num_slots, best.price, cost)


def _places(
    records: Records, runs: Runs, num_heads: int, cuts: Cuts, cut: Int64Array
) -> Int64Array:
    """Some cuts, counted in visits, as KV blocks from the begin of the tile's range."""
    assert records.visits is not None
    record, tile, heads = runs.records_of(cuts.run[cut]), cuts.tile[cut], num_heads
    q_tiles, section_heads = pick(records.q_tiles, record), pick(records.section_heads, record)
    begin = running_sum(spread(records.q_tiles, records.count) * heads, records.count)[record]
    q_tile = tile_of(tile - begin, q_tiles, section_heads, heads)
    return records.visits.place(records.order[record], q_tile, cuts.block[cut])


def _write_cuts(
    buffer: IntArray,
    layout: PlanLayout,
    records: Records,
    runs: Runs,
    num_heads: int,
    cuts: Cuts,
    slots: Slots | None,
) -> None:
    """Fills `cuts` and `splits`."""
    rows = items(buffer, layout.cuts, layout.num_blocks + 1, CUT)
    rows["tile"] = cuts.tile
    if runs.num_tiles:
        rows["request"] = runs.records_of(cuts.run)
    if slots is None:
        return
    cut, lead = slots.cut, slots.lead
    rows["block"] = cuts.block
    if records.visits is not None:
        rows["block"][cut] = _places(records, runs, num_heads, cuts, cut)
    splits = items(buffer, layout.splits, lead.size, SPLIT)
    splits["tile"] = cuts.tile[lead]
    splits["request"] = runs.records_of(cuts.run[lead])
    splits["first_slot"] = slots.first
    splits["num_slots"] = slots.pieces
    rows["slot"][cut] = slots.slot.astype(np.int32)
    rows["slots"][cut] = splits["slots"][slots.split]
