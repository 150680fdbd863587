"""Which keys items read: each item by itself, and each (request, KV head) once.

Several query tiles of one request and KV head load the same keys; HBM gives them once, the L2 cache
the other times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cute_attn.abi import Item
from cute_attn.scheduler.batch import Geometry, RequestBatch
from cute_attn.scheduler.each import Int64Array


@dataclass(frozen=True)
class Reads:
    """Keys that items read.

    Attributes:
        table: (items, fields) the items.
        keys: (items,) that each one loads.
        owner: (items,) its request * num_kv_heads + KV head.
        once: (requests * num_kv_heads,) keys that all items of one owner need together.
    """

    table: Int64Array
    keys: Int64Array
    owner: Int64Array
    once: Int64Array


def reads_of(items: Sequence[Item], requests: RequestBatch, geometry: Geometry) -> Reads:
    """Reads of items of whose fields `request` is an index into `requests`."""
    table = np.array(items, np.int64).reshape(-1, len(Item._fields))
    request, _, head, _, _, begin, end, _ = table.T
    tile_kv, heads = geometry.tile_kv, geometry.num_kv_heads
    length = requests.kv_len[request]
    keys = np.minimum(end * tile_kv, length) - np.minimum(begin * tile_kv, length)
    owner = request * heads + head
    size = requests.num_requests * heads
    low, high = np.full(size, np.iinfo(np.int64).max), np.zeros(size, np.int64)
    np.minimum.at(low, owner, begin)
    np.maximum.at(high, owner, end)
    reach = np.minimum(high * tile_kv, np.repeat(requests.kv_len, heads))
    once = np.maximum(reach - np.minimum(low, high) * tile_kv, 0)
    return Reads(table, keys, owner, once)
