"""Tile table of the Ampere schedules, and the equations that refuse what cannot run.

The table is data: one row per (architecture, schedule, head_dim) with its reason beside it. A spec
may name any other tile; `tile_reasons` says whether it fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cute_attn.codegen.spec import BLOCK_SMEM, Tile

TILE, DECODE = "ampere_tile", "ampere_decode"
WARP_KEYS = 16
"""Keys of a block that one warp of the decode schedule takes: one k step of P V."""
DECODE_ROWS = (8, 16)
"""Packed query rows of decode tiles: one MMA tile of eight, or two."""
HEAD_DIMS = (64, 128, 256)
ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90")

_ELEMENT_BYTES = 2
_REGISTERS_PER_SM = 65536
_WORK_BYTES = 256
"""Work queue at the end of the kernels' shared memory: walker and two items, aligned."""
_BLOCK_RESERVED = 1024
"""Shared memory that the system keeps of each resident block."""
_OTHER_REGISTERS = 40
"""Addresses, loop state, row maxima and sums: what the kernels use beside their fragments."""

_HEAVY_REGISTERS = 56
"""What vector hooks take beside them, if they are heavy: with less, 8 to 300 bytes spill."""

# Shared memory of an SM in bytes (CUDA programming guide, compute capabilities).
_SM_SMEM = {"sm_80": 164 << 10, "sm_86": 100 << 10, "sm_89": 100 << 10, "sm_90": 228 << 10}


@dataclass(frozen=True)
class TileRow:
    """A row of the table."""

    tile: Tile
    reason: str


_SMALL = "48 KB: the most with which two blocks share the 100 KB of an SM"

_TILE_ROWS: Mapping[tuple[str, int], TileRow] = {
    ("sm_80", 64): TileRow(
        Tile(q=128, kv=96, stages=2, threads=128, blocks_per_sm=2),
        "64 KB; fewer softmax steps than blocks of 64 keys (see sm_90); 128 keys spill",
    ),
    ("sm_80", 128): TileRow(
        Tile(q=128, kv=64, stages=1, threads=128, blocks_per_sm=2),
        "two blocks of 64 KB; a second stage (96 KB) would leave room for one",
    ),
    ("sm_80", 256): TileRow(
        Tile(q=128, kv=96, stages=1, threads=256, blocks_per_sm=1),
        "16 rows per warp keep the output at 128 registers; 160 KB of 163",
    ),
    ("sm_86", 64): TileRow(Tile(q=128, kv=64, stages=2, threads=128, blocks_per_sm=2), _SMALL),
    ("sm_86", 128): TileRow(Tile(q=64, kv=64, stages=1, threads=128, blocks_per_sm=2), _SMALL),
    ("sm_86", 256): TileRow(
        Tile(q=64, kv=64, stages=1, threads=128, blocks_per_sm=1), "96 KB of 99"
    ),
    ("sm_90", 64): TileRow(
        Tile(q=128, kv=96, stages=2, threads=128, blocks_per_sm=2),
        "318 TFLOP/s, full, 16k tokens, H200; blocks of 64 keys 301; one buffer of 96 308",
    ),
    ("sm_90", 128): TileRow(
        Tile(q=128, kv=64, stages=1, threads=128, blocks_per_sm=2),
        "375 TFLOP/s; a ring of two 366",
    ),
    ("sm_90", 256): TileRow(
        Tile(q=128, kv=96, stages=1, threads=256, blocks_per_sm=1),
        "312 TFLOP/s; a ring of two blocks of 64 keys 300",
    ),
}

