"""Layout of the plan: one flat int32 buffer that tells every thread block what to compute.

    header    16 ints                       counts and the tile geometry the plan was made for
    starts    num_blocks x 16 ints          what each block needs for its first item
    splits    num_blocks x 4 ints           tiles whose KV was split, for the merge
    cuts      (num_blocks + 1) x 6 ints     where each block's share of the stream-K line begins
    padding                                 so that request records are 32-byte aligned
    requests  (max_requests + 1) x 8 ints   request records, sorted, closed by a sentinel
    places    rounds x num_blocks uint16    behind the records in use; offset in the header

Every offset follows from `num_blocks` (the grid) alone, so a captured CUDA graph needs only new
contents (the header holds the one offset that moves). There is no list of items: a block derives
its items by arithmetic (see `work.py`).

A copy brings the plan to the device, or a kernel writes it there (`codegen.kernels.plan_decode`). A
kernel launched as a programmatic dependent (`GeneratedKernel.dependent_launch`) reads it before its
predecessor in the stream has ended, so the predecessor must not be a kernel that writes it: what
follows the planner is launched as a plain successor.

Vocabulary. A *tile* is `tile_q` packed query rows of one (request, KV head): packed row r of a
request is query token r // group under query head kv_head * group + r % group. A *KV block* is
`tile_kv` keys. Tiles are numbered through all requests in record order. The first
`num_whole_tiles` tiles are handed out whole, in rounds of `num_blocks`; the others lie on one line
of KV blocks that is cut in `num_blocks` pieces (stream-K).

With `heads_in_ids` every KV head of a request has keys of its own, and so a record of its own, with
`num_kv_heads` 1: the batch index of the record is an id, request * heads_in_ids + KV head.

With `fixed_pieces` all tiles are on the line, cuts lie between pieces only, and a block may have
many pieces of a tile; there are no records in `splits`.

Who takes which tile of a round: snake order (upwards, downwards, ...) up to round
`first_listed_round`; from then on `places` says it: row r, column b is the tile that thread block b
takes in round first_listed_round + r, counted from the first tile of that first listed round.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]

UNBOUNDED = 1 << 30
"""Band limit that means "no limit"; positions must stay below it."""


class Header(NamedTuple):
    """The numbers at the begin of a plan."""

    num_requests: int  # request records, the sentinel not counted
    num_tiles: int  # tiles of all requests
    num_whole_tiles: int  # tiles [0, num_whole_tiles) are handed out whole
    num_split_tiles: int  # records in `splits`
    window_left: int  # key j visible to position i only if j >= i - window_left
    window_right: int  # ... and j <= i + window_right; UNBOUNDED = no limit
    num_slots: int  # partial-result slots in use
    tile_q: int  # packed query rows per tile
    tile_kv: int  # keys per KV block
    group: int  # query heads per KV head
    num_kv_heads: int
    num_blocks: int  # thread blocks = the grid
    first_listed_round: int  # rounds from this one on are listed in `places`; UNBOUNDED = none
    places: int  # offset of `places` in the buffer, in int32; 0 = none
    fixed_pieces: int = 0  # 1: tiles are cut as `work.num_pieces` says, whoever computes the pieces
    heads_in_ids: int = 0  # KV heads that ids tell apart, see below; 0 = none. Kernels know it


HEADER_FIELDS = Header._fields
START_FIELDS = (
    "tile",  # the block's first tile: of round 0, or where its share of the line begins
    "request",  # the record that holds it
    "window_left",  # as in the header
    "window_right",
    *(f"record_{i}" for i in range(8)),  # the record itself
    "num_whole_tiles",  # as in the header
    "num_requests",
    "first_listed_round",
    "places",
)
"""Copies, so that a block reads 64 bytes (and its two cuts) before it knows its first item, instead
of a chain of header, place, search and record: each link may come from HBM while the SM is idle."""
START_RECORD = slice(4, 12)
"""Columns of a start that hold the record."""
CUT_FIELDS = (
    "tile",
    "block",
    "request",
    "slot",
    "first_slot",
    "num_slots",
)
"""A cut lies before KV block `block` (counted from the tile's first visible block) of `tile`, which
belongs to record `request`. If block > 0 the tile is split here: the piece after the cut writes
partial slot `slot`, the piece before it slot - 1; the pieces of the tile have `num_slots` slots
from `first_slot` on. With fixed pieces `slot` counts the slots of all pieces before the cut, and
the last two are 0: they follow from the tile."""
SPLIT_FIELDS = ("tile", "request", "first_slot", "num_slots")
REQUEST_FIELDS = (
    "q_start",  # first query row of the request in q and out
    "q_len",  # query tokens
    "kv_start",  # ragged: first KV row; paged: the request's first entry in the page table
    "kv_len",  # keys
    "q_pos",  # position of the first query token (kv_len - q_len for a plain causal batch)
    "kv_pos",  # position of the first key (0 but for levels of a composable format)
    "tile_begin",  # number of the request's first tile
    "meta",  # batch index | level << 20 | KV heads per section << 24 | tile shape << 31
)

MAX_BATCH = 1 << 20
MAX_LEVELS = 1 << 4
MAX_SECTION_HEADS = (1 << 7) - 1
MAX_LISTED_ROUNDS = 16


class RequestRecord(NamedTuple):
    """One request record, unpacked to Python integers."""

    q_start: int
    q_len: int
    kv_start: int
    kv_len: int
    q_pos: int
    kv_pos: int
    tile_begin: int
    meta: int

    @property
    def batch(self) -> int:
        """Index of the request in the order in which the caller gave it; with `heads_in_ids` of the
        (request, KV head)."""
        return self.meta & (MAX_BATCH - 1)

    @property
    def level(self) -> int:
        """Level of a composable format; 0 in a flat batch."""
        return (self.meta >> 20) & (MAX_LEVELS - 1)

    @property
    def section_heads(self) -> int:
        """KV heads whose tiles run interleaved, so that they share the L2 cache."""
        return (self.meta >> 24) & MAX_SECTION_HEADS

    @property
    def shape(self) -> int:
        """Tile shape of the request's items, where a kernel has several; all have shape 0 now."""
        return (self.meta >> 31) & 1


def pack_meta(batch: Any, level: Any, section_heads: Any) -> Any:
    """Packs the `meta` word; integers or integer arrays."""
    return batch | (level << 20) | (section_heads << 24)


@dataclass(frozen=True)
class PlanLayout:
    """Offsets, in int32 units, of the sections of a plan with the given capacities."""

    num_blocks: int
    max_requests: int

    @cached_property
    def starts(self) -> int:
        return len(HEADER_FIELDS)

    @cached_property
    def splits(self) -> int:
        return self.starts + len(START_FIELDS) * self.num_blocks

    @cached_property
    def cuts(self) -> int:
        return self.splits + len(SPLIT_FIELDS) * self.num_blocks

    @cached_property
    def cuts_end(self) -> int:
        return self.cuts + len(CUT_FIELDS) * (self.num_blocks + 1)

    @cached_property
    def requests(self) -> int:
        return -(-self.cuts_end // len(REQUEST_FIELDS)) * len(REQUEST_FIELDS)

    @cached_property
    def size(self) -> int:
        """Length of the buffer in int32."""
        return self.used_size(self.max_requests, MAX_LISTED_ROUNDS)

    def places(self, num_requests: int) -> int:
        """Offset of the listed rounds of a plan of `num_requests` requests."""
        return self.requests + len(REQUEST_FIELDS) * (num_requests + 1)

    def used_size(self, num_requests: int, listed_rounds: int = 0) -> int:
        """Length of the prefix that a plan of so many requests and listed rounds fills."""
        return self.places(num_requests) + (listed_rounds * self.num_blocks + 1) // 2


@lru_cache(maxsize=256)
def plan_layout(num_blocks: int, max_requests: int) -> PlanLayout:
    """The layout; of the same capacities mostly the same object, which knows its offsets."""
    return PlanLayout(num_blocks, max_requests)


class PlanView:
    """NumPy views of the sections of a plan buffer (shared memory, no copies).

    Args:
        buffer: (layout.size,) int32, or the used prefix of one.
        layout: the layout it was made with.
    """

    def __init__(self, buffer: IntArray, layout: PlanLayout) -> None:
        if buffer.dtype != np.int32 or buffer.ndim != 1:
            raise TypeError(f"plan buffer must be 1-D int32, got {buffer.ndim}-D {buffer.dtype}")
        self.buffer = buffer
        self.layout = layout
        self.header = buffer[: layout.starts]
        self.starts = buffer[layout.starts : layout.splits].reshape(-1, len(START_FIELDS))
        self.splits = buffer[layout.splits : layout.cuts].reshape(-1, len(SPLIT_FIELDS))
        self.cuts = buffer[layout.cuts : layout.cuts_end].reshape(-1, len(CUT_FIELDS))
        places = self.get("places")
        rows = ((places or buffer.size) - layout.requests) // len(REQUEST_FIELDS)
        rows = min(rows, layout.max_requests + 1)
        end = layout.requests + rows * len(REQUEST_FIELDS)
        listed = buffer[places or buffer.size :].view(np.uint16)
        rounds = listed.size // layout.num_blocks
        self.places = listed[: rounds * layout.num_blocks].reshape(rounds, layout.num_blocks)
        self.requests = buffer[layout.requests : end].reshape(rows, len(REQUEST_FIELDS))

    def get(self, name: str) -> int:
        """Header field by name."""
        return int(self.header[HEADER_FIELDS.index(name)])

    def set(self, **values: int) -> None:
        """Writes header fields by name."""
        for name, value in values.items():
            self.header[HEADER_FIELDS.index(name)] = value

    def request(self, index: int) -> RequestRecord:
        """Record `index` as named Python integers."""
        return RequestRecord(*(int(x) for x in self.requests[index]))
