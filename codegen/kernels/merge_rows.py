"""The kernel that merges what `CompositeAttention` computed of a query row in several levels."""

from __future__ import annotations

from functools import cache

from cute_attn.abi import Field, ParameterBlock
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
from cute_attn.codegen.spec import has_dependent_launch


@cache
def merge_rows_params() -> ParameterBlock:
    """Fields of the kernel."""
    return ParameterBlock(
        (
            Field("v", "pointer", "(states, heads, head_dim), contiguous", "Element const"),
            Field("lse", "pointer", "(states, heads), contiguous, natural log", "float const"),
            Field("state_indptr", "pointer", "(tokens + 1); -1: leave it alone", "int const"),
            Field("states", "pointer", "rows of v and lse, token after token", "int const"),
            Field("out", "pointer", "(tokens, heads, head_dim)", "Element"),
            Field("out_lse", "pointer", "(tokens, heads), contiguous, or null", "float"),
            Field("out_token_stride", "i64", "elements"),
            Field("out_head_stride", "i64", "elements"),
            Field("num_rows", "i64", "tokens * heads"),
            Field("num_heads", "i32", ""),
        )
    )


def _threads(head_dim: int) -> RowThreads:
    return row_threads(head_dim, threads=128)


def emit_merge_rows(arch: str, dtype: str, head_dim: int) -> GeneratedKernel:
    """Generates the kernel.

    Args:
        arch: "sm_80" ... "sm_90a".
        dtype: of v and out: "bf16" or "fp16".
        head_dim: elements of a row; a multiple of 8.

    Raises:
        UnsupportedSpecError: with the reasons.
    """
    check("merge_rows kernel", arch, dtype, ("bf16", "fp16"), {"head_dim": head_dim})
    split = _threads(head_dim)
    params = merge_rows_params()
    name = symbol(f"merge_rows_{dtype}_d{head_dim}_{arch}", arch, dtype, head_dim)
    text = render(
        TEMPLATES / "merge_rows.cu.jinja",
        name=name,
        params=cpp_struct(params),
        element=ELEMENTS[dtype],
        split=split,
        dependent_launch=has_dependent_launch(arch),
    )
    return GeneratedKernel(
        name,
        text,
        arch,
        split.threads,
        0,
        1,
        params,
        (INCLUDE_DIR,),
        dependent_launch=has_dependent_launch(arch),
    )


def merge_rows_grid(head_dim: int, num_rows: int) -> tuple[int, int, int]:
    """Grid for `num_rows` = tokens * heads rows."""
    return -(-num_rows // _threads(head_dim).rows), 1, 1
