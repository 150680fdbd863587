"""The range kernel: tables of the least and the most element of the tensors that a mask reads.

It runs before each attention kernel whose mask reads tensors at positions, and finds out from what
they then hold what the attention kernel has to know to skip KV blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cute_attn.abi import ParameterBlock
from cute_attn.codegen.attention_params import tensor_fields
from cute_attn.codegen.hooks import accessor
from cute_attn.codegen.kernels.common import TEMPLATES, symbol
from cute_attn.codegen.params import cpp_struct
from cute_attn.codegen.ranges import make_function, table_field, tensors_of
from cute_attn.codegen.render import render
from cute_attn.codegen.source import INCLUDE_DIR, GeneratedKernel
from cute_attn.codegen.spec import ARCHS, UnsupportedSpecError, has_dependent_launch
from cute_attn.variants import Variant
from cute_attn.variants.ranges import LEVELS, RangeTable

THREADS = 1024
_OUTPUTS = 128  # RangeRow::kOutputs


def range_tables(variant: Variant) -> tuple[RangeTable, ...]:
    """The tables that kernels of a variant read."""
    return () if variant.block_test is None else variant.block_test.tables


def emit_block_ranges(arch: str, variant: Variant, *, threads: int = THREADS) -> GeneratedKernel:
    """Generates the kernel that makes the tables of a variant, which has some.

    Args:
        arch: "sm_80" ... "sm_90a".
        variant: whose mask reads tensors.
        threads: of a block; a multiple of 32.

    Raises:
        UnsupportedSpecError: unknown arch.
    """
    if arch not in ARCHS:
        reason = f"arch is {arch!r}; known: {', '.join(ARCHS)}"
        raise UnsupportedSpecError("range kernel", [reason])
    tables = range_tables(variant)
    tensors = tensors_of(tables, variant.tensors)
    fields = [field for t in tensors for field in tensor_fields(t)]
    params = ParameterBlock((*fields, *(table_field(table, made=True) for table in tables)))
    by_name = {t.name: t for t in tensors}
    parts = [(t.name, t.kind, t.dims, t.comment) for t in tensors]
    names = "_".join(t.name for t in tensors)
    name = symbol(f"ranges_{names}_{arch}", arch, parts, tables, threads)
    text = render(
        TEMPLATES / "block_ranges.cu.jinja",
        name=name,
        params=cpp_struct(params),
        accessors="\n\n".join(map(accessor, tensors)),
        tables="\n\n".join(make_function(table, by_name[table.tensor]) for table in tables),
        names=[table.name for table in tables],
        threads=threads,
        outputs=_OUTPUTS,
        entries=_OUTPUTS + (1 << (LEVELS - 1)),
        dependent_launch=has_dependent_launch(arch),
    )
    return GeneratedKernel(
        name=name,
        text=text,
        arch=arch,
        threads=threads,
        smem_bytes=0,
        blocks_per_sm=1,
        params=params,
        include_dirs=(INCLUDE_DIR,),
        dependent_launch=has_dependent_launch(arch),
    )


def block_ranges_grid(
    tables: Sequence[RangeTable], shapes: Mapping[str, Sequence[int]]
) -> tuple[int, int, int]:
    """Grid of the kernel for tensors of these shapes."""
    rows = max(table.rows(shapes[table.tensor]) for table in tables)
    entries = max(table.entries(shapes[table.tensor])[table.main] for table in tables)
    return rows, -(-entries // _OUTPUTS), len(tables)
