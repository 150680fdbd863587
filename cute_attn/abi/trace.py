"""Layout of the buffer that traced kernels write time stamps to: uint64 words, a part per block.

    block   8 words: SM, global timer (ns) and clock of the SM at the begin and at the end, number
            of items, clock around the merges at the end (hopper_tile; else 0)
    items   `max_items` x 8 words: what the item is, and clocks of its events

A block that has more items than there is room for counts them and leaves their words out. Clocks
are those of an SM, exact and not comparable between SMs; the global timer is the same everywhere
and steps in 32 ns (H200) to 1 us. `cute_attn.api.trace` brings both together.
The C++ twin is codegen/include/cute_attn/trace.hpp.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

BLOCK_WORDS = (
    "sm",
    "begin_ns",
    "begin_clock",
    "end_ns",
    "end_clock",
    "item_count",
    "merge_begin",
    "merge_end",
)
ITEM_WORDS = (
    "place",  # request | KV head << 32 | packed query rows << 48
    "rows",  # first packed row | partial slot, -1 for none, << 32
    "key_blocks",  # begin | end << 32, in blocks of tile_kv keys
    "begin",  # the block turns to the item
    "keys",  # its first keys have landed
    "products",  # its last product is done
    "written",  # output or partial result is stored (by the thread that keeps time)
    "merged",  # ampere_decode: the tile's pieces are merged, by this item's block; else 0
)

Words = npt.NDArray[np.uint64]


def num_words(num_blocks: int, max_items: int) -> int:
    """Size of the buffer of a grid."""
    return num_blocks * (len(BLOCK_WORDS) + max_items * len(ITEM_WORDS))


class BlockStamps(NamedTuple):
    """One block's part of the buffer; times are clocks of its SM but for *_ns."""

    sm: int
    begin_ns: int
    begin_clock: int
    end_ns: int
    end_clock: int
    item_count: int
    merge_begin: int
    merge_end: int


class ItemStamps(NamedTuple):
    """One item's words, unpacked; times are clocks of its SM, 0 where an event did not happen."""

    request: int
    kv_head: int
    num_rows: int
    row_begin: int
    slot: int
    block_begin: int
    block_end: int
    begin: int
    keys: int
    products: int
    written: int
    merged: int


def read(words: Words, num_blocks: int) -> list[tuple[BlockStamps, list[ItemStamps]]]:
    """Blocks of a trace with the items that had room.

    Args:
        words: the buffer.
        num_blocks: of the grid.
    """
    of_blocks = words.reshape(num_blocks, -1)
    head, width = len(BLOCK_WORDS), len(ITEM_WORDS)
    found = []
    for row in of_blocks:
        block = BlockStamps(*row[:head].tolist())
        items = row[head:].reshape(-1, width)[: block.item_count].tolist()
        found.append((block, [_item(*item) for item in items]))
    return found


def _item(place: int, rows: int, key_blocks: int, *times: int) -> ItemStamps:
    slot = rows >> 32
    return ItemStamps(
        place & 0xFFFFFFFF,
        place >> 32 & 0xFFFF,
        place >> 48,
        rows & 0xFFFFFFFF,
        slot - (1 << 32) if slot >> 31 else slot,
        key_blocks & 0xFFFFFFFF,
        key_blocks >> 32,
        *times,
    )
