"""The starts of a plan: what each thread block reads before it knows its first item.

They are copies of header fields and of request records. NumPy copies an item of 32 or 64 bytes as
fast as an integer, so rows are seen as such items.
"""

from __future__ import annotations

import numpy as np

from cute_attn.abi.plan import (
    HEADER_FIELDS,
    REQUEST_FIELDS,
    START_FIELDS,
    START_RECORD,
    IntArray,
    PlanLayout,
)
from cute_attn.scheduler.each import Int64Array

# The columns that are copies of header fields, as indices of those; the others: a 0.
_SOURCES = np.array(
    [HEADER_FIELDS.index(name if name in HEADER_FIELDS else "reserved_15") for name in START_FIELDS]
)
_ROW = np.dtype((np.void, 4 * len(START_FIELDS)))
_RECORD = np.dtype((np.void, 4 * len(REQUEST_FIELDS)))
_START = np.dtype(
    {
        "names": ["tile", "request", "record"],
        "formats": [np.int32, np.int32, _RECORD],
        "offsets": [
            4 * START_FIELDS.index("tile"),
            4 * START_FIELDS.index("request"),
            4 * START_RECORD.start,
        ],
        "itemsize": _ROW.itemsize,
    }
)


def write_starts(
    buffer: IntArray, layout: PlanLayout, num_requests: int, tile: Int64Array, request: Int64Array
) -> None:
    """Fills `starts` of a plan whose header and request records are there.

    Args:
        buffer, layout: of the plan.
        num_requests: of the plan.
        tile, request: (num_blocks,) the first tile of each block, and the record that holds it.
    """
    rows = buffer[layout.starts : layout.splits]
    rows.view(_ROW)[:] = buffer[_SOURCES].view(_ROW)
    starts = rows.view(_START)
    starts["tile"] = tile
    starts["request"] = request
    starts["record"] = _records(buffer, layout, num_requests).take(request)


def renew_starts(buffer: IntArray, layout: PlanLayout, num_requests: int) -> None:
    """Copies the records again, which have changed."""
    starts = buffer[layout.starts : layout.splits].view(_START)
    starts["record"] = _records(buffer, layout, num_requests).take(starts["request"])


def _records(buffer: IntArray, layout: PlanLayout, num_requests: int) -> np.ndarray:
    """(num_requests + 1,) the records as items."""
    return buffer[layout.requests : layout.places(num_requests)].view(_RECORD)
