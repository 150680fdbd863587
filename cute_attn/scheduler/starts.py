"""The starts of a plan: what each thread block reads before it knows its first item.

They are copies of header fields, which a blank plan holds, and of request records.
"""

from __future__ import annotations

from cute_attn.abi.plan import HEADER_FIELDS, IntArray, PlanLayout
from cute_attn.scheduler.each import Int64Array
from cute_attn.scheduler.sections import RECORD, START, items


def write_copies(buffer: IntArray, layout: PlanLayout, values: dict[str, int]) -> None:
    """Writes header fields of which each start has a copy."""
    starts = items(buffer, layout.starts, layout.num_blocks, START)
    for name, value in values.items():
        buffer[HEADER_FIELDS.index(name)] = value
        starts[name] = value


def write_starts(
    buffer: IntArray, layout: PlanLayout, num_requests: int, tile: Int64Array, request: Int64Array
) -> None:
    """Fills `starts` of a plan that was a blank one and has its request records.

    Args:
        buffer, layout: of the plan.
        num_requests: of the plan.
        tile, request: (num_blocks,) the first tile of each block, and the record that holds it.
    """
    starts = items(buffer, layout.starts, layout.num_blocks, START)
    records = items(buffer, layout.requests, num_requests + 1, RECORD)
    starts["tile"] = tile
    starts["request"] = request
    starts["record"] = records.take(request)


def renew_starts(buffer: IntArray, layout: PlanLayout, num_requests: int) -> None:
    """Copies the records again, which have changed."""
    starts = items(buffer, layout.starts, layout.num_blocks, START)
    records = items(buffer, layout.requests, num_requests + 1, RECORD)
    starts["record"] = records.take(starts["request"])
