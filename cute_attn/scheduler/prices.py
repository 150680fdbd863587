"""What the planner takes items and merges to cost, item by item.

Plans are made with sums over runs of tiles; these are the addends, for who looks into a plan. The
costs of a block's items add up to its `Plan.block_costs`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cute_attn.scheduler.batch import Geometry, RequestBatch
from cute_attn.scheduler.cost import CostModel
from cute_attn.scheduler.each import Each, Int64Array, spread
from cute_attn.scheduler.tiles import sort_requests


@dataclass(frozen=True)
class Prices:
    """Costs in ns; arrays are (num_requests,), in the order of the requests.

    Attributes:
        item: an item beside its KV blocks.
        block: one KV block.
        partial: writing a partial result.
        merge: reading one again.
        merge_start: what a merge costs beside that.
    """

    item: int
    block: Int64Array
    partial: Int64Array
    merge: Int64Array
    merge_start: int

    def of_items(self, table: Int64Array) -> Int64Array:
        """(items,) costs; table: (items, fields) as in `Item`, requests by index."""
        request, *_, begin, end, slot = table.T
        costs: Int64Array = self.item + (end - begin) * self.block[request]
        costs += (slot >= 0) * self.partial[request]
        return costs

    def of_merge(self, request: int, pieces: int) -> int:
        """Merging one tile."""
        return self.merge_start + pieces * int(self.merge[request])


def prices_of(requests: RequestBatch, geometry: Geometry, cost: CostModel) -> Prices:
    """Prices in a step of these requests."""
    # Neither the L2 budget nor the shortest piece has a say in these.
    records = sort_requests(requests, geometry, cost, 0, 1)

    def by_request(values: Each) -> Int64Array:
        found = np.empty(records.count, np.int64)
        found[records.order] = spread(values, records.count)
        return found

    return Prices(
        item=cost.item(geometry),
        block=by_request(records.block_cost),
        partial=by_request(records.partial_cost),
        merge=by_request(records.merge_cost),
        merge_start=cost.merge_ns,
    )
