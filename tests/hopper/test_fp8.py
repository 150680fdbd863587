"""Kernels of e4m3 operands: what they are made of, what is refused, and the order of their keys."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cute_attn import KernelSpec, Problem, UnsupportedSpecError, Variant, choose
from cute_attn.api.dispatch import emit, supports
from cute_attn.hopper import fp8_tiles
from cute_attn.hopper.equations import E4M3, fragment_registers, smem_bytes, tile_reasons
from cute_attn.variants import causal, full, rope, sigmoid_attention

GATHER_256: dict[str, object] = {
    "loader": "gather", "group": 5, "tile": fp8_tiles.default_tile(256, 256),
}  # fmt: skip


def spec_of(
    dim: int = 128, group: int = 4, page: int | None = None, variant: Variant | None = None
) -> KernelSpec:
    return choose(Problem("sm_90a", E4M3, dim, dim, group, variant or causal(), page), rows=None)


@pytest.mark.parametrize("dims", fp8_tiles.head_dims())
def test_every_row_of_the_table_is_feasible(dims: tuple[int, int]) -> None:
    tile = fp8_tiles.default_tile(*dims)
    assert tile is not None
    assert tile_reasons(tile, *dims, dtype=E4M3) == []


def test_a_row_takes_half_the_room() -> None:
    tile = spec_of().tile
    assert fragment_registers(tile, 128, 128, dtype=E4M3) == 64 + 16 + 64 + 16
    # Q, and three stages of K, of V and of V^T.
    assert smem_bytes(tile, 128, 128, dtype=E4M3) == (1 + 3 * 3) * 128 * 128 + 1024


@pytest.mark.parametrize(("dim", "warps"), [(64, 4), (128, 4), (256, 1)])
def test_who_transposes(dim: int, warps: int) -> None:
    text = emit(spec_of(dim)).text
    assert f"kTransposers = {warps};" in text
    assert text.count("transpose_values(params, smem,") == 1
    assert len(text.splitlines()) < 400


def test_products_are_of_e4m3_and_the_output_is_bf16() -> None:
    text = emit(spec_of()).text
    assert "MMA_64x128x32_F32E4M3E4M3_RS_TN<>" in text
    assert "using Element = bf16;" in text and "zero_tail" not in text
    assert "e4m3" not in emit(replace(spec_of(), dtype="bf16", tile=spec_bf16().tile)).text


def spec_bf16() -> KernelSpec:
    return choose(Problem("sm_90a", "bf16", 128, 128, 4, causal(), None), rows=None)


def test_the_order_of_keys_is_that_of_the_scores() -> None:
    """What a thread packs of a row of S, and what it finds in a row of V^T, are the same keys.

    The A operand of 32 columns holds bytes 4t .. 4t + 3 and 16 more of a row in a thread's
    registers; the transpose puts bytes (two keys of one eight, two of the next) there.
    """
    for t in range(4):
        scores = [[8 * c + 2 * t, 8 * c + 2 * t + 1] for c in range(4)]  # columns of a thread
        packed = np.ravel(scores)  # word by word: two of one eight, two of the next
        # ldmatrix.trans: of matrix m a thread holds keys 8 m + 2 t and the one after it.
        words = [[8 * m + 2 * t, 8 * m + 2 * t + 1] for m in range(4)]
        low, high = words[0] + words[1], words[2] + words[3]  # __byte_perm of two words each
        assert [*low, *high] == packed.tolist()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"arch": "sm_90"}, "TMA and wgmma kernels are built for 'sm_90a'"),
        ({"schedule": "ampere_tile"}, "'ampere_tile' has no such products"),
        ({"head_dim_qk": 96, "head_dim_vo": 96}, "known: (64, 64), (128, 128), (256, 256)"),
        ({"variant": causal() & rope()}, "transforms vectors"),
        ({"variant": causal() & sigmoid_attention(100)}, "has no softmax"),
        (
            {"head_dim_qk": 256, "head_dim_vo": 256, **GATHER_256},
            "no warp is left that transposes V",
        ),
    ],
)
def test_what_is_refused(change: dict[str, object], reason: str) -> None:
    assert any(reason in x for x in supports(replace(spec_of(), **change)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kv", "threads", "reason"),
    [(96, 512, "transposed 128 keys at a time"), (48, 384, "transposed 32 keys at a time")],
)
def test_tiles_that_are_refused(kv: int, threads: int, reason: str) -> None:
    tile = replace(spec_of().tile, kv=kv, threads=threads)
    assert any(reason in x for x in tile_reasons(tile, 128, 128, dtype=E4M3))


def test_ampere_has_none() -> None:
    with pytest.raises(UnsupportedSpecError, match="has no such products"):
        choose(Problem("sm_80", E4M3, 128, 128, 4, full(), None), rows=None)
