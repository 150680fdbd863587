// Output rows on their way from accumulators to global memory: through a swizzled shared-memory
// tile (layout: see wgmma.hpp), so that they leave in whole lines. A warp stages and copies its own
// 16 rows; nothing here waits for other warps.
#pragma once

#include <cute/arch/copy_sm90.hpp>
#include <cute_attn/elements.hpp>
#include <cute_attn/hopper/tile_copy.hpp>

namespace cute_attn {

// The lane, read anew: what depends on it is then computed here, rather than kept in registers over
// the main loop.
CUTE_DEVICE int lane_here() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

// Scales and rounds a fragment (16 rows of a warp, 2 N columns) into rows [first_row, first_row +
// 16) of a tile of kRows rows; first_row is a multiple of 16.
template <int kRows, int N, class Element>
CUTE_DEVICE void stage_rows(float const (&fragment)[N], float const (&scale)[2], Element* tile,
                            int first_row) {
  int const lane = lane_here();
  int const place = swizzled_offset<kRows>(first_row + lane % 16, lane / 16);
  CUTE_UNROLL
  for (int j = 0; j < N / 8; ++j) {  // 16 columns, pieces 2 j and 2 j + 1: four 8 x 8 matrices
    float const* f = fragment + 8 * j;
    cute::SM90_U32x4_STSM_N::copy(pack<Element>(f[0] * scale[0], f[1] * scale[0]),
                                  pack<Element>(f[2] * scale[1], f[3] * scale[1]),
                                  pack<Element>(f[4] * scale[0], f[5] * scale[0]),
                                  pack<Element>(f[6] * scale[1], f[7] * scale[1]),
                                  *reinterpret_cast<cute::uint128_t*>(tile + (j / 4) * kRows * 64 +
                                                                      (place ^ (2 * j % 8) * 8)));
  }
}

// Copies the staged rows to where `row_address(row)` says (16-byte aligned), for rows below
// num_rows: eight lanes 128 bytes of a row. Sixteen lanes compute one address each, and the others
// get it by shuffle.
template <int kRows, int kColumns, class Element, class RowAddress>
CUTE_DEVICE void copy_rows(Element const* tile, int first_row, int num_rows,
                           RowAddress row_address) {
  int const lane = lane_here();
  int const place = swizzled_offset<kRows>(first_row + lane / 8, lane % 8);
  auto const own =
      reinterpret_cast<unsigned long long>(row_address(min(first_row + lane % 16, num_rows - 1)));
  __syncwarp();
  CUTE_UNROLL
  for (int row = 0; row < 16; row += 4) {
    auto const address = __shfl_sync(0xffffffffu, own, row + lane / 8);
    Element* const to = reinterpret_cast<Element*>(address) + lane % 8 * 8;
    bool const valid = first_row + row + lane / 8 < num_rows;
    CUTE_UNROLL
    for (int chunk = 0; chunk < kChunks<kColumns>; ++chunk) {
      bool const inside = (chunk + 1) * 64 <= kColumns || chunk * 64 + lane % 8 * 8 < kColumns;
      if (valid && inside) {
        *reinterpret_cast<uint4*>(to + chunk * 64) = *reinterpret_cast<uint4 const*>(
            tile + (chunk * kRows + row) * 64 + (place ^ (row % 8) * 8));
      }
    }
  }
}

}  // namespace cute_attn