# Bytes in flight per SM: blocks_per_sm (stages - 1) kv 4 head_dim; at least 48 KB saturate the
# memory of an H200, 19 KB that of an A100, less those of sm_86 and sm_89.
_DECODE_ROWS: Mapping[tuple[str, int], TileRow] = {
    ("sm_80", 64): TileRow(
        Tile(q=16, kv=64, stages=4, threads=128, blocks_per_sm=2), "96 KB in flight"
    ),
    ("sm_80", 128): TileRow(
        Tile(q=16, kv=64, stages=2, threads=128, blocks_per_sm=2), "64 KB in flight"
    ),
    ("sm_80", 256): TileRow(
        Tile(q=16, kv=32, stages=4, threads=64, blocks_per_sm=1), "96 KB in flight"
    ),
    ("sm_86", 64): TileRow(
        Tile(q=16, kv=64, stages=3, threads=128, blocks_per_sm=2), "64 KB in flight"
    ),
    ("sm_86", 128): TileRow(
        Tile(q=16, kv=32, stages=3, threads=64, blocks_per_sm=2),
        "two warps: a ring of three for four warps would leave room for one block",
    ),
    ("sm_86", 256): TileRow(
        Tile(q=16, kv=32, stages=3, threads=64, blocks_per_sm=1), "64 KB in flight"
    ),
    ("sm_90", 64): TileRow(
        Tile(q=16, kv=64, stages=2, threads=128, blocks_per_sm=4),
        "64 KB in flight; 16 warps: faster than three blocks of four stages (4356, 3995 GB/s)",
    ),
    ("sm_90", 128): TileRow(
        Tile(q=16, kv=64, stages=2, threads=128, blocks_per_sm=3),
        "96 KB in flight; faster than two blocks of three stages (4349, 4162 GB/s at page size 1)",
    ),
    ("sm_90", 256): TileRow(
        Tile(q=16, kv=64, stages=3, threads=128, blocks_per_sm=1), "128 KB in flight"
    ),
}

# For steps of few query tiles, by how many an SM gets at most: larger blocks have fewer partial
# results, or whole tiles and none. The more items a block has, the more blocks must fill the gaps.
_FEW_TILES_ROWS: Mapping[tuple[str, int], Mapping[int, TileRow]] = {
    ("sm_90", 64): {
        1: TileRow(Tile(q=16, kv=64, stages=3, threads=512, blocks_per_sm=1), "128 KB in flight")
    },
    ("sm_90", 128): {
        1: TileRow(
            Tile(q=16, kv=64, stages=2, threads=384, blocks_per_sm=1),
            "96 KB in flight; 16 requests of 1k keys, 32/8 heads: 18.8 us, with three blocks 20.8; "
            "one of 8k: 12.5 and 14.1",
        ),
        4: TileRow(
            Tile(q=16, kv=64, stages=2, threads=192, blocks_per_sm=2),
            "96 KB in flight; 64 requests of 1k keys: 64.1 us, with three blocks 68.7; of up to 8k "
            "keys, or skewed: the same",
        ),
    },
}
TILES_PER_SM = (1, 4)
"""The limits of all rows for few tiles."""

_TABLES = {TILE: _TILE_ROWS, DECODE: _DECODE_ROWS}


def tile_row(arch: str, schedule: str, head_dim: int) -> TileRow:
    """The table's row; sm_89 has the shared memory of sm_86 and shares its rows.

    Raises:
        ValueError: schedule, arch or head_dim is not in the table.
    """
    if schedule not in _TABLES:
        raise ValueError(f"schedule is {schedule!r}; known: {', '.join(_TABLES)}")
    key = ("sm_86" if arch == "sm_89" else arch, head_dim)
    if key not in _TABLES[schedule]:
        raise ValueError(
            f"no tile for arch {arch!r} and head_dim {head_dim}; "
            f"known: {', '.join(ARCHS)} with {', '.join(map(str, HEAD_DIMS))}"
        )
    return _TABLES[schedule][key]


