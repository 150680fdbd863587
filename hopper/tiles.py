"""Tile table of the Hopper kernels; what a tile takes, and what cannot run: equations.py."""

from __future__ import annotations

import math
from dataclasses import replace

from cute_attn.codegen.spec import E4M3, Tile
from cute_attn.codegen.vector_hooks import sums_before_pairs
from cute_attn.hopper import fp8_tiles
from cute_attn.hopper.equations import (
    MASK_REGISTERS,
    WORKING_REGISTERS,
    fragment_registers,
)
from cute_attn.variants import Tensor, Variant

# Two consumer warpgroups and a producer, whose warps feed K, V and the items with their queries.
# 384 threads are launched with 3 * 168 = 504 registers: 2 * 232 for the consumers leave it 40.
_BASE = Tile(q=128, kv=128, stages=2, threads=384, producer_registers=40, consumer_registers=232)

# The first product of an item runs under the last one of the item before (+20 % at 1k keys), so the
# next queries must be there by then. Either consumers read them into registers when an item begins,
# and the Q tile takes the next ones; or there are two Q tiles.
_KEPT = replace(_BASE, stages=3, q_in_registers=True)
_TWO_Q_TILES = replace(_BASE, q_stages=2)

# One row per (head_dim_qk, head_dim_vo).
_TABLE: dict[tuple[int, int], Tile] = {
    # Against two Q tiles and two stages: +4 to 6 % at 512 and 1k keys. A fourth stage: -1 to -3 %.
    (64, 64): _KEPT,
    # +1 to 3 % and +3 to 6 % at 4k. A fourth stage: nothing.
    (80, 80): _KEPT,
    (96, 96): _KEPT,
    # +4 to 8 % without a mask; with one see _SHORT_ITEMS.
    (112, 112): _KEPT,
    # 225 KB. +1 to 4 % without a mask, +0 to 3 % with one and long keys, pages of 16 +1 to 5 %.
    (128, 128): _KEPT,
    # Multi-head latent attention in prefill. 208 KB: there is no room for a second Q tile. 80 keys,
    # Q in registers and three stages take fewer cycles (2k keys -4 %), but more time (-1 to +4
    # %): more steps for the same keys, and the card is short of power.
    (192, 128): _BASE,
    # 112 keys are what shared memory holds (216 KB) beside a 48 KB Q tile.
    (192, 192): replace(_BASE, kv=112),
    # 80 keys are what shared memory holds (224 KB) beside a 64 KB Q tile.
    (256, 256): replace(_BASE, kv=80),
}

# With a mask and short keys (or a window) items are short, and reading their queries costs more
# than a third stage brings: head_dim 128 -5 to +3 %. Not where K and V come slowly, in boxes of
# less than 64 rows or row by row: +1 to 4 %. With hooks in any case.
_SHORT_ITEMS = {(112, 112): _TWO_Q_TILES, (128, 128): _TWO_Q_TILES}
_FAST_BOX_ROWS = 64

# Ragged, without hooks, for long keys: a third consumer warpgroup (192 rows) gives the
# exponentials, which bound small head dims, another warp to hide behind. 160 registers hold fewer
# keys the wider the output, and no queries. A producer that looks up pages needs more than 32.
_THREE_CONSUMERS = {
    dims: replace(
        _TWO_Q_TILES,
        q=192,
        kv=kv,
        stages=stages,
        threads=512,
        producer_registers=32,
        consumer_registers=160,
    )
    # Four stages instead of two at head_dim 64: full +1 to 2 %, causal -3 %. 96 keys in four stages
    # instead of 80 in three: head_dim 96 +2 to 4 %, 80 causal +1 to 2 %, full -1 to +1 %.
    for dims, kv, stages in (((64, 64), 128, 2), ((80, 80), 96, 4), ((96, 96), 96, 4))
}
_FULL_64 = replace(_THREE_CONSUMERS[64, 64], stages=4)

# (192, 128) with a mask: fewer keys for a second Q tile (+12 % causal, -4 % without a mask).
_MASKED_192_128 = replace(_TWO_Q_TILES, kv=96)

# head_dim 256 with short keys: a block is the unit of waste (512 keys: full +6 %, causal +5 %;
# causal at 2k +2 %; full at 2k -1.5 %).
_SHORT_256 = replace(_TABLE[256, 256], kv=64)

