"""`Plan`: the plan buffer of one launch, and what is known about it."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from cute_attn.abi.plan import MAX_BATCH, REQUEST_FIELDS, IntArray, PlanLayout, PlanView
from cute_attn.scheduler.batch import Geometry, RequestBatch
from cute_attn.scheduler.cost import CostModel
from cute_attn.scheduler.each import Int64Array
from cute_attn.scheduler.pricing import Price
from cute_attn.scheduler.visits import Visible

if TYPE_CHECKING:
    from cute_attn.scheduler.explain import Explanation
    from cute_attn.scheduler.timing import Timing


@dataclass(eq=False)
class Plan:
    """A plan and what is known about it; not to be changed.

    Attributes:
        buffer: (layout.used_size(num_requests, listed rounds),) int32, what goes to the device.
        layout: offsets, from the capacities.
        num_requests, num_tiles, num_whole_tiles, num_split_tiles, num_slots: as in the header.
        price: its costs, computed when asked for.
        cost: the cost model that it was planned with.
        resident_blocks: thread blocks that run at the same time, where there may be more of them;
            None: all.
        visible: of a mask that empties KV blocks within the band, as it was planned with.
        common_keys: of the requests.
    """

    buffer: IntArray
    layout: PlanLayout
    num_requests: int
    num_tiles: int
    num_whole_tiles: int
    num_split_tiles: int
    num_slots: int
    price: Price
    cost: CostModel
    resident_blocks: int | None = None
    visible: Visible | None = None
    common_keys: int = 0

    def with_buffer(self, buffer: IntArray) -> Plan:
        """The same with a buffer in which only numbers of the records are other ones."""
        counts = self.num_tiles, self.num_whole_tiles, self.num_split_tiles, self.num_slots
        known = self.price, self.cost, self.resident_blocks, self.visible
        return Plan(buffer, self.layout, self.num_requests, *counts, *known)

    @property
    def block_costs(self) -> Int64Array:
        """(num_blocks,) int64, model cost of each block, ns."""
        return self.price.numbers()[0]

    @property
    def merge_cost(self) -> int:
        """Model cost of the merge, ns; 0 if no tile is split."""
        return self.price.numbers()[1]

    @cached_property
    def view(self) -> PlanView:
        """NumPy views of the buffer's sections."""
        return PlanView(self.buffer, self.layout)

    @cached_property
    def requests(self) -> RequestBatch:
        """What was planned, in the order of the plan's records; `ids` are the caller's indices."""
        records = self.view.requests[: self.num_requests]
        ids = records[:, REQUEST_FIELDS.index("meta")] & (MAX_BATCH - 1)
        q_start, q_len, kv_start, kv_len, q_pos, kv_pos = records[:, :6].T
        return RequestBatch(q_start, q_len, kv_start, kv_len, q_pos, kv_pos, ids, self.common_keys)

    @cached_property
    def geometry(self) -> Geometry:
        """Tile shape and visible band that it was made for."""
        return Geometry(*(self.view.get(field.name) for field in fields(Geometry)))

    @cached_property
    def waves(self) -> tuple[Int64Array, Int64Array]:
        """(num_blocks,) which of the blocks that run at the same time each one follows, counted
        from 0, and when it starts, ns: the device starts blocks in order as others end."""
        count, costs = self.block_costs.size, self.block_costs
        running = self.resident_blocks or count
        place, start = np.arange(count), np.zeros(count, np.int64)
        ends = [(cost, at) for at, cost in enumerate(costs[:running].tolist())]
        heapq.heapify(ends)
        for block in range(running, count):
            start[block], place[block] = ends[0]
            heapq.heapreplace(ends, (int(start[block] + costs[block]), int(place[block])))
        return place, start

    @property
    def busy_costs(self) -> Int64Array:
        """(resident_blocks,) `block_costs`, those that follow one another added up."""
        place, start = self.waves
        busy = np.zeros(min(self.resident_blocks or place.size, place.size), np.int64)
        np.maximum.at(busy, place, start + self.block_costs)
        return busy

    @property
    def imbalance(self) -> float:
        """Cost of the busiest block over the mean; 1.0 is perfect. Of blocks that run at the same
        time, with those that follow them."""
        busy = self.busy_costs
        total = int(busy.sum())
        return float(busy.max()) * busy.size / total if total else 1.0

    @property
    def predicted_us(self) -> float:
        """Time by the cost model: the busiest block, then the merge. `simulate_plans` is nearer."""
        return (int(self.busy_costs.max()) + self.merge_cost) / 1000

    def explain(self, *, name: str = "one launch", timing: Timing | None = None) -> Explanation:
        """Which thread block does what: `print` it, `plot` it, or read its fields.

        Args:
            name: of the kernel, for people.
            timing: of the kernel; default: its work takes as long as `cost` says.
        """
        from cute_attn.scheduler.explain import Launch, explain  # which imports this module

        return explain(Launch(self, name, timing))
