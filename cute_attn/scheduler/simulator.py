"""Predicts how long a plan takes, from two resources: tensor cores and HBM bandwidth.

A fluid model (`fluid`). Each thread block has a time it needs if nobody else read (tensor-core
work, or its loads at the most one SM can read), and bytes it takes from HBM. Blocks progress
together; the device's bandwidth is shared max-min fairly, so a block's reading speed depends on how
many others read. What several query tiles of one request and head read is counted once: they find
it in the L2 cache. The block that finishes the last piece of a split tile merges it.

How long things take is measured (`constants`), and apart from what plans are judged by. Left out:
that a card short of power slows its clock down, and what L2 loses to other launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cute_attn.abi import Item, WorkWalker
from cute_attn.scheduler.batch import Geometry, RequestBatch
from cute_attn.scheduler.constants import Gpu
from cute_attn.scheduler.cost import DEFAULT_COST
from cute_attn.scheduler.each import Int64Array
from cute_attn.scheduler.fluid import Course, FloatArray, Work, flow
from cute_attn.scheduler.plan import Plan
from cute_attn.scheduler.reads import Reads, reads_of
from cute_attn.scheduler.timing import Timing
from cute_attn.scheduler.visits import Visible

_LEAST_US = 1e-3
"""Of an item: one without keys writes zeros."""


@dataclass(frozen=True)
class Report:
    """What the simulator says of one assignment.

    Attributes:
        gpu: whose ceilings were taken.
        num_split_tiles: count.
        compute_us: (num_blocks,) tensor-core time of each block.
        hbm_bytes: read from HBM by all blocks.
        ideal_us: the same tiles, none split, if their time could be spread evenly.
        of_block: (num_items,) the block of each item, ascending.
        shares: (num_items, 2) how much of its block's work is done before and after each item.
        course: when blocks do what.
    """

    gpu: Gpu
    num_split_tiles: int
    compute_us: FloatArray
    hbm_bytes: int
    ideal_us: float
    of_block: Int64Array = field(repr=False)
    shares: FloatArray = field(repr=False)
    course: Course = field(repr=False)

    @property
    def num_blocks(self) -> int:
        """Thread blocks."""
        return self.compute_us.size

    @property
    def num_items(self) -> int:
        """Items of all blocks."""
        return self.of_block.size

    @property
    def place(self) -> Int64Array:
        """(num_blocks,) which of the blocks that run at the same time each one follows."""
        return self.course.place

    @property
    def busy_us(self) -> FloatArray:
        """(num_blocks,) when each block ends, merges left out; 0 if it has nothing to do."""
        return self.course.busy

    @property
    def merge_us(self) -> float:
        """How much later the last block ends because split tiles are merged."""
        last, end = (float(of.max(initial=0.0)) for of in (self.course.busy, self.course.ends))
        return max(end - last, 0.0)

    @cached_property
    def items_us(self) -> FloatArray:
        """(num_items, 2) begin and end of each item."""
        times = self.course.times(self.of_block.repeat(2), self.shares.reshape(-1))
        return times.reshape(-1, 2)

    @property
    def predicted_us(self) -> float:
        """Time of the step."""
        return float(self.busy_us.max(initial=0.0)) + self.merge_us

    @property
    def floor_us(self) -> float:
        """No schedule is faster: all tensor-core time spread evenly, or all bytes at full rate."""
        places = int(self.place.max(initial=0)) + 1
        return max(float(self.compute_us.sum()) / places, self.hbm_bytes / self.gpu.read_gbps / 1e3)

    @property
    def places_us(self) -> FloatArray:
        """When the last of the blocks that follow one another ends."""
        ends = np.zeros(int(self.place.max(initial=0)) + 1)
        np.maximum.at(ends, self.place, self.busy_us)
        return ends

    @property
    def imbalance(self) -> float:
        """Last block over the mean of all that run at the same time."""
        ends = self.places_us
        mean = float(ends.mean())
        return float(ends.max()) / mean if mean else 1.0

    def __str__(self) -> str:
        us = max(self.predicted_us, 1e-9)
        busy = float(self.compute_us.sum()) / self.places_us.size / us
        lines = (
            ("device", self.gpu.name),
            ("thread blocks", f"{self.num_blocks}"),
            ("items", f"{self.num_items}"),
            ("split tiles", f"{self.num_split_tiles}"),
            ("imbalance (max / mean)", f"{self.imbalance:.3f}"),
            ("predicted time", f"{self.predicted_us:.1f} us (merge {self.merge_us:.1f})"),
            ("floor", f"{self.floor_us:.1f} us"),
            ("tensor cores busy", f"{100 * busy:.0f} %"),
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
    blocks: Sequence[Sequence[Item]],
    requests: RequestBatch,
    geometry: Geometry,
    timing: Timing | None = None,
) -> Report:
    """Predicts the time of items per thread block, such as `HeapAssignment.blocks`.

    Args:
        blocks: what each thread block computes; `Item.request` is an index into `requests`.
        requests, geometry: what was planned.
        timing: of the kernel; default: what plans take work to cost by default.
    """
    items = LaunchItems.of(blocks, requests, geometry)
    return simulate_items([items], [timing or Timing.of(DEFAULT_COST)])[0]


def simulate_plans(plans: Sequence[Plan], timings: Sequence[Timing]) -> list[Report]:
    """Predicts launches that run at the same time, on SMs of their own, and share the bandwidth.

    Args:
        plans: of the launches, in their order: each starts when the blocks of the one before it
            have started.
        timings: of their kernels, on one GPU.
    """
    return simulate_items([LaunchItems.of_plan(plan) for plan in plans], timings)


def simulate_in_turn(launches: Sequence[LaunchItems], timings: Sequence[Timing]) -> list[Report]:
    """Launches one after the other, each on the whole device; times go on from one to the next."""
    reports, begin = [], 0.0
    for items, timing in zip(launches, timings, strict=True):
        made = _work(items, timing, begin)
        (course,) = flow([made[0]], timing.rate)
        reports.append(_report(items, timing, made, course, timing.rate))
        begin = max(begin, reports[-1].predicted_us)
    return reports


def simulate_items(launches: Sequence[LaunchItems], timings: Sequence[Timing]) -> list[Report]:
    """`simulate_plans` of items that are known already."""
    works, begin = [], 0.0
    for items, timing in zip(launches, timings, strict=True):
        works.append(_work(items, timing, begin))
        begin += timing.start_us if items.of_block.size else 0.0
    pairs = zip(launches, timings, strict=True)
    rates = [timing.rate for items, timing in pairs if items.of_block.size]
    rate = min(rates, default=timings[0].rate)
    courses = flow([work for work, _ in works], rate)
    every = zip(launches, timings, works, courses, strict=True)
    return [_report(*of_launch, rate) for of_launch in every]


@dataclass(frozen=True)
class LaunchItems:
    """What the thread blocks of a launch compute, whatever time it takes.

    Attributes:
        geometry: tile shape and band.
        reads: the items and the keys that they read.
        sizes: (num_blocks,) items of each block.
        wave_us: (num_blocks,) when blocks start, by the plan; 0 where all are resident.
        resident: blocks that run at the same time.
    """

    geometry: Geometry
    reads: Reads
    sizes: Int64Array
    wave_us: FloatArray
    resident: int

    @classmethod
    def of(
        cls,
        blocks: Sequence[Sequence[Item]],
        requests: RequestBatch,
        geometry: Geometry,
        visible: Visible | None = None,
    ) -> LaunchItems:
        """Of items per thread block; `Item.request` is an index into `requests`. `visible`: of a
        mask that empties KV blocks within the band."""
        sizes = np.array([len(block) for block in blocks], np.int64)
        every = [item for block in blocks for item in block]
        reads = reads_of(every, requests, geometry, visible)
        return cls(geometry, reads, sizes, np.zeros(sizes.size), sizes.size)

    @classmethod
    def of_plan(cls, plan: Plan) -> LaunchItems:
        """Of a plan."""
        walker = WorkWalker(plan.view)
        blocks = [list(walker.items(block)) for block in range(walker.num_blocks)]
        found = cls.of(blocks, plan.requests, plan.geometry, plan.visible)
        wave_us, resident = plan.waves[1] / 1000, plan.resident_blocks or len(blocks)
        return replace(found, wave_us=wave_us, resident=resident)

    @property
    def of_block(self) -> Int64Array:
        """(num_items,) the block of each item."""
        return np.arange(self.sizes.size).repeat(self.sizes)


class _Times(NamedTuple):
    """Of a launch if nobody else read.

    Attributes:
        compute: (num_blocks,) us of tensor-core work.
        shares: (num_items, 2) how much of its block's work is done before and after each item.
        spread_us: the mean of all blocks' times if no tile were split.
    """

    compute: FloatArray
    shares: FloatArray
    spread_us: float


def _work(items: LaunchItems, timing: Timing, begin_us: float) -> tuple[Work, _Times]:
    reads, count, of_block = items.reads, items.sizes.size, items.of_block
    tile, rows, slot = reads.table.T[[1, 4, 7]]
    before_block = items.sizes.cumsum() - items.sizes
    first = np.zeros(tile.size, bool)
    first[before_block[items.sizes > 0]] = True

    # Bytes that one (request, head) needs once, over the bytes that its items load.
    loaded = np.bincount(reads.owner, reads.keys, reads.once.size)
    fresh = np.minimum(reads.once / np.maximum(loaded, 1), 1.0)

    compute = reads.blocks.astype(np.float64) * timing.compute_block(items.geometry)
    partial = (slot >= 0) * rows * timing.partial_row_ps / 1e6
    loop = np.maximum(compute, reads.keys * timing.key_bytes / timing.block_gbps / 1000)
    hbm = (reads.keys * fresh[reads.owner] + rows) * timing.key_bytes
    masked = timing.masked(items.geometry)
    took = loop + masked + partial + np.where(first, timing.first_us, timing.item_us)
    took = np.maximum(took, _LEAST_US)

    alone, done = _sum(of_block, took, count), took.cumsum()
    own = done - np.r_[0.0, done][before_block][of_block]
    after = own / alone[of_block]
    before = np.maximum(after - took / alone[of_block], 0.0)
    whole = np.unique(tile).size
    starts = min(whole, items.resident)
    spread_us = loop.sum() + whole * masked
    spread_us += starts * timing.first_us + (whole - starts) * timing.item_us
    work = Work(
        alone=alone,
        bytes_of=_sum(of_block, hbm, count),
        merges=_merges(items, own, timing),
        begin_us=begin_us,
        start_us=timing.start_us,
        next_us=timing.item_us,
        resident=items.resident,
    )
    shares = np.stack((before, after), axis=1)
    return work, _Times(_sum(of_block, compute, count), shares, float(spread_us) / items.resident)


def _report(
    items: LaunchItems, timing: Timing, made: tuple[Work, _Times], course: Course, rate: float
) -> Report:
    work, times = made
    hbm_bytes = float(work.bytes_of.sum())
    of_block, table = items.of_block, items.reads.table
    start_us = timing.start_us if of_block.size else 0.0
    return Report(
        gpu=timing.gpu,
        num_split_tiles=int(np.unique(table[table[:, -1] >= 0, 1]).size),
        compute_us=times.compute,
        hbm_bytes=int(hbm_bytes),
        ideal_us=start_us + max(times.spread_us, hbm_bytes / rate),
        of_block=of_block,
        shares=times.shares,
        course=course,
    )


def _merges(items: LaunchItems, ends: FloatArray, timing: Timing) -> FloatArray:
    """(num_blocks,) microseconds that each block merges: those that end the last piece of a tile.

    When a piece ends is told from the block's items alone, merges before it left out.
    """
    table, of_block = items.reads.table, items.of_block
    pieces = np.flatnonzero(table[:, -1] >= 0)
    when = ends[pieces] + items.wave_us[of_block[pieces]]
    _, tile, size = np.unique(table[pieces, 1], return_inverse=True, return_counts=True)
    in_time = np.argsort(when, kind="stable")
    last = np.zeros(size.size, np.int64)
    last[tile[in_time]] = pieces[in_time]  # of one tile's pieces the last assignment stays
    partial_rows = (size * table[last, 4]).astype(np.float64)
    return _sum(of_block[last], timing.merge(partial_rows), items.sizes.size)


def _sum(index: Int64Array, values: FloatArray, size: int) -> FloatArray:
    return np.bincount(index, values, size).astype(np.float64)
