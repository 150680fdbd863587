"""Tile table of the Hopper kernels, and the shared-memory and register equations behind it.

Shared memory holds `q_stages` Q tiles, `stages` K blocks and `stages` V blocks of 16-bit elements,
their head dims padded to multiples of 64; the products have the true width.
A consumer thread holds S (tile_kv / 2 registers), P (tile_kv / 4) and O (head_dim_vo / 2) at the
same time.
"""

from __future__ import annotations

import math
from dataclasses import replace

from cute_attn.codegen.smem_tile import SmemTile, padded_columns
from cute_attn.codegen.spec import Tile
from cute_attn.variants import Variant, full

SMEM_PER_BLOCK = 232_448  # bytes a block may use on sm_90
REGISTERS_PER_SM = 65_536
WORKING_REGISTERS = 32  # addresses, row references and sums, loop state: beside the fragments
MASK_REGISTERS = 44  # the same with a mask
_BARRIER_BYTES = 1024  # barriers, and the rounding of the last tile to 1024 bytes

# Two consumer warpgroups and a producer, whose warps feed K, V and the items with their queries.
# 384 threads are launched with 3 * 168 = 504 registers: 2 * 232 for the consumers leave it 40.
_BASE = Tile(q=128, kv=128, stages=2, threads=384, producer_registers=40, consumer_registers=232)

# One row per (head_dim_qk, head_dim_vo).
_TABLE: dict[tuple[int, int], Tile] = {
    # Two Q tiles: the next item's queries are there when an item ends, and its first product runs
    # under the last one of this item (+20 % at 1k keys).
    (64, 64): replace(_BASE, q_stages=2),
    (80, 80): replace(_BASE, q_stages=2),
    (96, 96): replace(_BASE, q_stages=2),
    (112, 112): replace(_BASE, q_stages=2),
    # 193 KB. 160 keys fit as well (225 KB): +5 % at 16k keys, -7 % at 1k (a block is the unit of
    # waste).
    (128, 128): replace(_BASE, q_stages=2),
    # Multi-head latent attention in prefill. 208 KB: there is no room for a second Q tile.
    (192, 128): _BASE,
    # 112 keys are what shared memory holds (216 KB) beside a 48 KB Q tile.
    (192, 192): replace(_BASE, kv=112),
    # 80 keys are what shared memory holds (224 KB) beside a 64 KB Q tile.
    (256, 256): replace(_BASE, kv=80),
}

# Ragged, without hooks: a third consumer warpgroup (192 rows) gives the exponentials, which bound
# small head dims, another warp to hide behind (+10 % at head_dim 64). 160 registers hold fewer keys
# the wider the output. With a mask more of a block is hidden, so it pays for long keys only:
# head_dim 64 causal at 1k, 2k, 4k, 16k keys -13, +5, +7, +15 %; 80 and 96 at 16k full +6 and +5 %,
# causal -1 and +15 %, causal at 4k +4 and +6 %. A producer that looks up pages needs more than 32
# registers.
_THREE_CONSUMERS = {
    dims: replace(
        _TABLE[dims], q=192, kv=kv, threads=512, producer_registers=32, consumer_registers=160
    )
    for dims, kv in (((64, 64), 128), ((80, 80), 96), ((96, 96), 96))
}

# head_dim 256 with short keys: a block is the unit of waste (512 keys: full +6 %, causal +5 %;
# causal at 2k +2 %; full at 2k -1.5 %).
_SHORT_256 = replace(_TABLE[256, 256], kv=64)

# (192, 128) with a mask: fewer keys for a second Q tile (+12 % causal, -4 % without a mask).
_MASKED_192_128 = replace(_TABLE[192, 128], kv=96, q_stages=2)

# Pages in boxes of less than 64 rows, or row by row where keys are short: their loads take longer,
# so fewer keys and a third stage. Pages of 16: batches of 16 +3 to 5 %, chunks of one KV head +2 to
# 11 %; pages of 64 -1 to -2 %. Page size 1: at 1k keys +1 %, at 4k -1 %.
_SLOW_LOADS = {(128, 128): replace(_TABLE[128, 128], kv=96, stages=3)}
_FAST_BOX_ROWS = 64

# Keys per block with hooks, by (TMA, gather) loader: the most with which nothing spills.
_HOOK_KV = {
    (64, 64): (128, 128),
    (80, 80): (128, 128),
    (96, 96): (128, 128),
    (112, 112): (128, 128),
    (128, 128): (112, 112),
    (192, 128): (112, 96),
    (192, 192): (96, 96),
    (256, 256): (64, 48),
}

# (producer, consumer) registers with the gather loader. Its producer keeps row addresses: with 56
# the copies use several in turn, with 40 two or three that passes wait for. head_dim 256 shares an
# address among four copies, and its consumers need the registers for their keys.
_GATHER_REGISTERS = (56, 224)
_GATHER_REGISTERS_256 = (40, 232)


