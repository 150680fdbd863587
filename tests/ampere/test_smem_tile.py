"""`smem_tile.hpp`, compiled for the host: its offsets are CuTe's swizzle, without conflicts."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from pycute.swizzle import Swizzle

from cute_attn import ampere
from cute_attn.codegen.source import INCLUDE_DIR

COMPILER = next((path for name in ("g++", "clang++", "c++") if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++, clang++ or c++)")
INCLUDE = Path(ampere.__file__).parent / "include"
ROWS, COLUMNS = 32, 128

# What CuTe provides and the header uses; ldmatrix only remembers where it was sent to.
COPY_SM75 = """
#pragma once
#include <cstdint>
#define CUTE_DEVICE inline
struct Index3 { unsigned x; };
inline Index3 threadIdx;
inline void const* sent_to;
namespace cute {
struct alignas(16) uint128_t { uint64_t low, high; };
struct Ldmatrix {
  static void copy(uint128_t const& from, uint32_t&, uint32_t&, uint32_t&, uint32_t&) {
    sent_to = &from;
  }
};
using SM75_U32x4_LDSM_N = Ldmatrix;
using SM75_U16x8_LDSM_T = Ldmatrix;
}  // namespace cute
"""
PROGRAM = """
#include <cstdio>
#include <initializer_list>
#include <cute_attn/ampere/smem_tile.hpp>
using namespace cute_attn::ampere;

alignas(16) uint16_t tile[32 * 128];
int sent() { return static_cast<uint16_t const*>(sent_to) - tile; }

int main() {
  uint32_t m[4];
  for (int row = 0; row < 32; row += 16) {
    for (int column = 0; column < 128; column += 16) {
      for (threadIdx.x = 0; threadIdx.x < 32; ++threadIdx.x) {
        read_corner<32>(tile, by_columns(), row, column, m);
        int const columns_first = sent();
        read_corner_transposed<32>(tile, by_columns(), row, column, m);
        int const transposed = sent();
        read_corner<32>(tile, by_rows(), row, column, m);
        std::printf("read %d %d %u %d %d %d\\n", row, column, threadIdx.x, columns_first,
                    transposed, sent());
      }
    }
  }
  // Copies by a warp (four rows at a time) and by a block of 128 threads (sixteen).
  for (int rows_per_copy : {4, 16}) {
    for (int thread = 0; thread < 8 * rows_per_copy; ++thread) {
      ChunkOffset const mine(thread / 8, thread % 8);
      for (int row = 0; row < 32; row += rows_per_copy) {
        for (int panel = 0; panel < 2; ++panel) {
          std::printf("copy %d %d %d %d\\n", rows_per_copy, thread / 8 + row,
                      64 * panel + thread % 8 * 8, mine.at<32>(row, 8 * panel));
        }
      }
    }
  }
  // The output: row lane / 4, chunk j.
  for (int lane = 0; lane < 32; lane += 4) {
    for (int row = 0; row < 32; row += 8) {
      for (int j = 0; j < 16; ++j) {
        std::printf("copy 8 %d %d %d\\n", lane / 4 + row, 8 * j,
                    ChunkOffset(lane / 4, 0).at<32>(row, j));
      }
    }
  }
}
"""


def place(row: int, column: int) -> int:
    """Element offset by CuTe: panels of 64 columns in the 128-byte swizzle of 16-bit elements."""
    swizzle = Swizzle(3, 3, 3)
    return int(column // 64 * ROWS * 64 + swizzle(row * 64 + column % 64))


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    folder = tmp_path_factory.mktemp("smem_tile")
    (folder / "cute" / "arch").mkdir(parents=True)
    (folder / "cute" / "arch" / "copy_sm75.hpp").write_text(COPY_SM75)
    (folder / "cute" / "config.hpp").write_text("#include <cute/arch/copy_sm75.hpp>\n")
    (folder / "main.cpp").write_text(PROGRAM)
    assert COMPILER is not None
    folders = (folder, INCLUDE, INCLUDE_DIR)
    subprocess.run(
        [COMPILER, "-std=c++17", "-O1", *(f"-I{at}" for at in folders), "main.cpp", "-o", "main"],
        check=True,
        cwd=folder,
    )
    out = subprocess.run([folder / "main"], check=True, capture_output=True, text=True).stdout
    return [line.split() for line in out.splitlines()]


def numbers(printed: list[list[str]], kind: str) -> npt.NDArray[np.int64]:
    return np.array([[int(x) for x in line[1:]] for line in printed if line[0] == kind])


def test_ldmatrix_reads_the_four_matrices_in_order(printed: list[list[str]]) -> None:
    reads = numbers(printed, "read")
    assert len(reads) == 2 * 8 * 32
    for row, column, lane, columns_first, transposed, rows_first in reads:
        matrix, line = divmod(int(lane), 8)
        down, right = row + line + matrix % 2 * 8, column + matrix // 2 * 8
        assert columns_first == transposed == place(down, right)
        down, right = row + line + matrix // 2 * 8, column + matrix % 2 * 8
        assert rows_first == place(down, right)


def test_ldmatrix_has_no_bank_conflicts(printed: list[list[str]]) -> None:
    reads = numbers(printed, "read").reshape(-1, 8, 6)  # eight lanes: one matrix
    for kind in (3, 5):
        banks = np.sort(reads[:, :, kind] % 64 // 8, axis=1)  # 16-byte groups of four banks
        assert (banks == np.arange(8)).all()


def test_copies_write_where_ldmatrix_reads(printed: list[list[str]]) -> None:
    copies = numbers(printed, "copy")
    for _, row, column, offset in copies:
        assert offset == place(row, column)
    for rows_per_copy in (4, 8, 16):
        offsets = copies[copies[:, 0] == rows_per_copy][:, 3]
        assert sorted(offsets) == list(range(0, ROWS * COLUMNS, 8))  # every chunk, once
