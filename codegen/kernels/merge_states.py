"""The kernel behind `cute_attn.merge_states`: n attention states of the same rows become one."""

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


@cache
def merge_states_params() -> ParameterBlock:
    """Fields of the kernel."""
    return ParameterBlock(
        (
            Field("v", "pointer", "(states, tokens, heads, head_dim)", "Element const"),
            Field("lse", "pointer", "(states, tokens, heads), natural log", "float const"),
            Field("out", "pointer", "(tokens, heads, head_dim), contiguous", "Element"),
            Field("out_lse", "pointer", "(tokens, heads), contiguous, natural log", "float"),
            Field("v_state_stride", "i64", "elements"),
            Field("v_token_stride", "i64", "elements"),
            Field("v_head_stride", "i64", "elements"),
            Field("lse_state_stride", "i64", "elements"),
            Field("lse_token_stride", "i64", "elements"),
            Field("lse_head_stride", "i64", "elements"),
            Field("num_rows", "i64", "tokens * heads"),
            Field("num_heads", "i32", ""),
            Field("num_states", "i32", ""),
        )
    )


def _threads(head_dim: int) -> RowThreads:
    return row_threads(head_dim, threads=128)


def emit_merge_states(arch: str, dtype: str, head_dim: int) -> GeneratedKernel:
    """Generates the kernel.

    Args:
        arch: "sm_80" ... "sm_90a".
        dtype: of v and out: "bf16", "fp16" or "fp32".
        head_dim: elements of a row; a multiple of 8.

    Raises:
        UnsupportedSpecError: with the reasons.
    """
    check("merge_states kernel", arch, dtype, ("bf16", "fp16", "fp32"), {"head_dim": head_dim})
    split = _threads(head_dim)
    params = merge_states_params()
    name = symbol(f"merge_states_{dtype}_d{head_dim}_{arch}", arch, dtype, head_dim)
    text = render(
        TEMPLATES / "merge_states.cu.jinja",
        name=name,
        params=cpp_struct(params),
        element=ELEMENTS[dtype],
        split=split,
    )
    return GeneratedKernel(name, text, arch, split.threads, 0, 1, params, (INCLUDE_DIR,))


def merge_states_grid(head_dim: int, num_rows: int) -> tuple[int, int, int]:
    """Grid for `num_rows` = tokens * heads rows."""
    return -(-num_rows // _threads(head_dim).rows), 1, 1
