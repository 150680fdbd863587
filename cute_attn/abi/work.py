"""How a thread block finds its items in a plan: the twin of `codegen/include/cute_attn/work.hpp`.

An item is a piece of a tile: packed query rows of one (request, KV head) against a range of KV
blocks. Both texts must agree to the bit; `tests/abi` compares them on random plans.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from cute_attn.abi.plan import REQUEST_FIELDS, PlanView, RequestRecord

KEYS_OF_SQUARE = 128
"""Keys of a tile over the square of its fixed pieces. A piece takes the shorter the more there are,
merging them the longer: the square root balances the two, whatever the constants are."""
MOST_PIECES = 64
"""Of a tile."""
MOST_ROWS = 1 << 14
"""Packed rows of all fixed pieces of a request: as many tiles as fill a device need none."""

_TILE_BEGIN = REQUEST_FIELDS.index("tile_begin")


class Item(NamedTuple):
    """What one pass of a kernel's main loop computes."""

    request: int  # record index
    tile: int
    kv_head: int
    row_begin: int  # first packed query row of the tile
    num_rows: int  # packed query rows in the tile, 1 .. tile_q
    block_begin: int  # KV blocks [block_begin, block_end) of tile_kv keys, from the request's key 0
    block_end: int
    slot: int  # partial slot to write, or -1: the item is its whole tile and writes the output


