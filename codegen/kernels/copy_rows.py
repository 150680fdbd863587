"""The kernel that copies query rows to where the levels of `CompositeAttention` read them."""

from __future__ import annotations

from functools import cache

from cute_attn.abi import Field, ParameterBlock
from cute_attn.codegen.kernels.common import TEMPLATES, check, symbol
from cute_attn.codegen.params import cpp_struct
from cute_attn.codegen.render import render
from cute_attn.codegen.source import INCLUDE_DIR, GeneratedKernel
from cute_attn.codegen.spec import has_dependent_launch

_THREADS = 128
_VECTOR = 8  # elements of 16 bits in one load


@cache
def copy_rows_params() -> ParameterBlock:
    """Fields of the kernel."""
    return ParameterBlock(
        (
            Field("q", "pointer", "(tokens, heads, head_dim)", "Vector const"),
            Field("rows", "pointer", "(copies) rows of q", "int const"),
            Field("copies", "pointer", "(copies, heads, head_dim), contiguous", "Vector"),
            Field("token_stride", "i64", "of q, vectors"),
            Field("head_stride", "i64", "of q, vectors"),
            Field("row_vectors", "i32", "heads * head_dim / 8"),
            Field("row_blocks", "i32", "thread blocks of a row"),
        )
    )


def emit_copy_rows(arch: str, head_dim: int) -> GeneratedKernel:
    """Generates the kernel, for elements of 16 bits.

    Args:
        arch: "sm_80" ... "sm_90a".
        head_dim: elements of a head; a multiple of 8.

    Raises:
        UnsupportedSpecError: with the reasons.
    """
    check("copy_rows kernel", arch, "bf16", ("bf16",), {"head_dim": head_dim})
    params = copy_rows_params()
    name = symbol(f"copy_rows_d{head_dim}_{arch}", arch, head_dim)
    text = render(
        TEMPLATES / "copy_rows.cu.jinja",
        name=name,
        params=cpp_struct(params),
        head_vectors=head_dim // _VECTOR,
        threads=_THREADS,
        dependent_launch=has_dependent_launch(arch),
    )
    return GeneratedKernel(
        name,
        text,
        arch,
        _THREADS,
        0,
        1,
        params,
        (INCLUDE_DIR,),
        dependent_launch=has_dependent_launch(arch),
    )


def copy_rows_sizes(num_heads: int, head_dim: int) -> tuple[int, int]:
    """(row_vectors, row_blocks): fields of the kernel. The grid is (copies * row_blocks, 1, 1)."""
    vectors = num_heads * head_dim // _VECTOR
    return vectors, -(-vectors // _THREADS)
