"""How many KV blocks each tile visits, where a mask empties some within the band.

A table with a row per (request, query tile) and a column per KV block of its range, or per a few of
them where there are many: what a mask leaves nothing of costs nothing. Only costs come from it, and
where tiles are cut, so the table may be coarse; the kernels find the blocks themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from cute_attn.scheduler.batch import Geometry, RequestBatch
from cute_attn.scheduler.each import Each, Int64Array

Visible: TypeAlias = Callable[[tuple[Any, Any], tuple[Any, Any], Any], Any]
"""(first and last q_idx, first and last kv_idx, request) -> whether a mask may leave anything of
the rectangle, as bools; arrays that broadcast."""

_MOST_ENTRIES = 1 << 17


class Visits:
    """The visits of one step.

    Args:
        requests: of the step.
        geometry: tile shape and band.
        visible: of the mask.

    Attributes:
        blocks: (query tiles of all requests,) KV blocks that a tile visits; a request's tiles side
            by side, in the order of their rows.
        begin: (num_requests,) where those of a request begin.
    """

    blocks: Int64Array
    begin: Int64Array

    def __init__(self, requests: RequestBatch, geometry: Geometry, visible: Visible) -> None:
        tile_q, tile_kv, group = geometry.tile_q, geometry.tile_kv, geometry.group
        packed = requests.q_len * group
        self._q_tiles = (packed + (tile_q - 1)) // tile_q
        ends = self._q_tiles.cumsum()
        self.begin = ends - self._q_tiles
        # A row per tile.
        owner = np.arange(requests.num_requests).repeat(self._q_tiles)
        row = (np.arange(owner.size) - self.begin[owner]) * tile_q
        row_end = np.minimum(row + tile_q, packed[owner])
        q_pos, kv_pos, kv_len = (
            x[owner] for x in (requests.q_pos, requests.kv_pos, requests.kv_len)
        )
        q_first, q_last = q_pos + row // group, q_pos + (row_end - 1) // group
        low = np.maximum(q_first - kv_pos - geometry.window_left, 0)
        high = np.minimum(q_last - kv_pos + geometry.window_right + 1, kv_len)
        range_begin = low // tile_kv
        length = np.where(high > low, (high + (tile_kv - 1)) // tile_kv - range_begin, 0)
        # A column per `step` KV blocks.
        longest = int(length.max(initial=0))
        self._step = step = max(-(-longest * owner.size // _MOST_ENTRIES), 1)
        columns = np.arange(0, longest, step)
        first_key = (range_begin[:, None] + columns) * tile_kv
        last_key = np.minimum(first_key + step * tile_kv, kv_len[:, None]) - 1
        weight = np.clip(length[:, None] - columns, 0, step)
        ids = owner if requests.ids is None else requests.ids[owner]
        kept = visible(
            (q_first[:, None], q_last[:, None]),
            (first_key + kv_pos[:, None], last_key + kv_pos[:, None]),
            geometry.callers_request(ids)[:, None],
        )
        self._weight: Int64Array = weight * kept
        self.blocks = self._weight.sum(axis=1)

    def of_last_tiles(self) -> Int64Array:
        """(num_requests,) of the tile with the last query rows; 0 where there is none."""
        return self._of(self.begin + self._q_tiles - 1)

    def of_first_tiles(self) -> Int64Array:
        """(num_requests,) of the tile with the first query rows; 0 where there is none."""
        return self._of(self.begin)

    def _of(self, tile: Int64Array) -> Int64Array:
        found = np.zeros(tile.size, np.int64)
        some = self._q_tiles > 0
        found[some] = self.blocks[tile[some]]
        return found

    def of_tiles_downwards(self, order: Int64Array) -> Int64Array:
        """Of all tiles of some requests, of each one the last first."""
        count = self._q_tiles[order]
        ends = count.cumsum().repeat(count)
        downwards = ends - np.arange(1, ends.size + 1)
        blocks: Int64Array = self.blocks[self.begin[order].repeat(count) + downwards]
        return blocks

    def place(self, request: Int64Array, q_tile: Int64Array, visited: Int64Array) -> Int64Array:
        """KV blocks of a tile's range before its visit number `visited`.

        Args:
            request, q_tile: the tiles.
            visited: for each a number from 0 on, below its visits.
        """
        weight = self._weight[self.begin[request] + q_tile]
        ends = weight.cumsum(axis=1)
        column = (ends > visited[:, None]).argmax(axis=1)
        at = np.arange(column.size), column
        before: Int64Array = column * self._step + visited - (ends[at] - weight[at])
        return before


def tile_of(local: Int64Array, q_tiles: Each, section_heads: Each, num_heads: int) -> Int64Array:
    """Query tile of tile number `local` of a request: the array form of `abi.locate_tile`."""
    section, rest = np.divmod(local, q_tiles * section_heads)
    heads = np.minimum(section_heads, num_heads - section * section_heads)
    tile: Int64Array = q_tiles - 1 - rest // np.maximum(heads, 1)
    return tile
