"""Prints tables of ranges as C++: how attention kernels read them, and how they are made."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from cute_attn.abi import Field
from cute_attn.variants import Tensor
from cute_attn.variants.ranges import RangeTable


def table_field(table: RangeTable, *, made: bool = False) -> Field:
    """The parameter of a table; `made`: of the kernel that makes it."""
    pools = ", ".join(f"{pool} of dim {d}" for d, pool in enumerate(table.pools))
    comment = f"ranges of {table.tensor}; an entry: {pools}"
    return Field(table.name, "pointer", comment, "Range" if made else "Range const")


def read_function(table: RangeTable) -> str:
    """The function that gives the range of a block: indices of each dimension, first and last where
    they vary."""
    tensor, main = table.tensor, table.main
    arguments, lines, loops, row = [], [], [], "0"
    for d, (pool, varies) in enumerate(zip(table.pools, table.varies, strict=True)):
        size = f"params.{tensor}_size_{d}"
        arguments += [f"int i{d}_first", f"int i{d}_last"] if varies else [f"int i{d}"]
        if d == main:
            continue
        index = f"row{d}" if varies else f"within(i{d}, {size})"
        if varies:
            given = f"i{d}_first, i{d}_last, {size}, kRangeRows"
            lines.append(f"if (!has_ranges<{pool}>({given})) return any_elements();")
            loops.append(
                f"for (int row{d} = {_entry(f'i{d}_first', pool)};"
                f" row{d} <= {_entry(f'i{d}_last', pool)}; ++row{d})"
            )
        row = index if row == "0" else f"{_factor(row)} * {_entries(table, d)} + {index}"
    last = f"i{main}_first, i{main}_last"
    lines.append(f"Range const* const table = params.{table.name};")
    lines.append(f"int const size = params.{tensor}_size_{main};")
    call = f"range_over<{table.pools[main]}>(table, row, size, {last})"
    if loops:
        lines.append("Range found = no_elements();")
        lines += [f"{'  ' * i}{loop} {{" for i, loop in enumerate(loops)]
        inner = "  " * len(loops)
        lines += [f"{inner}int64_t const row = {row};", f"{inner}found = join(found, {call});"]
        lines += ["  " * i + "}" for i in reversed(range(len(loops)))]
        lines.append("return found;")
    else:
        lines += [f"int64_t const row = {row};", f"return {call};"]
    start = f"CUTE_DEVICE Range {table.name}("
    text = f"{start}{', '.join(['Params const& params', *arguments])}) {{"
    head = "\n".join(textwrap.wrap(text, 100, subsequent_indent=" " * len(start)))
    title = f"// The least and the most element of {tensor} over a block, or less and more."
    return "\n".join([title, head, *(f"  {line}" for line in lines), "}"])


def make_function(table: RangeTable, tensor: Tensor) -> str:
    """The function that makes one thread block's part of a table."""
    main, rest = table.main, [d for d in range(tensor.dims) if d != table.main]
    lines = [f"int row = blockIdx.x, chunk = blockIdx.y, size = params.{tensor.name}_size_{main};"]
    for i, d in reversed(list(enumerate(rest))):
        count = _entries(table, d)
        lines.append(f"int const row{d} = row{f' % {count}' if i else ''};")
        lines += [f"row /= {count};"] if i else []
    first = f"row{rest[0]} >= {_entries(table, rest[0])}" if rest else "row > 0"
    lines.append(f"if ({first}) return;")
    lines.append(f"if (chunk * Row::kOutputs >= {_entries(table, main)}) return;")
    lines.append(f"auto const element = [&](int i{main}) {{")
    pooled = [d for d in rest if table.pools[d] > 1]
    for depth, d in enumerate(pooled):
        lines += ["  Range found = no_elements();"] if depth == 0 else []
        lines.append(f"{'  ' * depth}  for (int j{d} = 0; j{d} < {table.pools[d]}; ++j{d}) {{")
    inner = "  " * (len(pooled) + 1)
    lines += [
        f"{inner}int const i{d} = min({table.pools[d]} * row{d} + j{d},"
        f" params.{tensor.name}_size_{d} - 1);"
        for d in pooled
    ]
    indices = [f"i{d}" if d == main or d in pooled else f"row{d}" for d in range(tensor.dims)]
    one = f"one_element(cute_attn::{tensor.name}(params, {', '.join(indices)}))"
    lines.append(f"{inner}found = join(found, {one});" if pooled else f"{inner}return {one};")
    lines += ["  " * (depth + 1) + "}" for depth in reversed(range(len(pooled)))]
    lines += ["  return found;", "};"] if pooled else ["};"]
    lines.append(f"Row::make(memory, params.{table.name}, blockIdx.x, chunk, size, element);")
    head = (
        f"CUTE_DEVICE void make_{table.name}(Params const& params, Range (&memory)[2][kEntries]) {{"
    )
    using = f"  using Row = RangeRow<kThreads, {table.pools[main]}>;"
    return "\n".join([f"// {table.name}.", head, using, *(f"  {line}" for line in lines), "}"])


def _factor(text: str) -> str:
    return f"({text})" if " " in text else text


def _entry(index: str, pool: int) -> str:
    return index if pool == 1 else f"{index} / {pool}"


def _entries(table: RangeTable, dim: int) -> str:
    """Entries in a dimension."""
    size, pool = f"params.{table.tensor}_size_{dim}", table.pools[dim]
    return size if pool == 1 else f"(({size} - 1) / {pool} + 1)"


def tensors_of(tables: Sequence[RangeTable], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Those of a variant's tensors that tables are made of."""
    names = {table.tensor for table in tables}
    return tuple(t for t in tensors if t.name in names)
