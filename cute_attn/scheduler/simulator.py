"""Predicts how long a plan takes, from two resources: tensor cores and HBM bandwidth.

A fluid model. Each thread block has a time it needs if nobody else read (`alone`: tensor-core work,
or its loads at the most one SM can read), and bytes it takes from HBM. Blocks progress together;
the device's bandwidth is shared max-min fairly, so a block's reading speed depends on how many
others read. What several query tiles of one request and head read is counted once: they find it in
the L2 cache. The block that finishes the last piece of a split tile merges it.

It is a prediction for comparing schedules, with launch overhead, clocks and cache misses left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cute_attn.abi import Item, WorkWalker
from cute_attn.scheduler.batch import Geometry, RequestBatch
from cute_attn.scheduler.cost import DEFAULT_COST, H200, CostModel, Gpu
from cute_attn.scheduler.each import Int64Array
from cute_attn.scheduler.plan import Plan
from cute_attn.scheduler.reads import reads_of

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Report:
    """What the simulator says of one assignment.

    Attributes:
        gpu: whose ceilings were taken.
        num_blocks, num_items, num_split_tiles: counts.
        busy_us: (num_blocks,) when each block ends.
        compute_us: (num_blocks,) tensor-core time of each block.
        hbm_bytes: read from HBM by all blocks.
        merge_us: how much later the last block ends because split tiles are merged.
        ideal_us: the same tiles, none split, if their time could be spread evenly.
    """

    gpu: Gpu
    num_blocks: int
    num_items: int
    num_split_tiles: int
    busy_us: FloatArray
    compute_us: FloatArray
    hbm_bytes: int
    merge_us: float
    ideal_us: float

    @property
    def predicted_us(self) -> float:
        """Time of the step."""
        return float(self.busy_us.max(initial=0.0)) + self.merge_us

    @property
    def floor_us(self) -> float:
        """No schedule is faster: all tensor-core time spread evenly, or all bytes at full rate."""
        return max(float(self.compute_us.mean()), self.hbm_bytes / self.gpu.read_gbps / 1000)

    @property
    def imbalance(self) -> float:
        """Last block over the mean of all blocks."""
        mean = float(self.busy_us.mean())
        return float(self.busy_us.max()) / mean if mean else 1.0

    def __str__(self) -> str:
        us = max(self.predicted_us, 1e-9)
        lines = (
            ("device", self.gpu.name),
            ("thread blocks", f"{self.num_blocks}"),
            ("items", f"{self.num_items}"),
            ("split tiles", f"{self.num_split_tiles}"),
            ("imbalance (max / mean)", f"{self.imbalance:.3f}"),
            ("predicted time", f"{self.predicted_us:.1f} us (merge {self.merge_us:.1f})"),
            ("floor", f"{self.floor_us:.1f} us"),
            ("tensor cores busy", f"{100 * float(self.compute_us.mean()) / us:.0f} %"),
            ("HBM read", f"{self.hbm_bytes / us / 1000:.0f} GB/s"),
        )
        return "\n".join(f"{name:24}{value}" for name, value in lines)


def plan_items(plan: Plan) -> list[list[Item]]:
    """Items of each thread block of a plan, with `Item.request` the caller's index."""
    walker = WorkWalker(plan.view)
    batch = [plan.view.request(i).batch for i in range(plan.num_requests)]
    return [
        [item._replace(request=batch[item.request]) for item in walker.items(block)]
        for block in range(walker.num_blocks)
    ]


def simulate(
    assignment: Plan | Sequence[Sequence[Item]],
    requests: RequestBatch,
    geometry: Geometry,
    *,
    cost: CostModel = DEFAULT_COST,
    gpu: Gpu = H200,
    blocks_per_sm: int = 1,
) -> Report:
    """Predicts the time of a plan, or of items per block such as `HeapAssignment.blocks`.

    Args:
        assignment: what each thread block computes.
        requests, geometry: what was planned.
        cost: the kernel's costs.
        gpu: the device's ceilings.
        blocks_per_sm: resident blocks that share an SM.
    """
    blocks = plan_items(assignment) if isinstance(assignment, Plan) else assignment
    launch = _demand(blocks, requests, geometry, cost, gpu, blocks_per_sm)
    return _reports([launch], gpu)[0]


def simulate_plans(
    plans: Sequence[Plan], blocks_per_sm: Sequence[int], *, gpu: Gpu = H200
) -> list[Report]:
    """Predicts launches that run at the same time, on SMs of their own, and share the bandwidth.

    Args:
        plans: of the launches.
        blocks_per_sm: of each launch.
        gpu: the device's ceilings.
    """
    launches = []
    for plan, per_sm in zip(plans, blocks_per_sm, strict=True):
        walker = WorkWalker(plan.view)
        blocks = [list(walker.items(block)) for block in range(walker.num_blocks)]
        launches.append(_demand(blocks, plan.requests, plan.geometry, plan.cost, gpu, per_sm))
    return _reports(launches, gpu)


@dataclass(frozen=True)
class _Demand:
    """What the thread blocks of a launch need.

    Attributes:
        alone: (num_blocks,) us of each if nobody else read.
        bytes_of: (num_blocks,) from HBM.
        merges: (num_blocks,) us that each merges.
        compute: (num_blocks,) us of its tensor-core work.
        spread_us: mean of `alone` if no tile were split.
        num_items, num_split_tiles: counts.
    """

    alone: FloatArray
    bytes_of: FloatArray
    merges: FloatArray
    compute: FloatArray
    spread_us: float
    num_items: int
    num_split_tiles: int


