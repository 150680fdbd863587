// Copies between global memory and swizzled shared-memory tiles (layout: see wgmma.hpp) that do not
// go through TMA.
#pragma once

#include <cute/arch/copy_sm80.hpp>
#include <cute/arch/util.hpp>

namespace cute_attn {

// Chunks of 64 columns of a tile (codegen.smem_tile.padded_columns): the last one may be padded.
// Nobody reads the padding; TMA fills it with zeros, cp.async leaves it.
template <int kColumns>
constexpr int kChunks = (kColumns + 63) / 64;

// Element offset (codegen.smem_tile.SmemTile.offset) of 16-byte piece `piece` of row `row` in a
// tile of kRows rows.
template <int kRows>
CUTE_DEVICE constexpr int swizzled_offset(int row, int piece) {
  return (piece / 8) * kRows * 64 + row * 64 + ((piece % 8) ^ (row % 8)) * 8;
}

// Asynchronous 16-byte copy; zeros are written instead if !valid (then nothing is read).
CUTE_DEVICE void copy_16_bytes(void* smem, void const* global, bool valid) {
  cute::SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<cute::uint128_t>::copy(
      *static_cast<cute::uint128_t const*>(global), *static_cast<cute::uint128_t*>(smem), valid);
}

// Zeroes rows [first_row, kRows) of a tile of kColumns columns, by the 128 threads of a warpgroup.
// Whole rows lie contiguously in each chunk, so the swizzle does not matter.
template <int kRows, int kColumns, class Element>
CUTE_DEVICE void zero_rows(Element* tile, int first_row, int thread) {
  CUTE_UNROLL
  for (int chunk = 0; chunk < kChunks<kColumns>; ++chunk) {
    uint4* piece = reinterpret_cast<uint4*>(tile + chunk * kRows * 64);
    for (int i = first_row * 8 + thread; i < kRows * 8; i += 128) {
      piece[i] = make_uint4(0, 0, 0, 0);
    }
  }
}

}  // namespace cute_attn
