"""Which ranges of keys that requests share are worth a level of their own.

Read once instead of n times, a range saves the time to read it n - 1 times. A level costs the
states of its query rows, which are written and read once more, and once for a step the launches
that copy query rows and merge states.
"""

from __future__ import annotations

import numpy as np

from cute_attn.scheduler.constants import H200, Gpu
from cute_attn.scheduler.cost import CostModel
from cute_attn.scheduler.each import BoolArray, Int64Array

STEP_US = 12.0
"""Of the launches that copy query rows and merge states: on an H200 steps in levels take 2 to 12 us
more than their attention launches by the simulator, the largest 20 (perf/NOTES.md)."""
_CLEARLY = 1.5  # saved over spent: of what is less, most lost on an H200
_L2_RATE = 2.4  # requests that read the same at once find it in the L2: 2.1 to 2.8 on an H200
_TILE_ROWS = 64  # packed query rows that a tile computes at least, beyond those of decode
_DECODE_ROWS = 16


def worth_sharing(
    keys: Int64Array,
    requests: Int64Array,
    rows: Int64Array,
    parent: Int64Array,
    *,
    num_qo_heads: int,
    num_kv_heads: int,
    head_dim_vo: int,
    cost: CostModel,
    gpu: Gpu = H200,
) -> BoolArray:
    """Which nodes of a tree of shared ranges to read once for all their requests.

    Args:
        keys: (num_nodes,) keys that the requests of a node share and those of the node around it do
            not. A node comes after the one around it.
        requests, rows: (num_nodes,) requests of each, and their query rows.
        parent: (num_nodes,) the node around it; -1: none.
        num_qo_heads, num_kv_heads, head_dim_vo: sizes.
        cost: bytes of keys, and time of products with one thread block per SM.
        gpu: ceilings.

    Returns:
        (num_nodes,) truth values; the keys of a node that is not worth it belong to those within
        it. All False if what they save together is not worth the step's further launches.
    """
    kept = np.zeros(keys.size, np.bool_)
    carried = keys.copy()  # with those of nodes around that are not kept
    group, saved = num_qo_heads // num_kv_heads, 0.0
    for node in range(keys.size):
        around = int(parent[node])
        if around >= 0 and not kept[around]:
            carried[node] += carried[around]
        once = _read_us(int(carried[node]), num_kv_heads, cost, gpu)
        packed = int(rows[node]) * group
        step = _DECODE_ROWS if packed <= _DECODE_ROWS else _TILE_ROWS
        products = -(-packed // step) * step * int(carried[node]) * num_kv_heads
        compute = products * cost.row_key_ps / 1e6 / gpu.sms
        states = 2 * int(rows[node]) * num_qo_heads * (2 * head_dim_vo + 4)
        less = int(requests[node]) * once / _L2_RATE - max(once, compute)
        less -= states / gpu.read_gbps / 1e3
        if less > 0:
            kept[node] = True
            saved += less
    return kept if saved > _CLEARLY * STEP_US else np.zeros(keys.size, np.bool_)


def _read_us(keys: int, num_kv_heads: int, cost: CostModel, gpu: Gpu) -> float:
    return keys * num_kv_heads * cost.key_bytes / gpu.read_gbps / 1e3