def _demand(
    blocks: Sequence[Sequence[Item]],
    requests: RequestBatch,
    geometry: Geometry,
    cost: CostModel,
    gpu: Gpu,
    blocks_per_sm: int,
) -> _Demand:
    """Of one launch; `Item.request` is an index into `requests`."""
    items = [item for block in blocks for item in block]
    of_block = np.repeat(np.arange(len(blocks)), [len(block) for block in blocks])
    reads = reads_of(items, requests, geometry)
    _, tile, _, _, rows, begin, end, slot = reads.table.T

    # Bytes that one (request, head) needs once, over the bytes that its items load.
    loaded = np.bincount(reads.owner, reads.keys, reads.once.size)
    fresh = np.minimum(reads.once / np.maximum(loaded, 1), 1.0)

    compute = (end - begin) * cost.compute_block(geometry) / 1000
    partial = (slot >= 0) * rows * cost.partial_row_ps / 1e6
    load_us = reads.keys * cost.key_bytes * blocks_per_sm / gpu.sm_read_gbps / 1000
    loop = np.maximum(compute, load_us)
    hbm = (reads.keys * fresh[reads.owner] + rows) * cost.key_bytes
    count, fixed = len(blocks), cost.item(geometry) / 1000
    took = loop + fixed + partial
    return _Demand(
        alone=_sum(of_block, took, count),
        bytes_of=_sum(of_block, hbm, count),
        merges=_merges(reads.table, of_block, took, cost, count),
        compute=_sum(of_block, compute, count),
        spread_us=float(loop.sum() + np.unique(tile).size * fixed) / count,
        num_items=len(items),
        num_split_tiles=int(np.unique(tile[slot >= 0]).size),
    )


def _reports(launches: Sequence[_Demand], gpu: Gpu) -> list[Report]:
    """Of launches that run at the same time."""
    rate = gpu.read_gbps * 1000
    alone = np.concatenate([launch.alone for launch in launches])
    bytes_of = np.concatenate([launch.bytes_of for launch in launches])
    merges = np.concatenate([launch.merges for launch in launches])
    busy = _share_bandwidth(alone, bytes_of, rate)
    after = _share_bandwidth(alone + merges, bytes_of, rate) if merges.any() else busy
    reports, begin = [], 0
    for launch in launches:
        own = slice(begin, begin + launch.alone.size)
        begin = own.stop
        late = float(after[own].max(initial=0.0) - busy[own].max(initial=0.0))
        hbm_bytes = float(launch.bytes_of.sum())
        report = Report(
            gpu=gpu,
            num_blocks=launch.alone.size,
            num_items=launch.num_items,
            num_split_tiles=launch.num_split_tiles,
            busy_us=busy[own],
            compute_us=launch.compute,
            hbm_bytes=int(hbm_bytes),
            merge_us=max(late, 0.0),
            ideal_us=max(launch.spread_us, hbm_bytes / rate),
        )
        reports.append(report)
    return reports


def _merges(
    table: Int64Array, of_block: Int64Array, took: FloatArray, cost: CostModel, count: int
) -> FloatArray:
    """(count,) microseconds that each block merges: those that end the last piece of a tile.

    When a piece ends is told from the block's items alone, merges before it left out.
    """
    elapsed = np.cumsum(took)
    first = np.searchsorted(of_block, np.arange(count))
    before = np.r_[0.0, elapsed][first]
    ends = elapsed - before[of_block]
    pieces = np.flatnonzero(table[:, -1] >= 0)
    _, tile, size = np.unique(table[pieces, 1], return_inverse=True, return_counts=True)
    in_time = np.argsort(ends[pieces], kind="stable")
    last = np.zeros(size.size, np.int64)
    last[tile[in_time]] = pieces[in_time]  # of one tile's pieces the last assignment stays
    us = (cost.merge_ns + size * table[last, 4] * cost.merge_row_ps / 1000) / 1000
    return _sum(of_block[last], us, count)


def _sum(index: Int64Array, values: FloatArray, size: int) -> FloatArray:
    return np.bincount(index, values, size).astype(np.float64)


def _share_bandwidth(alone: FloatArray, bytes_of: FloatArray, rate: float) -> FloatArray:
    """When each block ends, if all start at 0 and share `rate` bytes per us max-min fairly.

    A block that gets all the bytes it asks for ends after `alone`.
    """
    ends = np.zeros_like(alone)
    left = np.where(alone > 0, 1.0, 0.0)  # share of each block's work still to do
    wanted = bytes_of / np.maximum(alone, 1e-12)
    now = 0.0
    while (active := np.flatnonzero(left > 0)).size:
        granted = _max_min(wanted[active], rate)
        speed = granted / np.maximum(wanted[active], 1e-12)
        speed = np.where(wanted[active] > 0, speed, 1.0) / alone[active]
        until = left[active] / speed
        step = float(until.min())
        now += step
        done = until <= step * (1 + 1e-9)
        left[active] -= step * speed
        left[active[done]] = 0.0
        ends[active[done]] = now
    return ends


def _max_min(wanted: FloatArray, total: float) -> FloatArray:
    """Max-min fair shares of `total`: nobody gets more than wanted, the others get the same."""
    order = np.argsort(wanted, kind="stable")
    ascending = wanted[order]
    before = np.cumsum(ascending) - ascending
    fair = (total - before) / np.arange(wanted.size, 0, -1)
    short = ascending > fair
    level = fair[int(short.argmax())] if short.any() else np.inf
    return np.minimum(wanted, level)
