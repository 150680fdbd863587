"""Which keys items read: each item by itself, and each (request, KV head) once.

Several query tiles of one request and KV head load the same keys; HBM gives them once, the L2 cache
the other times. So it is with all tiles of a KV head where every request chooses from the same
keys. KV blocks that a mask empties are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cute_attn.abi import Item
from cute_attn.scheduler.batch import Geometry, RequestBatch
from cute_attn.scheduler.each import Int64Array
from cute_attn.scheduler.visits import Visible

_MOST_ENTRIES = 1 << 20  # (items, KV blocks) that are looked at together


@dataclass(frozen=True)
class Reads:
    """Keys that items read.

    Attributes:
        table: (items, fields) the items.
        blocks: (items,) KV blocks that each one visits.
        keys: (items,) that each one loads.
        owner: (items,) its request * num_kv_heads + KV head; its request, if that is one KV head;
            its KV head, if all requests choose from the same keys.
        once: (owners,) keys that all items of one owner need together.
    """

    table: Int64Array
    blocks: Int64Array
    keys: Int64Array
    owner: Int64Array
    once: Int64Array


def reads_of(
    items: Sequence[Item],
    requests: RequestBatch,
    geometry: Geometry,
    visible: Visible | None = None,
) -> Reads:
    """Reads of items of whose fields `request` is an index into `requests`.

    `visible`: of a mask that empties KV blocks within the band.
    """
    table = np.array(items, np.int64).reshape(-1, len(Item._fields))
    request, _, head, _, _, begin, end, _ = table.T
    tile_kv, heads = geometry.tile_kv, geometry.num_kv_heads
    owner = request if geometry.heads_in_ids else request * heads + head
    if geometry.by_head(requests):
        return _common_reads(table, requests, geometry)
    if visible is not None:
        return _visible_reads(table, owner, requests, geometry, visible)
    length = requests.kv_len[request]
    keys = np.minimum(end * tile_kv, length) - np.minimum(begin * tile_kv, length)
    size = requests.num_requests * heads
    low, high = np.full(size, np.iinfo(np.int64).max), np.zeros(size, np.int64)
    np.minimum.at(low, owner, begin)
    np.maximum.at(high, owner, end)
    reach = np.minimum(high * tile_kv, np.repeat(requests.kv_len, heads))
    once = np.maximum(reach - np.minimum(low, high) * tile_kv, 0)
    return Reads(table, end - begin, keys, owner, once)


def _common_reads(table: Int64Array, requests: RequestBatch, geometry: Geometry) -> Reads:
    """Where all requests choose from the same keys. (Those of blocks that a mask empties too.)"""
    request, _, head, _, _, begin, end, _ = table.T
    length, tile_kv = requests.kv_len[request], geometry.tile_kv
    keys = np.minimum(end * tile_kv, length) - np.minimum(begin * tile_kv, length)
    read = np.bincount(head, keys, geometry.heads_in_ids).astype(np.int64)
    return Reads(table, end - begin, keys, head, np.minimum(read, requests.common_keys))


def _visible_reads(
    table: Int64Array,
    owner: Int64Array,
    requests: RequestBatch,
    geometry: Geometry,
    visible: Visible,
) -> Reads:
    """Block by block."""
    request, _, _, row, num_rows, begin, end, _ = table.T
    tile_kv, group = geometry.tile_kv, geometry.group
    longest = int((end - begin).max(initial=0))
    most_blocks = -(-int(requests.kv_len.max(initial=0)) // tile_kv)
    ids = np.arange(requests.num_requests) if requests.ids is None else requests.ids
    callers = geometry.callers_request(ids)
    blocks, keys = np.zeros(owner.size, np.int64), np.zeros(owner.size, np.int64)
    read = np.zeros((requests.num_requests * geometry.num_kv_heads, most_blocks), np.bool_)
    step = max(_MOST_ENTRIES // max(longest, 1), 1)
    for part in (slice(i, i + step) for i in range(0, owner.size, step)):
        own = request[part, None]
        block = begin[part, None] + np.arange(longest)
        first, kv_len = block * tile_kv, requests.kv_len[own]
        size = np.clip(kv_len - first, 0, tile_kv) * (block < end[part, None])
        q_pos, kv_pos = requests.q_pos[own], requests.kv_pos[own]
        last_row = (row + num_rows - 1)[part, None]
        seen = (size > 0) & visible(
            (q_pos + row[part, None] // group, q_pos + last_row // group),
            (kv_pos + first, kv_pos + first + np.maximum(size, 1) - 1),
            callers[own],
        )
        blocks[part], keys[part] = seen.sum(axis=1), (size * seen).sum(axis=1)
        item, column = np.nonzero(seen)
        read[owner[part][item], block[item, column]] = True
    sizes = np.clip(requests.kv_len[:, None] - np.arange(most_blocks) * tile_kv, 0, tile_kv)
    once = (read * sizes.repeat(geometry.num_kv_heads, axis=0)).sum(axis=1)
    return Reads(table, blocks, keys, owner, once)
