"""The equations that decide which Hopper tiles can run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cute_attn.codegen.spec import Tile
from cute_attn.hopper.equations import (
    consumers,
    fragment_registers,
    key_stages,
    smem_bytes,
    tile_bytes,
    tile_reasons,
    transformer_registers,
)
from cute_attn.hopper.tiles import FEW_ROWS, default_tile, head_dims, long_keys
from cute_attn.variants import (
    Variant,
    causal,
    full,
    qk_norm,
    rope,
    sliding_window,
    soft_cap,
)

VARIANTS = [full(), causal(), causal() & sliding_window(), causal() & soft_cap()]
ROWS = [causal() & rope(), causal() & qk_norm() & rope(), causal() & soft_cap() & rope()]


@pytest.mark.parametrize("dims", head_dims())
@pytest.mark.parametrize(
    ("loader", "page_size"), [("ragged", None), ("paged", 64), ("paged", 16), ("gather", 1)]
)
@pytest.mark.parametrize("variant", [*VARIANTS, *ROWS], ids=lambda v: v.name)
@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("rows", [FEW_ROWS, None])
def test_every_row_of_the_table_is_feasible(
    dims: tuple[int, int],
    loader: str,
    page_size: int | None,
    variant: Variant,
    long: bool,
    rows: int | None,
) -> None:
    tile = default_tile(*dims, loader, variant, rows=rows, page_size=page_size, long=long)
    assert tile is not None
    assert tile_reasons(tile, *dims, variant) == []
    assert tile.kv % 16 == 0  # TMA boxes of pages of 16 tokens


def test_transformers_have_what_the_others_leave() -> None:
    """Of 512 registers for a thread of each of four warpgroups; one consumer leaves more."""
    for variant, registers in ((rope(), 72), (qk_norm() & rope(), 104)):
        tile = default_tile(128, 128, "ragged", variant)
        assert tile is not None and tile.threads == 512 and consumers(tile, variant) == 2
        assert transformer_registers(tile) == registers
        assert 40 + registers + 2 * tile.consumer_registers == 512
        few = default_tile(128, 128, "ragged", variant, rows=FEW_ROWS)
        assert few is not None and few.threads == 384 and consumers(few, variant) == 1
        assert transformer_registers(few) == 168  # as launched
    tile = replace(tile, consumer_registers=232)
    assert any("registers after setmaxnreg" in x for x in tile_reasons(tile, 128, 128, variant))
    assert any("with vector hooks one transforms" in x for x in tile_reasons(tile, 128, 128))


def test_keys_that_are_transformed_have_a_longer_ring() -> None:
    """Where shared memory has the room; the kernel says so."""
    for dims, stages in (((128, 128), 3), ((64, 64), 3), ((192, 192), 2), ((256, 256), 3)):
        tile = default_tile(*dims, "ragged", causal() & rope())
        assert tile is not None and tile.stages == 2
        assert key_stages(tile, *dims, causal() & rope()) == stages
        assert key_stages(tile, *dims, causal()) == 2
        assert tile_bytes(tile, *dims, rope())[1] * 2 == stages * tile_bytes(tile, *dims)[1]
        assert tile_reasons(tile, *dims, causal() & rope()) == []


def test_queries_stay_in_registers_where_it_pays() -> None:
    """Not with a mask and short keys, unless K and V come in boxes below 64 rows or row by row."""

    def kept(loader: str, variant: Variant, page_size: int | None = None, *, long: bool) -> bool:
        tile = default_tile(128, 128, loader, variant, page_size=page_size, long=long)
        assert tile is not None
        assert tile.stages == (3 if tile.q_in_registers else 2)
        return tile.q_in_registers

    for loader, page_size in (("ragged", None), ("paged", 64), ("paged", 16), ("gather", 1)):
        assert kept(loader, full(), page_size, long=False)
        assert kept(loader, causal(), page_size, long=True)
    sizes = (16, 48, 64, 192, 256)
    short = [kept("paged", causal(), size, long=False) for size in sizes]
    assert short == [True, True, False, False, False]
    assert kept("gather", causal(), 1, long=False)
    assert not kept("ragged", causal(), long=False)


def test_three_consumers_pay_later_with_a_mask() -> None:
    for dim, masked, unmasked in ((64, 1536, 1536), (80, 6144, 1536), (96, 6144, 1536)):
        assert long_keys(dim, dim, causal()) == masked
        assert long_keys(dim, dim, full()) == unmasked
        for variant in (full(), causal()):
            rows = [default_tile(dim, dim, "ragged", variant, long=long) for long in (False, True)]
            assert [tile and tile.q for tile in rows] == [128, 192]


def test_smem_by_hand() -> None:
    tile = Tile(q=128, kv=128, stages=2, threads=384)
    # Q 32 KB, two stages of K 32 KB and of V 32 KB, 1 KB for barriers.
    assert smem_bytes(tile, 128, 128) == (32 + 2 * 32 + 2 * 32 + 1) * 1024
    assert fragment_registers(tile, 192, 128) == 64 + 32 + 64
    kept = replace(tile, q_in_registers=True)
    assert fragment_registers(kept, 192, 128) == 64 + 32 + 64 + 48


def test_head_dims_are_padded_in_shared_memory_only() -> None:
    tile = Tile(q=128, kv=112, stages=2, threads=384)
    assert smem_bytes(tile, 112, 112) == smem_bytes(tile, 128, 128)
    assert smem_bytes(tile, 80, 80) == smem_bytes(tile, 96, 96) < smem_bytes(tile, 128, 128)
    assert smem_bytes(tile, 192, 80) == (48 + 2 * 42 + 2 * 21 + 1) * 1024
    assert fragment_registers(tile, 192, 80) == 56 + 28 + 40


def test_registers_beyond_the_launch_allocation_are_refused() -> None:
    # 384 threads start with 168 registers each: 504 for the three warpgroups. 32 + 2 * 240 = 512
    # fits the register file, but setmaxnreg would wait for ever.
    tile = default_tile(128, 128, "ragged")
    assert tile is not None
    greedy = replace(tile, producer_registers=32, consumer_registers=240)
    assert any("setmaxnreg" in r for r in tile_reasons(greedy, 128, 128))
    assert tile_reasons(replace(greedy, producer_registers=24), 128, 128) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"kv": 100}, "multiples of 16"),
        ({"q": 192}, "64 query rows"),
        ({"stages": 4}, "shared memory"),
        ({"stages": 0}, "stages"),
        ({"q_stages": 0}, "q_stages"),
        ({"consumer_registers": 230}, "multiples of 8"),
        ({"kv": 192, "consumer_registers": 160}, "fragments take"),
    ],
)
def test_infeasible_tiles_say_why(change: dict[str, int], word: str) -> None:
    tile = default_tile(128, 128, "ragged")
    assert tile is not None
    assert any(word in reason for reason in tile_reasons(replace(tile, **change), 128, 128))