def cdiv(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def num_pieces(blocks: int, tiles: int, *, tile_q: int, tile_kv: int) -> int:
    """In how many pieces a tile is cut that does not know the rest of its batch.

    Piece i has KV blocks [i * blocks // pieces, (i + 1) * blocks // pieces) of the tile's.

    Args:
        blocks: KV blocks that the tile visits.
        tiles: tiles of its request, of all KV heads.
        tile_q, tile_kv: the kernel's tile shape.
    """
    root = math.isqrt(blocks * tile_kv // KEYS_OF_SQUARE)
    return max(min(root, blocks, MOST_ROWS // (tiles * tile_q), MOST_PIECES), 1)


def locate_tile(
    record: RequestRecord, local: int, *, tile_q: int, group: int, num_kv_heads: int
) -> tuple[int, int]:
    """(kv_head, q_tile) of tile number `local` of a request.

    Order: sections of `section_heads` KV heads; within a section the last (under a causal mask the
    longest) query tile first; within a query tile the heads of the section side by side.
    """
    q_tiles = cdiv(record.q_len * group, tile_q)
    section, rest = divmod(local, q_tiles * record.section_heads)
    first_head = section * record.section_heads
    heads = min(record.section_heads, num_kv_heads - first_head)
    step, head = divmod(rest, heads)
    return first_head + head, q_tiles - 1 - step


def kv_block_range(
    record: RequestRecord,
    row_begin: int,
    num_rows: int,
    *,
    tile_kv: int,
    group: int,
    window_left: int,
    window_right: int,
) -> tuple[int, int]:
    """KV blocks [begin, end) that hold every key visible to the rows; empty if begin == end."""
    first_token = row_begin // group
    last_token = (row_begin + num_rows - 1) // group
    shift = record.q_pos - record.kv_pos
    low = max(shift + first_token - window_left, 0)
    high = min(shift + last_token + window_right + 1, record.kv_len)
    begin = low // tile_kv
    return (begin, cdiv(high, tile_kv)) if high > low else (begin, begin)


class WorkWalker:
    """Reads items out of a plan.

    Header and records are read once, so a walker must not outlive changes to the plan's buffer.
    """

    def __init__(self, plan: PlanView) -> None:
        self.plan = plan
        self.tile_q, self.tile_kv = plan.get("tile_q"), plan.get("tile_kv")
        self.group, self.num_kv_heads = plan.get("group"), plan.get("num_kv_heads")
        self.heads_in_ids = plan.get("heads_in_ids")
        self.window_left, self.window_right = plan.get("window_left"), plan.get("window_right")
        self.num_blocks, self.num_whole = plan.get("num_blocks"), plan.get("num_whole_tiles")
        self.first_listed = plan.get("first_listed_round")
        self.fixed_pieces = bool(plan.get("fixed_pieces"))
        num_requests = plan.get("num_requests")
        self._records = [plan.request(i) for i in range(num_requests)]
        self._tile_begin = plan.requests[: num_requests + 1, _TILE_BEGIN].tolist()

    def callers_request(self, request: int) -> int:
        """The caller's request that record `request` is, or is a KV head of."""
        return self._records[request].batch // (self.heads_in_ids or 1)

    def tile_item(self, request: int, tile: int) -> Item:
        """The whole of `tile`, which belongs to record `request`, as an item."""
        record = self._records[request]
        kv_head, q_tile = locate_tile(
            record,
            tile - record.tile_begin,
            tile_q=self.tile_q,
            group=self.group,
            num_kv_heads=self.num_kv_heads,
        )
        if self.heads_in_ids:
            kv_head = record.batch % self.heads_in_ids
        row_begin = q_tile * self.tile_q
        num_rows = min(self.tile_q, record.q_len * self.group - row_begin)
        begin, end = kv_block_range(
            record,
            row_begin,
            num_rows,
            tile_kv=self.tile_kv,
            group=self.group,
            window_left=self.window_left,
            window_right=self.window_right,
        )
        return Item(request, tile, kv_head, row_begin, num_rows, begin, end, -1)

    def items(self, block: int) -> Iterator[Item]:
        """The items of thread block `block`, in the order in which it computes them."""
        request = 0
        for step in range(cdiv(self.num_whole, self.num_blocks)):
            if step < self.first_listed:
                place = self.num_blocks - 1 - block if step % 2 else block
                tile = step * self.num_blocks + place
            else:
                place = int(self.plan.places[step - self.first_listed, block])
                tile = self.first_listed * self.num_blocks + place
            if tile < self.num_whole:
                request = self._request_of(tile, request)
                yield self.tile_item(request, tile)

        if self.fixed_pieces:
            yield from self._fixed_items(block)
            return
        tile, offset, request, slot = (int(x) for x in self.plan.cuts[block, :4])
        last_tile, last_offset, _, last_slot = (int(x) for x in self.plan.cuts[block + 1, :4])
        while (tile, offset) < (last_tile, last_offset):
            request = self._request_of(tile, request)
            whole = self.tile_item(request, tile)
            begin = whole.block_begin + offset
            end = whole.block_begin + last_offset if tile == last_tile else whole.block_end
            if begin > whole.block_begin:
                yield whole._replace(block_begin=begin, block_end=end, slot=slot)
            elif end < whole.block_end:
                yield whole._replace(block_end=end, slot=last_slot - 1)
            else:
                yield whole
            tile, offset = tile + 1, 0

    def pieces(self, request: int, tile: int) -> list[Item]:
        """The fixed pieces of `tile`, in key order, with slots from 0 on; or the whole of it."""
        record, whole = self._records[request], self.tile_item(request, tile)
        begin, blocks = whole.block_begin, whole.block_end - whole.block_begin
        tiles = cdiv(record.q_len * self.group, self.tile_q) * self.num_kv_heads
        count = num_pieces(blocks, tiles, tile_q=self.tile_q, tile_kv=self.tile_kv)
        if count == 1:
            return [whole]
        bounds = [begin + i * blocks // count for i in range(count + 1)]
        return [
            whole._replace(block_begin=bounds[i], block_end=bounds[i + 1], slot=i)
            for i in range(count)
        ]

    def split_tiles(self) -> Iterator[tuple[int, int, int, int]]:
        """(tile, record, first slot, slots) of every split tile, as in `splits`."""
        if not self.fixed_pieces:
            records = self.plan.splits[: self.plan.get("num_split_tiles")]
            yield from (tuple(record) for record in records.tolist())
            return
        slot = 0
        for request in range(len(self._records)):
            for tile in range(self._tile_begin[request], self._tile_begin[request + 1]):
                count = len(self.pieces(request, tile))
                if count > 1:
                    yield tile, request, slot, count
                    slot += count

    def _fixed_items(self, block: int) -> Iterator[Item]:
        """The items of a block whose share of the line is a number of fixed pieces."""
        tile, offset, request, slot = (int(x) for x in self.plan.cuts[block, :4])
        last = tuple(int(x) for x in self.plan.cuts[block + 1, :2])
        while (tile, offset) < last:
            request = self._request_of(tile, request)
            pieces = self.pieces(request, tile)
            begin = pieces[0].block_begin
            for piece in pieces:
                if (tile, offset) <= (tile, piece.block_begin - begin) < last:
                    yield piece if piece.slot < 0 else piece._replace(slot=slot)
                    slot += piece.slot >= 0
            tile, offset = tile + 1, 0

    def _request_of(self, tile: int, request: int) -> int:
        """Record that holds `tile`, searched from `request`; listed rounds may go back."""
        if tile < self._tile_begin[request]:
            request = 0
        while tile >= self._tile_begin[request + 1]:
            request += 1
        return request


def tile_item(plan: PlanView, request: int, tile: int) -> Item:
    """The whole of `tile` as an item; `WorkWalker(plan).tile_item(request, tile)`."""
    return WorkWalker(plan).tile_item(request, tile)


def block_items(plan: PlanView, block: int) -> Iterator[Item]:
    """The items of thread block `block` of a plan; `WorkWalker(plan).items(block)`."""
    return WorkWalker(plan).items(block)
