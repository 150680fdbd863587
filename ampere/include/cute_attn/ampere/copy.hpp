// cp.async copies of rows from global memory to swizzled tiles, 16 bytes per thread and copy.
//
// Eight neighbouring threads copy one 128-byte row of a panel. A row that does not exist is filled
// with zeros and not read.
#pragma once

#include <cute/arch/copy_sm80.hpp>
#include <cute_attn/ampere/smem_tile.hpp>

namespace cute_attn::ampere {

constexpr unsigned kThreadsPerRow = kPanel / kChunk;

// The first of the columns that this thread copies of every panel.
CUTE_DEVICE int first_column() { return opaque(threadIdx.x) % kThreadsPerRow * kChunk; }

// index * stride of two numbers in [0, 2^31): one instruction.
CUTE_DEVICE int64_t wide_product(int index, int64_t stride) {
  return static_cast<int64_t>(uint64_t{static_cast<uint32_t>(index)} *
                              static_cast<uint32_t>(stride));
}

// This thread's share of the row that lies `row` below the one that `mine` is for: one chunk of
// every panel. `source` is the row in global memory, from first_column() on.
template <int kRows, int kHeadDim, class Element>
CUTE_DEVICE void copy_row(Element const* source, Element* tile, ChunkOffset mine, int row,
                          bool exists) {
  CUTE_UNROLL
  for (int panel = 0; panel < kHeadDim / kPanel; ++panel) {
    cute::SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<cute::uint128_t>::copy(
        chunk_at(source, panel * kPanel), chunk_at(tile, mine.template at<kRows>(row, 8 * panel)),
        exists);
  }
}

}  // namespace cute_attn::ampere
