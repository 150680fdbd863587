"""The tile table runs on every architecture, and the equations refuse what would not."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from cute_attn import ampere
from cute_attn.ampere.tiles import (
    blocks_by_smem,
    register_budget,
    register_limit,
    smem_bytes,
    tile_reasons,
)
from cute_attn.codegen.spec import Tile, UnsupportedSpecError
from cute_attn.variants import causal
from tests.ampere.specs import ARCHS, HEAD_DIMS, SCHEDULES, make_spec

# Shared memory per block and per SM in KB, 64-bit registers aside: CUDA programming guide.
BLOCK_KB = {"sm_80": 163, "sm_86": 99, "sm_89": 99, "sm_90": 227}
SM_KB = {"sm_80": 164, "sm_86": 100, "sm_89": 100, "sm_90": 228}


@pytest.mark.parametrize(
    "arch, schedule, head_dim", list(itertools.product(ARCHS, SCHEDULES, HEAD_DIMS))
)
def test_rows_of_the_table_fit(arch: str, schedule: str, head_dim: int) -> None:
    row = ampere.tile_row(arch, schedule, head_dim)
    tile = row.tile
    assert row.reason
    assert tile_reasons(arch, schedule, tile, head_dim) == []
    assert tile.blocks_per_sm >= (2 if head_dim <= 128 else 1)

    smem = ampere.emit(make_spec(schedule, arch=arch, head_dim=head_dim)).smem_bytes
    assert smem <= BLOCK_KB[arch] << 10
    assert tile.blocks_per_sm * (smem + 1024) <= SM_KB[arch] << 10
    assert tile.blocks_per_sm * tile.threads * register_limit(tile) <= 65536


def test_decode_keeps_enough_bytes_in_flight() -> None:
    # What one SM must have under way to use the memory: H200 48 KB, A100 19 KB, and less for the
    # GDDR of sm_86 and sm_89.
    wanted = {"sm_80": 19, "sm_86": 19, "sm_89": 19, "sm_90": 48}
    for arch, head_dim in itertools.product(ARCHS, HEAD_DIMS):
        for tiles in (None, 1, 4):
            tile = ampere.tiles(arch, "ampere_decode", head_dim, tiles_per_sm=tiles)
            step = 2 * 2 * 16 * tile.threads // 32 * head_dim  # K and V of its warps, 16 bits
            assert tile.blocks_per_sm * (tile.stages - 1) * step >= wanted[arch] << 10


def test_smem_equation() -> None:
    tile = Tile(q=128, kv=64, stages=2, threads=128)
    queries, block = 128 * 128 * 2, 64 * 128 * 2
    assert smem_bytes("ampere_tile", tile, 128) == queries + 2 * 2 * block + 256
    decode = Tile(q=16, kv=64, stages=3, threads=128)
    assert smem_bytes("ampere_decode", decode, 128) == 3 * 2 * block + 256
    # What a block is planned in does not matter, its warps do.
    wide = Tile(q=16, kv=32, stages=2, threads=384)
    assert smem_bytes("ampere_decode", wide, 128) == 12 * 2 * 2 * 16 * 128 * 2 + 256
    # One warp with one small stage: what it hands over at the end is what counts.
    small = Tile(q=16, kv=16, stages=1, threads=32)
    assert smem_bytes("ampere_decode", small, 64) == 16 * 70 * 4 + 256


def test_blocks_by_smem() -> None:
    assert blocks_by_smem("sm_80", 64 << 10) == 2
    assert blocks_by_smem("sm_86", 64 << 10) == 1
    assert blocks_by_smem("sm_86", 100 << 10) == 0
    assert blocks_by_smem("sm_90", 75 << 10) == 3


def test_register_equation() -> None:
    # Two 16-row MMA tiles per warp: 128 output and 64 score registers of the 255 there are.
    tile = Tile(q=128, kv=64, stages=1, threads=128, blocks_per_sm=2)
    budget = register_budget("ampere_tile", tile, 128)
    assert (budget.output, budget.scores) == (128, 64)
    assert budget.total <= register_limit(tile) == 255
    assert register_limit(dataclasses.replace(tile, blocks_per_sm=3)) == 168


@pytest.mark.parametrize(
    "tile, head_dim, words",
    [
        (Tile(q=128, kv=128, stages=1, threads=128, blocks_per_sm=2), 128, "registers per thread"),
        (Tile(q=128, kv=64, stages=1, threads=128, blocks_per_sm=3), 128, "registers per thread"),
        (Tile(q=128, kv=64, stages=4, threads=128, blocks_per_sm=1), 128, "a block has 101376"),
        (Tile(q=64, kv=64, stages=2, threads=128, blocks_per_sm=2), 128, "do not fit"),
        (Tile(q=96, kv=64, stages=1, threads=128), 128, "tile.q is 96"),
        (Tile(q=64, kv=24, stages=1, threads=128), 128, "tile.kv is 24"),
        (Tile(q=64, kv=64, stages=0, threads=128), 128, "stages is 0"),
        (Tile(q=64, kv=64, stages=1, threads=100), 128, "threads is 100"),
    ],
)
def test_refuses_tiles_that_cannot_run(tile: Tile, head_dim: int, words: str) -> None:
    spec = make_spec(arch="sm_86", head_dim=head_dim, tile=tile)
    assert any(words in reason for reason in ampere.supports(spec))
    with pytest.raises(UnsupportedSpecError, match=words):
        ampere.emit(spec)


@pytest.mark.parametrize(
    "tile, words",
    [
        (Tile(q=32, kv=64, stages=3, threads=128), "8 or 16 packed rows"),
        (Tile(q=16, kv=40, stages=3, threads=128), "tile.kv is 40"),
        (Tile(q=16, kv=64, stages=1, threads=128), "at least 2"),
    ],
)
def test_refuses_decode_tiles_that_cannot_run(tile: Tile, words: str) -> None:
    reasons = ampere.supports(make_spec("ampere_decode", tile=tile))
    assert any(words in reason for reason in reasons)


def test_supports_names_every_reason() -> None:
    tile = ampere.tiles("sm_80", "ampere_tile", 128)
    spec = make_spec(
        "other", arch="sm_90a", dtype="fp8", head_dim=96, head_dim_vo=64, loader="gather",
        group=0, variant=causal(), tile=tile,
    )  # fmt: skip
    text = "\n".join(ampere.supports(spec))
    for word in ("'other'", "sm_90a", "'fp8'", "96", "head_dim_vo 64", "'gather'", "group is 0"):
        assert word in text


def test_unknown_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="schedule is 'tile'"):
        ampere.tiles("sm_80", "tile", 128)
    with pytest.raises(ValueError, match="head_dim 96"):
        ampere.tiles("sm_80", "ampere_tile", 96)