# Where no request has more packed rows than one consumer warpgroup owns (a few tokens each, short
# prompts) a second one would compute padding. us with two and one: 64/8 heads, 4 tokens each, 1 x
# 8k keys 20.3 and 16.5, 16 x 1k 24.9 and 23.3, 256 x 1k 295 and 288, 16 x 8k of pages of 16 130.5
# and 131.9, ragged 127.4 and 124.1; 64 prompts of 64 tokens, 32 heads, 62.1 and 51.4. Other head
# dims -3 to -25 %. Producers with 40 registers spill: the launch leaves plenty.
FEW_ROWS = 64
_ONE_CONSUMER = Tile(
    q=64,
    kv=128,
    stages=3,
    threads=256,
    producer_registers=72,
    consumer_registers=240,
    q_stages=2,
)
_FEW_ROWS_TABLE: dict[tuple[int, int], Tile] = {
    # Two Q tiles and six stages: 0 to +8 %.
    (64, 64): replace(_ONE_CONSUMER, stages=4, q_stages=1, q_in_registers=True),
    (80, 80): _ONE_CONSUMER,
    (96, 96): _ONE_CONSUMER,
    (112, 112): _ONE_CONSUMER,
    # Queries in registers: the same, and 1 to 2 % more for short prompts.
    (128, 128): _ONE_CONSUMER,
    (192, 128): replace(_ONE_CONSUMER, stages=2),
    (192, 192): replace(_ONE_CONSUMER, kv=112, stages=2),
    # Long keys: the third stage instead of a second Q tile -0 to -2 %, short ones +1 to +2 %.
    (256, 256): replace(_ONE_CONSUMER, kv=64, q_stages=1),
}
_FEW_ROWS_SHORT_256 = replace(_ONE_CONSUMER, kv=64, stages=2)

# Keys per query token, in the mean of a step, from which keys are long. A mask hides more of a
# block the larger it is, so with one three consumers pay later (head_dim 80 and 96 causal: at 4k -3
# %, at 16k +2 %).
_LONG_KEYS = 1536
_LONG_KEYS_MASKED = {(80, 80): 6144, (96, 96): 6144}

# Keys per block with hooks, by (TMA, gather) loader: the most with which nothing spills; 16 fewer
# with head_dim 64 and a mask other than a band (4 bytes).
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


# With vector hooks there is another warpgroup, which passes K and Q through them in shared memory
# and takes its registers from the consumers: threads of four warpgroups are launched with 512
# together. Two Q tiles, so that an item's queries are transformed before it begins. Keys per block:
# what shared memory then holds.
_VECTORS_KV = {(192, 128): 96, (192, 192): 80}
# 40 + 72 + 2 * 200. Rows that are summed over before their pairs are turned take 104.
_VECTORS = replace(_TWO_Q_TILES, threads=512, consumer_registers=200)
_VECTORS_HEAVY = replace(_VECTORS, consumer_registers=184)
# Registers beside the fragments, with hooks of scores and for such rows: of 44 some spill.
HOOK_REGISTERS = 52
_HEAVY_REGISTERS = 48
# Keys per block with masks other than bands: of 16 keys more up to 90 bytes
# spill. Tensors (addresses) and such rows take 16 keys more each.
_VECTORS_MASK_KV = {(64, 64): 112, (80, 80): 112, (192, 192): 64}


def _with_vectors(dims: tuple[int, int], variant: Variant, *, few: bool, hooks: bool) -> Tile:
    """The row of kernels with vector hooks."""
    if few or dims == (256, 256):  # of 512 threads none can hold an output of 256 columns
        stages = 2 if dims == (256, 256) else _FEW_ROWS_TABLE[dims].stages
        tile = replace(_FEW_ROWS_TABLE[dims], threads=384, stages=stages)
        tile = replace(tile, q_stages=2, q_in_registers=False)
    else:
        tile = _VECTORS_HEAVY if sums_before_pairs(variant) else _VECTORS
        tile = replace(tile, kv=_VECTORS_KV.get(dims, tile.kv))
    heavy = tile.consumer_registers == _VECTORS_HEAVY.consumer_registers
    need = HOOK_REGISTERS if hooks else _HEAVY_REGISTERS if heavy else MASK_REGISTERS
    tensors = any(isinstance(p, Tensor) for p in variant.read_by("mask", "logits"))
    if tensors or not variant.band_is_mask:
        most = _VECTORS_MASK_KV.get(dims, 96)
        if tile.threads == 384:  # one consumer, of 240 registers
            most = 64 if dims == (256, 256) else 112 if tensors else 128
        tile = replace(tile, kv=min(tile.kv, most - 16 * tensors - 16 * heavy))
    while fragment_registers(tile, *dims) + need > tile.consumer_registers and tile.kv > 32:
        tile = replace(tile, kv=tile.kv - 16)
    return tile


