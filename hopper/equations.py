"""What a Hopper tile takes of shared memory and registers, and why one cannot run.

Shared memory holds `q_stages` Q tiles, `stages` K blocks and `stages` V blocks of 16-bit elements,
their head dims padded to whole panels; the products have the true width.
A consumer thread holds S (tile_kv / 2 registers), P (tile_kv / 4) and O (head_dim_vo / 2) at the
same time, and Q (head_dim_qk / 4) with `q_in_registers`. Of e4m3: fp8_tiles.py.
"""

from __future__ import annotations

from cute_attn.codegen.smem_tile import SmemTile, padded_columns
from cute_attn.codegen.spec import E4M3, Tile, element_bytes
from cute_attn.codegen.vector_hooks import turns_bytes
from cute_attn.hopper import fp8_tiles
from cute_attn.variants import Variant

SMEM_PER_BLOCK = 232_448  # bytes a block may use on sm_90
REGISTERS_PER_SM = 65_536
WORKING_REGISTERS = 32  # addresses, row references and sums, loop state: beside the fragments
MASK_REGISTERS = 40  # the same with a mask
_BARRIER_BYTES = 1024  # barriers, and the rounding of the last tile to 1024 bytes


def smem_bytes(
    tile: Tile,
    head_dim_qk: int,
    head_dim_vo: int,
    variant: Variant | None = None,
    *,
    dtype: str = "bf16",
) -> int:
    """Dynamic shared memory of a block, in bytes."""
    turns = 0 if variant is None else _turns_room(variant, head_dim_qk, head_dim_vo)
    tiles = tile_bytes(tile, head_dim_qk, head_dim_vo, variant, dtype=dtype)
    return sum(tiles) + _BARRIER_BYTES + turns


def _turns_room(variant: Variant, head_dim_qk: int, head_dim_vo: int) -> int:
    return -(-turns_bytes(variant, head_dim_qk, head_dim_vo) // 1024) * 1024


def consumers(tile: Tile, variant: Variant | None = None, *, dtype: str = "bf16") -> int:
    """Consumer warpgroups: the others are the producer, and one that transforms rows, or (e4m3) may
    transpose values."""
    if dtype == E4M3:
        return tile.q // 64
    return tile.threads // 128 - (2 if variant is not None and variant.vector_hooks else 1)


def transformer_registers(tile: Tile) -> int:
    """`setmaxnreg` of the warpgroup that transforms rows or transposes values: what the others
    leave of the launch."""
    launched = REGISTERS_PER_SM // (tile.threads * tile.blocks_per_sm) // 8 * 8
    warpgroups = tile.threads // 128
    others = tile.producer_registers + (warpgroups - 2) * tile.consumer_registers
    return min(warpgroups * launched - others, launched)


def tile_bytes(
    tile: Tile,
    head_dim_qk: int,
    head_dim_vo: int,
    variant: Variant | None = None,
    *,
    dtype: str = "bf16",
) -> tuple[int, int, int]:
    """Bytes of all Q tiles, of the K ring and of the V ring."""
    if dtype == E4M3:
        return fp8_tiles.tile_bytes(tile, head_dim_qk, head_dim_vo)
    qk, vo = padded_columns(head_dim_qk), padded_columns(head_dim_vo)
    return (
        tile.q_stages * SmemTile(tile.q, qk).bytes,
        key_stages(tile, head_dim_qk, head_dim_vo, variant) * SmemTile(tile.kv, qk).bytes,
        tile.stages * SmemTile(tile.kv, vo).bytes,
    )


def bytes_in_flight(tile: Tile, head_dim_qk: int, head_dim_vo: int, *, dtype: str = "bf16") -> int:
    """Bytes of K and V that a block's copies have on their way while it computes on one stage of
    each."""
    return (tile.stages - 1) * tile.kv * (head_dim_qk + head_dim_vo) * element_bytes(dtype)


def key_stages(
    tile: Tile, head_dim_qk: int, head_dim_vo: int, variant: Variant | None = None
) -> int:
    """Depth of the K ring: one more than `tile.stages` where keys pass through a hook and shared
    memory has the room, because a stage is then copied, transformed and read in turn."""
    if variant is None or "key" not in variant.vector_hooks:
        return tile.stages
    more = SmemTile(tile.kv, padded_columns(head_dim_qk)).bytes
    more += _turns_room(variant, head_dim_qk, head_dim_vo)
    fits = smem_bytes(tile, head_dim_qk, head_dim_vo) + more <= SMEM_PER_BLOCK
    return tile.stages + fits


def fragment_registers(
    tile: Tile, head_dim_qk: int, head_dim_vo: int, *, dtype: str = "bf16"
) -> int:
    """Registers of a consumer thread that hold S, P and O, and Q if it stays in registers."""
    if dtype == E4M3:
        return fp8_tiles.fragment_registers(tile, head_dim_qk, head_dim_vo)
    queries = head_dim_qk // 4 if tile.q_in_registers else 0
    return tile.kv // 2 + tile.kv // 4 + head_dim_vo // 2 + queries


def tile_reasons(
    tile: Tile,
    head_dim_qk: int,
    head_dim_vo: int,
    variant: Variant | None = None,
    *,
    dtype: str = "bf16",
) -> list[str]:
    """Why a kernel with this tile cannot run; empty = it can."""
    reasons = fp8_tiles.tile_reasons(tile) if dtype == E4M3 else []
    number = consumers(tile, variant, dtype=dtype)
    others = tile.threads // 128 - number
    if tile.threads % 128 or number < 1 or tile.q != 64 * number or not 1 <= others <= 2:
        reasons.append(
            f"tile.q is {tile.q} and threads {tile.threads}: a consumer warpgroup of 128 threads"
            " owns 64 query rows, one more produces, and with vector hooks one transforms (with"
            " e4m3 one may transpose)"
        )
    if tile.kv % 16 or not 16 <= tile.kv <= 256:
        reasons.append(f"tile.kv is {tile.kv}; wgmma takes multiples of 16 from 16 to 256")
    if tile.stages < 1 or tile.q_stages < 1:
        reasons.append(f"stages is {tile.stages} and q_stages {tile.q_stages}; at least 1")
    if reasons:
        return reasons
    used = smem_bytes(tile, head_dim_qk, head_dim_vo, variant, dtype=dtype)
    if used > SMEM_PER_BLOCK:
        reasons.append(f"{used} bytes of shared memory; a block has {SMEM_PER_BLOCK}")
    # setmaxnreg moves registers within what the block was launched with: asking for more waits for
    # ever. A block is launched with what the launch bounds leave each thread, in steps of 8.
    pool = tile.threads * (REGISTERS_PER_SM // (tile.threads * tile.blocks_per_sm) // 8 * 8)
    registers = 128 * (tile.producer_registers + number * tile.consumer_registers)
    if others > 1:
        registers += 128 * max(transformer_registers(tile), 24)
    if registers > pool:
        reasons.append(f"{registers} registers after setmaxnreg; the block is launched with {pool}")
    for name, value in (
        ("producer_registers", tile.producer_registers),
        ("consumer_registers", tile.consumer_registers),
    ):
        if value % 8 or not 24 <= value <= 256:
            reasons.append(f"{name} is {value}; setmaxnreg takes multiples of 8 from 24 to 256")
    fragments = fragment_registers(tile, head_dim_qk, head_dim_vo, dtype=dtype)
    if fragments + WORKING_REGISTERS > tile.consumer_registers:
        reasons.append(
            f"the fragments take {fragments} registers of a consumer thread, which has"
            f" {tile.consumer_registers} and needs {WORKING_REGISTERS} besides"
        )
    return reasons
