"""The range kernel: compiles clean, and run on the host makes tables from which blocks read what
NumPy finds in the tensors."""

from __future__ import annotations

import itertools
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cute_attn.codegen.kernels import block_ranges_grid, emit_block_ranges, range_tables
from cute_attn.codegen.ranges import read_function
from cute_attn.codegen.spec import UnsupportedSpecError
from cute_attn.runtime import CompileRequest, compile_source
from cute_attn.variants import Tensor, Variant, causal, document_mask
from cute_attn.variants.ranges import RangeTable
from tests.codegen.host_block import COMPILER, compile_kernel
from tests.variants.test_programs import floor_functions


def _variant(name: str, kind: str, dims: int, mask: Any) -> Variant:
    return Variant(name, mask=mask, params=[Tensor("x", kind, dims)])


CASES: dict[str, tuple[Variant, tuple[int, ...]]] = {
    "documents": (causal() & document_mask(), (2, 9000)),
    "a row": (_variant("row", "i32", 1, lambda b, h, q, k, *, x: x[q] >= x[k]), (333,)),
    "padding": (_variant("padding", "bool", 2, lambda b, h, q, k, *, x: x[b, k]), (3, 65)),
    "heads": (_variant("heads", "i32", 1, lambda b, h, q, k, *, x: k > q - x[h]), (300,)),
    "dense": (_variant("dense", "bool", 2, lambda b, h, q, k, *, x: x[q, k]), (100, 200)),
    "blocks": (_variant("blocks", "bool", 3, lambda b, h, q, k, *, x: x[h, q // 64, k // 8]),
               (2, 5, 40)),
    "bits": (_variant("bits", "bits", 2, lambda b, h, q, k, *, x: x[b, k]), (3, 1024)),
    "columns": (_variant("columns", "i32", 2, lambda b, h, q, k, *, x: x[k, b] > 3), (90, 4)),
}  # fmt: skip


def name_of(variant: Variant) -> str:
    return variant.tensors[0].name


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", CASES)
def test_compiles_without_spills_or_warnings(name: str, arch: str) -> None:
    kernel = emit_block_ranges(arch, CASES[name][0])
    compiled = compile_source(
        CompileRequest(kernel.text, kernel.name, kernel.arch, kernel.include_dirs)
    )
    assert compiled.lint() == [] and compiled.resources.warnings == ()
    assert compiled.resources.registers <= 64
    assert max(map(len, kernel.text.splitlines())) <= 100
    assert ("wait_for_predecessor()" in kernel.text) == (arch == "sm_90")


def test_two_tables_of_one_tensor() -> None:
    """One for each way in which it is read."""
    variant = _variant("two", "i32", 2, lambda b, h, q, k, *, x: (x[b, k] > 0) & (x[h, k] > 0))
    tables = range_tables(variant)
    assert [(t.name, t.varies) for t in tables] == [
        ("x_ranges", (False, True)),
        ("x_ranges_1", (True, True)),
    ]
    assert block_ranges_grid(tables, {"x": (7, 5000)}) == (7, 2, 2)
    assert "if (blockIdx.z == 1) make_x_ranges_1(params, memory);" in (
        emit_block_ranges("sm_90", variant).text
    )


def test_unknown_arch() -> None:
    with pytest.raises(UnsupportedSpecError, match="arch is 'sm_75'"):
        emit_block_ranges("sm_75", CASES["documents"][0])


# Reads the tensor and blocks; prints the range of each block.
MAIN = """
#include <cstdio>
namespace cute_attn {
inline std::FILE* file;
template <class T>
std::vector<T> read(size_t count) {
  std::vector<T> values(count);
  if (std::fread(values.data(), sizeof(T), count, file) != count) std::abort();
  return values;
}
READ
}  // namespace cute_attn
int main(int, char** arguments) {
  using namespace cute_attn;
  file = std::fopen(arguments[1], "rb");
  auto const sizes = read<int>(3);  // bytes of the tensor, pairs of the table, blocks
  auto const strides = read<int64_t>(DIMS), shape = read<int64_t>(DIMS), grid = read<int64_t>(3);
  auto const tensor = read<char>(sizes[0]);
  std::vector<Range> table(sizes[1], Range{77, 77});
  Params params;
  params.TENSOR = reinterpret_cast<decltype(params.TENSOR)>(tensor.data());
  FIELDS
  params.TABLE = table.data();
  for (blockIdx.x = 0; blockIdx.x < grid[0]; ++blockIdx.x) {
    for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y) run_block(params);
  }
  auto const blocks = read<int>(sizes[2] * INDICES);
  for (int i = 0; i < sizes[2]; ++i) {
    int const* at = blocks.data() + i * INDICES;
    Range const range = TABLE(params, ARGUMENTS);
    std::printf("%d %d\\n", range.least, range.most);
  }
}
"""


def build(variant: Variant, table: RangeTable, folder: Path) -> Path:
    """The program of one table."""
    kernel = emit_block_ranges("sm_80", variant, threads=64)
    (folder / "first" / "cute_attn").mkdir(parents=True)
    within = floor_functions().replace("#define CUTE_DEVICE static", "")
    header = f"#pragma once\n#include <cute/config.hpp>\nnamespace cute_attn {{\n{within}}}\n"
    (folder / "first" / "cute_attn" / "hook_functions.hpp").write_text(header)
    dims, tensor = len(table.pools), table.tensor
    fields = [f"params.{tensor}_size_{d} = shape[{d}];" for d in range(dims)]
    fields += [f"params.{tensor}_stride_{d} = strides[{d}];" for d in range(dims - 1)]
    indices = dims + sum(table.varies)
    main = MAIN.replace("READ", read_function(table))
    for word, text in (
        ("TENSOR", tensor), ("TABLE", table.name), ("DIMS", str(dims)), ("INDICES", str(indices)),
        ("FIELDS", " ".join(fields)), ("ARGUMENTS", ", ".join(f"at[{i}]" for i in range(indices))),
    ):  # fmt: skip
        main = main.replace(word, text)
    # What runs a block knows no namespace.
    kernel = replace(kernel, text=kernel.text + "\nusing cute_attn::Params;\n")
    (folder / "barrier.hpp").write_text(
        "#include <cstddef>\n#include <cute_attn/named_barrier.hpp>\n"
    )
    options = (f"-I{folder / 'first'}", "-include", str(folder / "barrier.hpp"))
    return compile_kernel(kernel, main, folder, options=options)


def blocks(rng: np.random.Generator, table: RangeTable, shape: tuple[int, ...]) -> np.ndarray:
    """Indices of random blocks, of all lengths, some reaching outside the tensor."""
    rows = []
    for _ in range(300):
        row: list[int] = []
        for size, varies in zip(shape, table.varies, strict=True):
            first = (
                int(rng.integers(-2, size + 2)) if rng.random() < 0.1 else int(rng.integers(size))
            )
            length = int(rng.integers(size) + 1 if rng.random() < 0.3 else rng.choice([1, 16, 128]))
            inside = min(first + length, size) - 1 if rng.random() < 0.9 else first + length - 1
            row += [first, inside] if varies else [first]
        rows.append(row)
    return np.array(rows, np.int32)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", CASES)
def test_blocks_read_what_the_kernel_found(name: str, tmp_path: Path) -> None:
    variant, shape = CASES[name]
    (table,) = range_tables(variant)
    rng = np.random.default_rng(5)
    wide = rng.integers(-40, 40, (*shape[:-1], shape[-1] + 3)).astype(np.int32)
    if table.kind == "bool":
        wide = wide > (30 if len(shape) > 1 else 0)
    array = wide[..., :-3]  # rows are strided
    if variant.tensors[0].kind == "bits":
        wide = np.packbits(wide, axis=-1, bitorder="little")
    given = blocks(rng, table, shape)
    grid = block_ranges_grid((table,), {table.tensor: shape})
    strides = [stride // wide.itemsize for stride in wide.strides]
    sizes = [wide.nbytes, table.num_bytes(shape) // 8, len(given)]
    data = np.array(sizes, np.int32).tobytes() + np.array([*strides, *shape, *grid]).tobytes()
    (tmp_path / "input").write_bytes(data + wide.tobytes() + given.tobytes())
    program = build(variant, table, tmp_path)
    out = subprocess.run(
        [program, tmp_path / "input"], capture_output=True, text=True, check=True, timeout=300
    ).stdout
    found = np.array(out.split(), np.int64).reshape(-1, 2)
    least, most = table.over(array)(*given.T)
    assert found.tolist() == np.stack([least, most], 1).tolist()
    known = least > -(1 << 31)
    assert known.mean() > 0.4 and not known.all()


def test_over_is_sound_and_tight() -> None:
    """It covers all elements of a block, and no more than those of its entries."""
    variant, shape = CASES["documents"]
    (table,) = range_tables(variant)
    array = np.sort(np.random.default_rng(6).integers(0, 99, shape), axis=1)
    for first, length in itertools.product((0, 31, 500, 8000), (1, 32, 33, 900)):
        block = array[1, first : first + length]
        entries = array[1, first // 32 * 32 : ((first + length - 1) // 32 + 1) * 32]
        least, most = table.over(array)(1, first, first + length - 1)
        assert least == entries.min() <= block.min() and most == entries.max() >= block.max()
