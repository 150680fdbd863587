"""An `Explanation` as plain text: facts of each launch, then its items, or a summary of its blocks.

Nothing in it is wider than 100 columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from cute_attn.scheduler.explain import (
        ExplainedBlock,
        ExplainedItem,
        ExplainedLaunch,
        Explanation,
    )

_LABEL = 22
_EXTREMES = 5
"""Blocks shown at either end of a summary."""
_BINS, _BAR = 8, 40
_LISTED_REQUESTS = 4

_HOW = {
    False: (
        "side by side",
        "They share the bandwidth; the second one starts when the blocks of the first have.",
    ),
    True: ("one after the other", "Times go on from one to the next."),
}
"""What several launches do, by whether they are in turn."""

Row = tuple[str, ...]


def text_of(explanation: Explanation, max_items: int) -> str:
    """Tables; a launch of more than `max_items` items is summed up."""
    launches = explanation.launches
    lines = []
    if len(launches) > 1:
        lines += [
            f"{len(launches)} launches {_HOW[explanation.in_turn][0]}:"
            f" {explanation.predicted_us:.1f} us predicted,"
            f" imbalance {explanation.imbalance:.3f}",
            _HOW[explanation.in_turn][1],
            "",
        ]
    for launch in launches:
        lines += [*_facts(launch), ""]
        lines += _items(launch) if launch.num_items <= max_items else _summary(launch)
        lines.append("")
    return "\n".join(lines[:-1])


def _facts(launch: ExplainedLaunch) -> Iterator[str]:
    plan, geometry = launch.plan, launch.plan.geometry
    pieces, split = plan.num_slots, plan.num_split_tiles
    loaded, differ = size_text(launch.kv_bytes), size_text(launch.distinct_kv_bytes)
    each = f" ({launch.blocks_per_sm} each)" if launch.blocks_per_sm > 1 else ""
    waves = len(launch.blocks) - len(launch.ends_us)
    later = f", {waves:,} of them when others end" if waves else ""
    blocks = f"{len(launch.blocks):,} thread blocks on {launch.num_sms} SMs"
    yield f"{launch.name}: {blocks}{each}{later}"
    facts = {
        "requests": f"{plan.num_requests:,}",
        "query tiles": f"{plan.num_tiles:,} of {geometry.tile_q} packed rows; keys in blocks of"
        f" {geometry.tile_kv}",
        "items": f"{launch.num_items:,}: {launch.num_items - pieces:,} whole tiles"
        + (f" and {pieces:,} pieces of {split:,} split tiles" if split else ", none split"),
        "block ends": f"last {launch.busiest_us:.1f} us, mean {launch.mean_us:.1f} us",
        "imbalance (max / mean)": f"{launch.imbalance:.3f}",
        "K and V": f"{loaded} loaded, of which {differ} differ (the rest comes from L2)",
        "predicted time": f"{launch.predicted_us:.1f} us, {launch.merge_us:.1f} us of it to merge",
    }
    for name, value in facts.items():
        yield f"  {name:{_LABEL}}  {value}"


def _items(launch: ExplainedLaunch) -> Iterator[str]:
    """Every item."""
    header = ("block", "start us", "end us", "request", "KV head", "rows", "keys", "K, V", "result")
    rows = [_item_row(block, item) for block in launch.blocks for item in block.items]
    yield from _table(header, rows)
    group = launch.plan.geometry.group
    if group > 1:
        yield (
            f"  Packed rows: row r is query token r // {group} of the request under query head"
            f" {group} * KV head + r % {group}."
        )
    if idle := sum(not block.items for block in launch.blocks):
        yield f"  {idle} blocks have nothing to do."
    for split in launch.splits:
        last = split.first_slot + len(split.blocks) - 1
        yield (
            f"  Slots {split.first_slot} to {last} are merged: request {split.request}, KV head"
            f" {split.kv_head}, rows {split.row_begin}:{split.row_end} ({split.merge_us:.1f} us)."
        )


def _item_row(block: ExplainedBlock, item: ExplainedItem) -> Row:
    return (
        f"{block.number}",
        f"{item.start_us:.1f}",
        f"{item.end_us:.1f}",
        f"{item.request}",
        f"{item.kv_head}",
        f"{item.row_begin}:{item.row_end}",
        f"{item.key_begin}:{item.key_end}",
        size_text(item.kv_bytes),
        "output" if item.slot < 0 else f"slot {item.slot}",
    )


def _summary(launch: ExplainedLaunch) -> Iterator[str]:
    """The blocks that end last and first, and how the ends of all are spread."""
    by_end = sorted(launch.blocks, key=lambda block: (-block.end_us, block.number))
    shown = by_end
    if len(by_end) > 2 * _EXTREMES:
        shown = [*by_end[:_EXTREMES], *by_end[-_EXTREMES:]]
        yield f"  The {_EXTREMES} blocks that end last, and the {_EXTREMES} that end first:"
    header = ("block", "end us", "items", "pieces", "K, V", "requests")
    yield from _table(header, [_block_row(block) for block in shown])
    yield ""
    yield from _histogram([block.end_us for block in by_end])


def _block_row(block: ExplainedBlock) -> Row:
    requests = list(dict.fromkeys(item.request for item in block.items))
    listed = ", ".join(map(str, requests[:_LISTED_REQUESTS])) or "none"
    if len(requests) > _LISTED_REQUESTS:
        listed += f" and {len(requests) - _LISTED_REQUESTS} more"
    return (
        f"{block.number}",
        f"{block.end_us:.1f}",
        f"{len(block.items):,}",
        f"{sum(item.slot >= 0 for item in block.items)}",
        size_text(block.kv_bytes),
        listed,
    )


def _histogram(ends: Sequence[float]) -> Iterator[str]:
    yield "  When blocks end:"
    low, high = min(ends), max(ends)
    bins = _BINS if high - low >= 0.1 * _BINS else 1  # times are shown to 0.1 us
    counts, edges = np.histogram(ends, bins, (low, max(high, low + 1e-9)))
    width = len(f"{high:.1f}")
    for count, begin, end in zip(counts.tolist(), edges[:-1], edges[1:], strict=True):
        bar = "#" * -(-_BAR * count // max(counts.tolist()))
        yield f"  {begin:{width}.1f} to {end:{width}.1f} us  {count:6d}  {bar}".rstrip()


def _table(header: Row, rows: Sequence[Row]) -> Iterator[str]:
    """Columns to the right, the last one to the left."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = [cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        yield "  " + "  ".join([*cells, row[-1]])


def size_text(count: int) -> str:
    """Bytes, for people."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"