def default_tile(
    head_dim_qk: int,
    head_dim_vo: int,
    loader: str,
    variant: Variant | None = None,
    *,
    page_size: int | None = None,
    long: bool = False,
) -> Tile | None:
    """The table's row for a kernel, or None if the head dims are not in it.

    `long`: for query rows that see many keys (`dispatch.is_long`).
    """
    tile = _TABLE.get((head_dim_qk, head_dim_vo))
    if tile is None:
        return None
    hooks = variant is not None and bool(variant.logits or not variant.band_is_mask)
    wide = _THREE_CONSUMERS.get((head_dim_qk, head_dim_vo)) if loader == "ragged" else None
    pays = long or (head_dim_qk == 64 and variant == full())
    if wide and variant and not hooks and pays:
        return wide
    if (head_dim_qk, head_dim_vo) == (192, 128) and variant and variant.mask:
        tile = _MASKED_192_128
    if (head_dim_qk, head_dim_vo) == (256, 256) and not long:
        tile = _SHORT_256
    box_rows = math.gcd(page_size or tile.kv, tile.kv)
    slow = box_rows < _FAST_BOX_ROWS if loader == "paged" else loader == "gather" and not long
    if slow:
        tile = _SLOW_LOADS.get((head_dim_qk, head_dim_vo), tile)
    if loader == "gather":
        producer, consumer = _GATHER_REGISTERS_256 if head_dim_vo == 256 else _GATHER_REGISTERS
        tile = replace(tile, producer_registers=producer, consumer_registers=consumer)
    # The fragments give way to the code of a variant: fewer keys per block rather than spills.
    if hooks:
        hook_kv = _HOOK_KV[head_dim_qk, head_dim_vo][loader == "gather"]
        return replace(tile, kv=min(tile.kv, hook_kv))
    need = MASK_REGISTERS if variant and variant.mask else WORKING_REGISTERS
    while fragment_registers(tile, head_dim_vo) + need > tile.consumer_registers:
        tile = replace(tile, kv=tile.kv - 16)
    return tile


def head_dims() -> list[tuple[int, int]]:
    """(head_dim_qk, head_dim_vo) pairs in the table."""
    return sorted(_TABLE)


def smem_bytes(tile: Tile, head_dim_qk: int, head_dim_vo: int) -> int:
    """Dynamic shared memory of a block, in bytes."""
    return sum(tile_bytes(tile, head_dim_qk, head_dim_vo)) + _BARRIER_BYTES


def tile_bytes(tile: Tile, head_dim_qk: int, head_dim_vo: int) -> tuple[int, int, int]:
    """Bytes of all Q tiles, of the K ring and of the V ring."""
    qk, vo = padded_columns(head_dim_qk), padded_columns(head_dim_vo)
    return (
        tile.q_stages * SmemTile(tile.q, qk).bytes,
        tile.stages * SmemTile(tile.kv, qk).bytes,
        tile.stages * SmemTile(tile.kv, vo).bytes,
    )


def fragment_registers(tile: Tile, head_dim_vo: int) -> int:
    """Registers of a consumer thread that hold S, P and O."""
    return tile.kv // 2 + tile.kv // 4 + head_dim_vo // 2


def tile_reasons(tile: Tile, head_dim_qk: int, head_dim_vo: int) -> list[str]:
    """Why a kernel with this tile cannot run; empty = it can."""
    reasons = []
    consumers = tile.threads // 128 - 1
    if tile.threads % 128 or consumers < 1 or tile.q != 64 * consumers:
        reasons.append(
            f"tile.q is {tile.q} and threads {tile.threads}: a consumer warpgroup of 128 threads"
            " owns 64 query rows, and one more warpgroup produces"
        )
    if tile.kv % 16 or not 16 <= tile.kv <= 256:
        reasons.append(f"tile.kv is {tile.kv}; wgmma takes multiples of 16 from 16 to 256")
    if tile.stages < 1 or tile.q_stages < 1:
        reasons.append(f"stages is {tile.stages} and q_stages {tile.q_stages}; at least 1")
    if reasons:
        return reasons
    used = smem_bytes(tile, head_dim_qk, head_dim_vo)
    if used > SMEM_PER_BLOCK:
        reasons.append(f"{used} bytes of shared memory; a block has {SMEM_PER_BLOCK}")
    # setmaxnreg moves registers within what the block was launched with: asking for more waits for
    # ever. A block is launched with what the launch bounds leave each thread, in steps of 8.
    pool = tile.threads * (REGISTERS_PER_SM // tile.threads // 8 * 8)
    registers = 128 * (tile.producer_registers + consumers * tile.consumer_registers)
    if registers > pool:
        reasons.append(f"{registers} registers after setmaxnreg; the block is launched with {pool}")
    for name, value in (
        ("producer_registers", tile.producer_registers),
        ("consumer_registers", tile.consumer_registers),
    ):
        if value % 8 or not 24 <= value <= 256:
            reasons.append(f"{name} is {value}; setmaxnreg takes multiples of 8 from 24 to 256")
    fragments = fragment_registers(tile, head_dim_vo)
    if fragments + WORKING_REGISTERS > tile.consumer_registers:
        reasons.append(
            f"S, P and O take {fragments} registers of a consumer thread, which has"
            f" {tile.consumer_registers} and needs {WORKING_REGISTERS} besides"
        )
    return reasons