def _with_hooks(
    tile: Tile, dims: tuple[int, int], variant: Variant, *, slow: bool, gather: bool
) -> Tile:
    """The fragments give way to the code of a variant: fewer keys per block rather than spills."""
    if dims != (128, 128):
        most = _HOOK_KV[dims][gather] - 16 * (dims == (64, 64) and not variant.band_is_mask)
        return replace(tile, kv=min(tile.kv, most))
    few = tile.q == FEW_ROWS
    tensors = any(isinstance(p, Tensor) for p in variant.read_by("mask", "logits"))
    if variant.band_is_mask and not tensors:  # a few instructions per score
        if not slow:
            # Queries in registers and three stages: ALiBi +3 to 5 %, soft cap +4 to 6 %, sigmoid
            # (the longest hook) -2 to -4 %.
            return tile if few else _KEPT if variant.softmax else _TWO_Q_TILES
        return replace(tile, kv=_HOOK_KV[dims][gather])
    # Queries in registers spill beside addresses of tensors and conditions of masks other than
    # bands. Prefix-LM with 128 keys +3 to 7 % against 96, documents +8 %, a relative bias +7 %;
    # where the mask and the logits read tensors 4 bytes spill.
    both = all(
        any(isinstance(p, Tensor) for p in variant.read_by(role)) for role in ("mask", "logits")
    )
    keys = 112 if both or slow else 128
    return replace(tile if few else _TWO_Q_TILES, kv=keys)


def long_keys(head_dim_qk: int, head_dim_vo: int, variant: Variant) -> int:
    """Keys per query token, in the mean of a step, from which `default_tile` wants to be told that
    keys are long."""
    if not variant.mask:
        return _LONG_KEYS
    return _LONG_KEYS_MASKED.get((head_dim_qk, head_dim_vo), _LONG_KEYS)


def default_tile(
    head_dim_qk: int,
    head_dim_vo: int,
    loader: str,
    variant: Variant | None = None,
    *,
    rows: int | None = None,
    page_size: int | None = None,
    long: bool = False,
    dtype: str = "bf16",
) -> Tile | None:
    """The table's row for a kernel, or None if the head dims are not in it.

    Args:
        head_dim_qk, head_dim_vo, loader, variant, dtype: of the kernel.
        rows: packed query rows of the longest request; None: any number.
        page_size: tokens per page, if KV comes in pages.
        long: the step's query tokens see `long_keys` keys or more, in the mean.
    """
    dims = (head_dim_qk, head_dim_vo)
    if dtype == E4M3:
        return fp8_tiles.default_tile(*dims)
    if dims not in _TABLE:
        return None
    masked = variant is not None and bool(variant.mask)
    hooks = variant is not None and bool(variant.logits or not variant.band_is_mask)
    if variant is not None and variant.vector_hooks:
        few = rows is not None and rows <= FEW_ROWS
        return _with_vectors(dims, variant, few=few, hooks=hooks)
    if rows is not None and rows <= FEW_ROWS:
        tile = _FEW_ROWS_TABLE[dims]
        if not long and dims == (256, 256):
            tile = _FEW_ROWS_SHORT_256
    elif long and loader == "ragged" and variant and not hooks and dims in _THREE_CONSUMERS:
        return _FULL_64 if dims == (64, 64) and not masked else _THREE_CONSUMERS[dims]
    else:
        tile = _two_consumers(dims, loader, page_size, masked=masked, hooks=hooks, long=long)
    if variant is not None and hooks:
        slow = _is_slow(loader, page_size, tile.kv)
        return _with_hooks(tile, dims, variant, slow=slow, gather=loader == "gather")
    need = MASK_REGISTERS if masked else WORKING_REGISTERS
    while fragment_registers(tile, *dims) + need > tile.consumer_registers:
        tile = replace(tile, kv=tile.kv - 16)
    return tile


def _two_consumers(
    dims: tuple[int, int],
    loader: str,
    page_size: int | None,
    *,
    masked: bool,
    hooks: bool,
    long: bool,
) -> Tile:
    """The row of two consumer warpgroups, without regard to registers."""
    tile = _TABLE[dims]
    if not long and dims == (256, 256):
        tile = _SHORT_256
    if masked and dims == (192, 128):
        tile = _MASKED_192_128
    if masked and not _is_slow(loader, page_size, tile.kv) and (hooks or not long):
        tile = _SHORT_ITEMS.get(dims, tile)
    return tile


def _is_slow(loader: str, page_size: int | None, keys: int) -> bool:
    """Whether K and V come row by row, or in boxes of fewer rows than `_FAST_BOX_ROWS`."""
    return loader == "gather" or math.gcd(page_size or keys, keys) < _FAST_BOX_ROWS


def head_dims(dtype: str = "bf16") -> list[tuple[int, int]]:
    """(head_dim_qk, head_dim_vo) pairs in the table."""
    return fp8_tiles.head_dims() if dtype == E4M3 else sorted(_TABLE)
