"""The merge kernel: combines the partial results of tiles whose KV was split.

It follows, in the stream, an attention kernel that does not merge itself. Block (i, j) takes split
record i of the plan and some of its packed rows; blocks past the number of split tiles leave at
once, so the grid is fixed.
From sm_90 on it is launched as a programmatic dependent: its blocks are already there when the
attention kernel ends.
"""

from __future__ import annotations

from cute_attn.codegen.attention_params import merge_params
from cute_attn.codegen.hooks import cpp_row_hooks, hook_headers, number_lines
from cute_attn.codegen.kernels.common import (
    ELEMENTS,
    TEMPLATES,
    check,
    row_threads,
    symbol,
)
from cute_attn.codegen.params import cpp_struct
from cute_attn.codegen.render import render
from cute_attn.codegen.source import INCLUDE_DIR, GeneratedKernel
from cute_attn.codegen.spec import has_dependent_launch
from cute_attn.variants import Variant

THREADS = 256


def emit_merge(
    arch: str,
    dtype: str,
    head_dim_vo: int,
    tile_q: int,
    group: int,
    variant: Variant | None = None,
    *,
    per_head: bool = False,
) -> GeneratedKernel:
    """Generates the merge for one tile shape.

    Args:
        arch: "sm_80" ... "sm_90a".
        dtype: of out: "bf16" or "fp16".
        head_dim_vo: elements of an output row; a multiple of 8.
        tile_q: packed query rows per tile, as in the attention kernel.
        group: query heads per KV head.
        variant: whose rows they are; what it does with finished ones (`Variant.finish`) is done
            here. None: nothing.
        per_head: for plans with `heads_in_ids`.

    Raises:
        UnsupportedSpecError: with the reasons.
    """
    check("merge kernel", arch, dtype, ("bf16", "fp16"), {"head_dim_vo": head_dim_vo})
    if tile_q < 1 or group < 1:
        raise ValueError(f"tile_q and group must be at least 1, got {tile_q} and {group}")
    split = row_threads(head_dim_vo, threads=THREADS)
    finish = None if variant is None else variant.finish
    params = merge_params(finish)
    own = () if finish is None else (finish,)
    name = symbol(
        f"merge_{dtype}_d{head_dim_vo}_q{tile_q}_g{group}"
        f"{'_finish' if own else ''}{'_per_head' if per_head else ''}_{arch}",
        arch, dtype, head_dim_vo, tile_q, group, *own,
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
        per_head=per_head,
        dependent_launch=has_dependent_launch(arch),
        softmax=finish is None or finish.softmax,
        row_state=finish is not None and finish.row_state is not None,
        row_hooks="" if finish is None else cpp_row_hooks(finish),
        hook_headers=[] if finish is None else hook_headers(finish),
    )
    return GeneratedKernel(
        name=name,
        text=number_lines(text),
        arch=arch,
        threads=split.threads,
        smem_bytes=0,
        blocks_per_sm=1,
        params=params,
        include_dirs=(INCLUDE_DIR,),
        dependent_launch=has_dependent_launch(arch),
    )


def merge_grid(head_dim_vo: int, tile_q: int, num_blocks: int) -> tuple[int, int, int]:
    """Grid of the merge kernel for a plan of `num_blocks` blocks."""
    return num_blocks, -(-tile_q // row_threads(head_dim_vo, threads=THREADS).rows), 1
