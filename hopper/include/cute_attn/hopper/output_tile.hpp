// Output rows on their way from accumulators to global memory: through a swizzled shared-memory tile
// (layout: see wgmma.hpp), so that they leave in whole lines. A warp stages and copies its own 16
// rows; nothing here waits for other warps.
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

// Scales and rounds a fragment (16 rows of a warp, 2 N columns) into rows [first_row, first_row + 16)
// of a tile of kRows rows.
template <int kRows, int N, class Element>
CUTE_DEVICE void stage_rows(float const (&fragment)[N], float const (&scale)[2], Element* tile,
                            int first_row) {
  int const lane = lane_here();
  CUTE_UNROLL
  for (int j = 0; j < N / 8; ++j) {  // 16 columns: four 8 x 8 matrices
    float const* f = fragment + 8 * j;
    cute::SM90_U32x4_STSM_N::copy(
        pack<Element>(f[0] * scale[0], f[1] * scale[0]),
        pack<Element>(f[2] * scale[1], f[3] * scale[1]),
        pack<Element>(f[4] * scale[0], f[5] * scale[0]),
        pack<Element>(f[6] * scale[1], f[7] * scale[1]),
        *reinterpret_cast<cute::uint128_t*>(
            tile + swizzled_offset<kRows>(first_row + lane % 16, 2 * j + lane / 16)));
  }
}

// Copies the staged rows to where `row_address(row)` says (16-byte aligned), for rows below num_rows.
template <int kRows, int kColumns, class Element, class RowAddress>
CUTE_DEVICE void copy_rows(Element const* tile, int first_row, int num_rows,
                           RowAddress row_address) {
  constexpr int kPieces = kColumns / 8;  // 16 bytes each
  __syncwarp();
#pragma unroll 4
  for (int i = lane_here(); i < 16 * kPieces; i += 32) {
    int const row = first_row + i / kPieces, piece = i % kPieces;
    if (row < num_rows) {
      *reinterpret_cast<uint4*>(row_address(row) + 8 * piece) =
          *reinterpret_cast<uint4 const*>(tile + swizzled_offset<kRows>(row, piece));
    }
  }
}

}  // namespace cute_attn
