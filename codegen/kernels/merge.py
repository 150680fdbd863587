"""The merge kernel: combines the partial results of tiles whose KV was split.

It follows the attention kernel in the stream. Block (i, j) takes split record i of the plan and a
few of its packed rows; blocks past the number of split tiles leave at once, so the grid is fixed.
"""

from __future__ import annotations

from cute_attn.codegen.attention_params import merge_params
from cute_attn.codegen.kernels.common import (
    ELEMENTS,
    TEMPLATES,
    RowThreads,
    check,
    row_threads,
    symbol,
)
from cute_attn.codegen.params import cpp_struct
from cute_attn.codegen.render import render
from cute_attn.codegen.source import INCLUDE_DIR, GeneratedKernel

SMALL_TILE = 32
"""Tiles of at most this many rows are split in many pieces (decode) and there are few rows: four
teams of threads share the partials of a row. Larger tiles are split in few pieces."""


def _threads(tile_q: int, head_dim_vo: int) -> RowThreads:
    return row_threads(head_dim_vo, teams=4 if tile_q <= SMALL_TILE else 1, threads=256)


def emit_merge(arch: str, dtype: str, head_dim_vo: int, tile_q: int, group: int) -> GeneratedKernel:
    """Generates the merge for one tile shape.

    Args:
        arch: "sm_80" ... "sm_90a".
        dtype: of out: "bf16" or "fp16".
        head_dim_vo: elements of an output row; a multiple of 8.
        tile_q: packed query rows per tile, as in the attention kernel.
        group: query heads per KV head.

    Raises:
        UnsupportedSpecError: with the reasons.
    """
    check("merge kernel", arch, dtype, ("bf16", "fp16"), {"head_dim_vo": head_dim_vo})
    if tile_q < 1 or group < 1:
        raise ValueError(f"tile_q and group must be at least 1, got {tile_q} and {group}")
    split = _threads(tile_q, head_dim_vo)
    params = merge_params()
    name = symbol(
        f"merge_{dtype}_d{head_dim_vo}_q{tile_q}_g{group}_{arch}",
        arch, dtype, head_dim_vo, tile_q, group,
    )  # fmt: skip
    text = render(
        TEMPLATES / "merge.cu.jinja",
        name=name,
        params=cpp_struct(params),
        element=ELEMENTS[dtype],
        head_dim=head_dim_vo,
        tile_q=tile_q,
        group=group,
        split=split,
    )
    return GeneratedKernel(name, text, arch, split.threads, 0, 1, params, (INCLUDE_DIR,))


def merge_grid(head_dim_vo: int, tile_q: int, num_blocks: int) -> tuple[int, int, int]:
    """Grid of the merge kernel for a plan of `num_blocks` blocks."""
    return num_blocks, -(-tile_q // _threads(tile_q, head_dim_vo).rows), 1
