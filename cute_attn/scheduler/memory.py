"""The last step of decodes that was planned, of which the next one is mostly a copy.

From one token to the next, few requests reach another KV block. As long as none does, order, cuts
and slots are the same, and only the records (lengths, addresses) are new.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from cute_attn.abi.plan import REQUEST_FIELDS
from cute_attn.scheduler.batch import Geometry, RequestBatch
from cute_attn.scheduler.each import Int64Array
from cute_attn.scheduler.plan import Plan
from cute_attn.scheduler.sections import items
from cute_attn.scheduler.starts import renew_starts
from cute_attn.scheduler.tiles import Records, last_tile_blocks


class PlanMemory:
    """What `plan_batch` may copy; one for each series of steps."""

    def __init__(self) -> None:
        self._key: Hashable = None
        self._plan: Plan | None = None
        self._order: Int64Array
        self._blocks: Int64Array  # of each request, in the order of the requests
        self._ids: Int64Array | None
        self._q_len = 0  # of every request

    def keep(self, key: Hashable, requests: RequestBatch, records: Records, plan: Plan) -> None:
        """Remembers a plan, if it is of decodes: requests of one query tile and as many tokens.

        Args:
            key: all arguments of `plan_batch` but the requests.
            requests, records: what was planned.
            plan: the plan.
        """
        if isinstance(records.q_tiles, np.ndarray) or not requests.aligned:
            return
        self._key, self._plan, self._order = key, plan, records.order
        self._ids, self._q_len = requests.ids, requests.equal_q_len
        self._blocks = np.empty_like(records.last_blocks)
        self._blocks[records.order] = records.last_blocks

    def recall(self, key: Hashable, requests: RequestBatch, geometry: Geometry) -> Plan | None:
        """The plan of a step, if it is a copy of the last one but for the records."""
        plan = self._plan
        if plan is None or not requests.aligned or requests.num_requests != plan.num_requests:
            return None
        if key != self._key or requests.equal_q_len != self._q_len:
            return None
        packed = self._q_len * geometry.group
        blocks = last_tile_blocks(geometry, requests, 0, packed)
        if np.count_nonzero(blocks != self._blocks) or not self._same_ids(requests.ids):
            return None
        buffer, layout, count = plan.buffer.copy(), plan.layout, plan.num_requests
        records = items(buffer, layout.requests, (count, len(REQUEST_FIELDS)), buffer.dtype)
        records[:, :6] = requests.table.take(self._order, axis=1).T
        renew_starts(buffer, layout, count)
        return plan.with_buffer(buffer)

    def _same_ids(self, ids: Int64Array | None) -> bool:
        if ids is None or self._ids is None:
            return ids is self._ids
        return not np.count_nonzero(ids != self._ids)
