// Shared-memory tiles of 16-bit elements and the ldmatrix reads of MMA operands from them.
//
// A tile of kRows rows is stored as panels of 64 columns, one after the other: panel p holds
// columns [64 p, 64 p + 64) of every row. A row of a panel is 128 bytes, eight chunks of 16 bytes;
// chunk c of row r is kept at place c ^ (r % 8). So the eight rows that one 8x8 matrix of an
// ldmatrix reads, and the eight chunks that eight neighbouring threads write, each cover all 32
// banks.
#pragma once

#include <cute/arch/copy_sm75.hpp>
#include <cute_attn/opaque.hpp>

namespace cute_attn::ampere {

constexpr int kChunk = 8;   // elements of 16 bytes
constexpr int kPanel = 64;  // columns

// Element offset of a thread's chunk in a tile. The parts of row and chunk number that depend on
// the thread go into `value`; `at` adds parts that are known at compile time, by a XOR and an
// immediate. The two parts of a number must have no bits in common below 8, as 5 = 4 + 1 but not 6
// = 3 + 3.
struct ChunkOffset {
  int value;

  CUTE_DEVICE ChunkOffset(int row, int chunk)
      : value(row * kPanel + ((row ^ chunk) & 7) * kChunk) {}

  template <int kRows>
  CUTE_DEVICE int at(int row, int chunk) const {
    return (value ^ (((row ^ chunk) & 7) * kChunk)) + (chunk / 8 * kRows + row) * kPanel;
  }
};

template <class Element>
CUTE_DEVICE cute::uint128_t const& chunk_at(Element const* tile, int offset) {
  return *reinterpret_cast<cute::uint128_t const*>(tile + offset);
}
template <class Element>
CUTE_DEVICE cute::uint128_t& chunk_at(Element* tile, int offset) {
  return *reinterpret_cast<cute::uint128_t*>(tile + offset);
}

// What this lane reads of 16 x 16 corners of a tile by ldmatrix. The four 8 x 8 matrices come
// column by column for an A operand and for a B operand that is read transposed (V in P V) ...
CUTE_DEVICE ChunkOffset by_columns() {
  unsigned const lane = opaque(threadIdx.x) % 32;
  return ChunkOffset(lane % 16, lane / 16);
}
// ... and row by row for a B operand whose columns are tile rows (K in Q K^T).
CUTE_DEVICE ChunkOffset by_rows() {
  unsigned const lane = opaque(threadIdx.x) % 32;
  return ChunkOffset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
}

// The corner at (row, column), both multiples of 16, of a tile of kRows rows. As by_columns() it is
// an A operand of m16n8k16, as by_rows() two B operands: those of tile rows [row, row + 8) in
// m[0..1], and of [row + 8, row + 16) in m[2..3].
template <int kRows, class Element>
CUTE_DEVICE void read_corner(Element const* tile, ChunkOffset mine, int row, int column,
                             uint32_t (&m)[4]) {
  int const offset = mine.template at<kRows>(row, column / kChunk);
  cute::SM75_U32x4_LDSM_N::copy(chunk_at(tile, offset), m[0], m[1], m[2], m[3]);
}

// The same, transposed, by_columns(): two B operands, those of tile columns [column, column + 8) in
// m[0..1], and of [column + 8, column + 16) in m[2..3].
template <int kRows, class Element>
CUTE_DEVICE void read_corner_transposed(Element const* tile, ChunkOffset mine, int row, int column,
                                        uint32_t (&m)[4]) {
  int const offset = mine.template at<kRows>(row, column / kChunk);
  cute::SM75_U16x8_LDSM_T::copy(chunk_at(tile, offset), m[0], m[1], m[2], m[3]);
}

}  // namespace cute_attn::ampere
