"""Tiles of the Hopper kernels whose q, k and v are e4m3, and their equations.

Shared memory holds bytes instead of pairs of them. A consumer thread holds S (tile_kv / 2
registers), P (tile_kv / 8), O (head_dim_vo / 2), and Q (head_dim_qk / 8) with `q_in_registers`. V
has a second ring, of what is transposed (hopper/templates/transposer.jinja).
"""

from __future__ import annotations

from dataclasses import replace

from cute_attn.codegen.smem_tile import SmemTile, padded_columns
from cute_attn.codegen.spec import Tile
from cute_attn.variants import Variant

# Two consumer warpgroups, one that produces, one that transposes: 40 + 72 + 2 * 200 registers of
# the 512 that threads of four warpgroups are launched with together.
_BASE = Tile(
    q=128,
    kv=128,
    stages=3,
    threads=512,
    producer_registers=40,
    consumer_registers=200,
    q_in_registers=True,
)
_TABLE: dict[tuple[int, int], Tile] = {
    (64, 64): replace(_BASE, stages=4),
    (128, 128): _BASE,
    # Of 512 threads none can hold an output of 256 columns: a warp of the producer transposes.
    (256, 256): replace(
        _BASE,
        kv=64,
        threads=384,
        producer_registers=72,
        consumer_registers=216,
        q_stages=2,
        q_in_registers=False,
    ),
}
# 128 keys take 1.04 us instead of 1.4 at head_dim 128. At 64 both are bound by the exponentials.
_RATES = {64: 1.1, 128: 1.35, 256: 1.3}


def rate(head_dim_qk: int) -> float:
    """Of the loop over KV blocks, against that of 16-bit elements."""
    return _RATES[head_dim_qk]


def transposers(tile: Tile) -> int:
    """Warps that transpose V: one of the producer, or a warpgroup."""
    return 4 if tile.threads // 128 > tile.q // 64 + 1 else 1


def default_tile(head_dim_qk: int, head_dim_vo: int) -> Tile | None:
    """The table's row for a kernel, or None if the head dims are not in it."""
    return _TABLE.get((head_dim_qk, head_dim_vo))


def head_dims() -> list[tuple[int, int]]:
    """(head_dim_qk, head_dim_vo) pairs in the table."""
    return sorted(_TABLE)


def tile_bytes(tile: Tile, head_dim_qk: int, head_dim_vo: int) -> tuple[int, int, int]:
    """Bytes of all Q tiles, of the K ring and of both V rings."""
    words_qk, words_vo = (padded_columns(dim // 2) for dim in (head_dim_qk, head_dim_vo))
    transposed = SmemTile(head_dim_vo, padded_columns(tile.kv // 2)).bytes
    return (
        tile.q_stages * SmemTile(tile.q, words_qk).bytes,
        tile.stages * SmemTile(tile.kv, words_qk).bytes,
        tile.stages * (SmemTile(tile.kv, words_vo).bytes + transposed),
    )


def fragment_registers(tile: Tile, head_dim_qk: int, head_dim_vo: int) -> int:
    """Registers of a consumer thread that hold S, P and O, and Q if it stays in registers."""
    queries = head_dim_qk // 8 if tile.q_in_registers else 0
    return tile.kv // 2 + tile.kv // 8 + head_dim_vo // 2 + queries


def tile_reasons(tile: Tile) -> list[str]:
    """Reasons against a tile that 16-bit kernels do not have; empty = none."""
    reasons, at_once = [], 32 * transposers(tile)
    if tile.kv % at_once:
        reasons.append(
            f"tile.kv is {tile.kv}; values are transposed {at_once} keys at a time by"
            f" {tile.threads} threads"
        )
    return reasons


def variant_reasons(variant: Variant) -> list[str]:
    """Reasons against a variant with e4m3 operands; empty = none."""
    reasons = []
    if variant.vector_hooks:
        names = ", ".join(variant.vector_hooks)
        reasons.append(f"variant {variant.name!r} transforms vectors ({names}), which are e4m3")
    if not variant.softmax:
        reasons.append(
            f"variant {variant.name!r} has no softmax: its weights have any size, and those that"
            " multiply e4m3 values are e4m3"
        )
    return reasons