def tiles(
    arch: str,
    schedule: str,
    head_dim: int,
    rows: int | None = None,
    *,
    tiles_per_sm: int | None = None,
    turns: int = 0,
    heavy: bool = False,
) -> Tile:
    """The tile of the table; see `tile_row` for the reason and the errors.

    Args:
        arch, schedule, head_dim: the row.
        rows: packed query rows that a decode tile should have, at least.
        tiles_per_sm: query tiles that an SM gets, rounded up: few take another decode tile on some
            architectures. None: many.
        turns: see `smem_bytes`; tiles that fill the shared memory of an SM give way to them.
        heavy: a vector hook takes many registers (`codegen.vector_hooks.is_heavy`).
    """
    tile = tile_row(arch, schedule, head_dim).tile
    if schedule != DECODE:
        step = max(16, tile.threads // 8)  # rows that are copied at once
        if (heavy or turns) and register_budget(schedule, tile, head_dim).total > 200:
            wide = head_dim == 128 or (arch, head_dim) == ("sm_90", 256)
            steps = 2 if heavy and wide else 1
            tile = replace(tile, kv=tile.kv - steps * step)  # of 255; else up to 220 bytes spill
        while turns and not _fits(arch, schedule, tile, head_dim, turns) and tile.kv > step:
            tile = replace(tile, kv=tile.kv - step)
        return tile
    for most, row in _FEW_TILES_ROWS.get((arch, head_dim), {}).items():
        if tiles_per_sm is not None and tiles_per_sm <= most and not heavy:
            tile = row.tile
            break
    if rows is not None:
        tile = replace(tile, q=decode_rows(rows))
    need = register_budget(schedule, tile, head_dim).total + _HEAVY_REGISTERS
    while heavy and need > register_limit(tile) and tile.blocks_per_sm > 1:
        # Two blocks of three stages rather than three of two: as many bytes in flight.
        tile = replace(tile, blocks_per_sm=tile.blocks_per_sm - 1, stages=tile.stages + 1)
    if heavy and need > register_limit(tile):  # sixteen rows of 256 columns
        tile = replace(tile, q=min(DECODE_ROWS))
    if turns and not _fits(arch, schedule, tile, head_dim, turns) and tile.stages > 2:
        tile = replace(tile, stages=tile.stages - 1)
    return tile


def _fits(arch: str, schedule: str, tile: Tile, head_dim: int, turns: int) -> bool:
    smem = smem_bytes(schedule, tile, head_dim, turns=turns)
    return blocks_by_smem(arch, smem) >= tile.blocks_per_sm


def decode_rows(rows: int) -> int:
    """Packed query rows of the decode tile for `rows` of a request."""
    for q in DECODE_ROWS:
        if q >= rows:
            return q
    return max(DECODE_ROWS)


def row_tiles(tile: Tile) -> int:
    """MMA tiles of 16 query rows per warp of the tile schedule."""
    return tile.q // (tile.threads // 2)


def unroll_qk(tile: Tile, head_dim: int) -> int:
    """Columns of Q K^T that the tile schedule unrolls.

    Reading operands far ahead takes registers that tiles of 160 accumulators and more do not have.
    """
    budget = register_budget(TILE, tile, head_dim)
    return head_dim // 2 if budget.output + budget.scores >= 160 else head_dim


def state_bytes(tile: Tile, head_dim: int) -> int:
    """Shared memory through which a warp of the decode schedule hands over its output and sums."""
    return 4 * tile.q * (head_dim + 4 + 2)


def smem_bytes(schedule: str, tile: Tile, head_dim: int, *, turns: int = 0) -> int:
    """Shared memory of a block: the query tile and the ring; for decode, each warp's ring or
    state; and `turns` bytes of a variant's vector hooks."""
    if schedule == DECODE:
        ring = 2 * tile.stages * WARP_KEYS * head_dim * _ELEMENT_BYTES
        return tile.threads // 32 * max(ring, state_bytes(tile, head_dim)) + _WORK_BYTES + turns
    ring = 2 * tile.stages * tile.kv * head_dim * _ELEMENT_BYTES
    return tile.q * head_dim * _ELEMENT_BYTES + ring + _WORK_BYTES + turns


def bytes_in_flight(schedule: str, tile: Tile, head_dim: int) -> int:
    """Bytes of K and V that a block's copies have on their way while it computes on one stage; with
    a single stage, K of the next block or V of this one."""
    keys = tile.threads // 32 * WARP_KEYS if schedule == DECODE else tile.kv
    tiles = max(2 * (tile.stages - 1), 1)
    return tiles * keys * head_dim * _ELEMENT_BYTES


@dataclass(frozen=True)
class RegisterBudget:
    """Registers per thread by use; operands are what is live beside output and scores."""

    output: int
    scores: int
    operands: int
    other: int = _OTHER_REGISTERS

    @property
    def total(self) -> int:
        return self.output + self.scores + self.operands + self.other


def register_budget(schedule: str, tile: Tile, head_dim: int) -> RegisterBudget:
    """The register equation: fragments of 16 x n float32 take n / 2 registers of each lane."""
    if schedule == DECODE:  # the query operands stay in registers
        tiles = tile.q // 8
        return RegisterBudget(
            output=tiles * head_dim // 4, scores=4 * tiles, operands=tiles * head_dim // 8 + 8
        )
    rows = row_tiles(tile)
    return RegisterBudget(
        output=rows * head_dim // 2, scores=rows * tile.kv // 2, operands=4 * rows + 8
    )


def register_limit(tile: Tile) -> int:
    """Registers per thread with which `blocks_per_sm` blocks are resident."""
    return min(255, _REGISTERS_PER_SM // (tile.threads * tile.blocks_per_sm) // 8 * 8)


def blocks_by_smem(arch: str, smem: int) -> int:
    """Blocks of `smem` bytes that fit in the shared memory of one SM."""
    return 0 if smem > BLOCK_SMEM[arch] else _SM_SMEM[arch] // (smem + _BLOCK_RESERVED)


def tile_reasons(
    arch: str, schedule: str, tile: Tile, head_dim: int, *, turns: int = 0
) -> list[str]:
    """Why a tile cannot run on an architecture; empty if it can. `turns`: see `smem_bytes`."""
    reasons = []
    warps = tile.threads // 32
    if tile.threads % 32 or not 1 <= warps <= 16:
        return [f"threads is {tile.threads}; 1 to 16 whole warps"]
    if schedule == DECODE:
        if tile.q not in DECODE_ROWS:
            reasons.append(f"tile.q is {tile.q}; a decode tile has 8 or 16 packed rows")
        if tile.kv % WARP_KEYS or tile.kv < WARP_KEYS:
            reasons.append(f"tile.kv is {tile.kv}; a multiple of the {WARP_KEYS} keys of a step")
        if tile.stages < 2:
            reasons.append(f"stages is {tile.stages}; a warp's ring has at least 2")
    else:
        if tile.q % (16 * warps) or not 1 <= tile.q // (16 * warps) <= 2:
            reasons.append(f"tile.q is {tile.q}; each of {warps} warps takes 16 or 32 rows")
        if tile.kv % 16 or tile.kv < 16 or tile.kv % (tile.threads // 8):
            reasons.append(
                f"tile.kv is {tile.kv}; a multiple of 16 and of the {tile.threads // 8} rows that "
                f"{tile.threads} threads copy at once"
            )
        if tile.stages < 1:
            reasons.append(f"stages is {tile.stages}; at least 1")
    if reasons:
        return reasons
    smem = smem_bytes(schedule, tile, head_dim, turns=turns)
    if smem > BLOCK_SMEM[arch]:
        reasons.append(f"needs {smem} bytes of shared memory; a block has {BLOCK_SMEM[arch]}")
    elif blocks_by_smem(arch, smem) < tile.blocks_per_sm:
        reasons.append(
            f"{tile.blocks_per_sm} blocks of {smem} bytes do not fit in the "
            f"{_SM_SMEM[arch]} bytes of an SM"
        )
    budget, limit = register_budget(schedule, tile, head_dim), register_limit(tile)
    if budget.total > limit:
        reasons.append(f"needs about {budget.total} registers per thread; there are {limit}")
    return reasons
