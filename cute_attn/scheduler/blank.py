"""Plans without work: what the lengths of a step do not change is copied, not written anew."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from cute_attn.abi.plan import (
    CUT_FIELDS,
    HEADER_FIELDS,
    REQUEST_FIELDS,
    START_FIELDS,
    UNBOUNDED,
    Header,
    IntArray,
    plan_layout,
)
from cute_attn.scheduler.batch import Geometry

_COPIES = [name in HEADER_FIELDS for name in START_FIELDS]
"""Which columns of a start are copies of header fields."""
_SOURCES = [HEADER_FIELDS.index(name) for name in START_FIELDS if name in HEADER_FIELDS]


@lru_cache(maxsize=32)
def blank_plan(
    geometry: Geometry,
    num_blocks: int,
    num_requests: int,
    tiles: int,
) -> IntArray:
    """A plan up to its listed rounds, to be copied: a header without counts of tiles and slots,
    starts without tiles and records, cuts at the begin of the first tile, records that know no more
    than their first tile.

    Args:
        geometry, num_blocks, num_requests: of the step.
        tiles: of each request; 0 where they differ.
    """
    layout = plan_layout(num_blocks, num_requests)
    blank = np.zeros(layout.places(num_requests), np.int32)
    blank[: layout.starts] = Header(
        num_requests=num_requests,
        num_tiles=0,
        num_whole_tiles=0,
        num_split_tiles=0,
        window_left=geometry.window_left,
        window_right=geometry.window_right,
        num_slots=0,
        tile_q=geometry.tile_q,
        tile_kv=geometry.tile_kv,
        group=geometry.group,
        num_kv_heads=geometry.num_kv_heads,
        num_blocks=num_blocks,
        first_listed_round=UNBOUNDED,
        places=0,
        heads_in_ids=geometry.heads_in_ids,
    )
    starts = blank[layout.starts : layout.splits].reshape(num_blocks, len(START_FIELDS))
    starts[:, _COPIES] = blank[_SOURCES]
    cuts = blank[layout.cuts : layout.cuts_end].reshape(num_blocks + 1, len(CUT_FIELDS))
    cuts[:, CUT_FIELDS.index("slot")] = -1
    records = blank[layout.requests :].reshape(num_requests + 1, len(REQUEST_FIELDS))
    records[:, REQUEST_FIELDS.index("tile_begin")] = np.arange(num_requests + 1) * tiles
    blank.flags.writeable = False
    return blank
