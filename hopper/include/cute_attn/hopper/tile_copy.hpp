// Copies between global memory and swizzled shared-memory tiles (layout: see wgmma.hpp) that do not
// go through TMA.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cute/arch/copy_sm80.hpp>
#include <cute/arch/util.hpp>
#include <cute_attn/hopper/panels.hpp>

namespace cute_attn {

// Asynchronous 16-byte copy; zeros are written instead if !valid (then nothing is read).
CUTE_DEVICE void copy_16_bytes(void* smem, void const* global, bool valid) {
  cute::SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<cute::uint128_t>::copy(
      *static_cast<cute::uint128_t const*>(global), *static_cast<cute::uint128_t*>(smem), valid);
}

// Copies kRows rows of kColumns columns from anywhere in global memory to a tile, by kThreads
// threads.
//
// A pass copies kThreads / 8 rows: eight lanes 128 bytes at a time. Addresses of rows are 64-bit
// products: of eight passes every lane computes one address, and the others get it by shuffle.
template <int kRows, int kColumns, int kThreads>
struct RowCopy {
  static constexpr int kPassRows = kThreads / 8;
  static constexpr int kPasses = kRows / kPassRows;
  static constexpr int kOwn = (kPasses + 7) / 8;  // rows whose addresses a thread computes
  static_assert(kRows % kPassRows == 0 && kPassRows % 8 == 0);

  // May lie past the last row if kPasses is no multiple of 8: any address will do there.
  CUTE_DEVICE static constexpr int own_row(int i, int thread) {
    return (8 * i + thread % 8) * kPassRows + thread / 8;
  }

  // Element offset of what a thread copies: piece thread % 8 of a line of 64 columns, row thread /
  // 8 of a pass.
  CUTE_DEVICE static constexpr int place(int pass, int line, int thread) {
    constexpr int kPanel = kPanelColumns<kColumns>;
    return swizzled_offset<kRows, kPanel>(thread / 8, thread % 8) + pass * kPassRows * kPanel +
           line * kRows * 64;
  }

  // own[i]: where row own_row(i, thread) begins.
  template <class Element>
  CUTE_DEVICE static void copy(Element const* const (&own)[kOwn], Element* tile, int thread) {
    CUTE_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      auto const row = __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(own[pass / 8]),
                                   pass % 8, 8);
      Element const* const from = reinterpret_cast<Element const*>(row) + thread % 8 * 8;
      CUTE_UNROLL
      for (int line = 0; line * 64 < kColumns; ++line) {
        bool const inside = (line + 1) * 64 <= kColumns || line * 64 + thread % 8 * 8 < kColumns;
        if (!inside) continue;  // padding
        cute::SM80_CP_ASYNC_CACHEGLOBAL<cute::uint128_t>::copy(
            *reinterpret_cast<cute::uint128_t const*>(from + line * 64),
            *reinterpret_cast<cute::uint128_t*>(tile + place(pass, line, thread)));
      }
    }
  }
};

// This thread's arrival at a barrier, once all its copies so far have landed. It is one of the
// arrivals that the barrier was initialised with.
CUTE_DEVICE void arrive_when_copied(cutlass::arch::ClusterBarrier& full) {
  cutlass::arch::cpasync_barrier_arrive_noinc(reinterpret_cast<uint64_t const*>(&full));
}

// Zeroes rows [first_row, kRows) of a tile of kColumns columns, by the 128 threads of a warpgroup.
// The rows of a unit lie contiguously, so the swizzle does not matter.
template <class Layout, int kRows, int kColumns>
CUTE_DEVICE void zero_rows(void* tile, int first_row, int thread) {
  constexpr int kPieces = Layout::kPanel / 8;  // of 16 bytes in a row
  constexpr int kUnit = 8 * kPieces;           // in eight rows
  CUTE_UNROLL
  for (int panel = 0; panel < kPanels<kColumns>; ++panel) {
    for (int i = first_row * kPieces + thread; i < kRows * kPieces; i += 128) {
      int const in_panel = Layout::kGroupBytes == kUnit * 16
                               ? i * 16
                               : i / kUnit * Layout::kGroupBytes + i % kUnit * 16;
      int const at = panel * Layout::kPanelBytes + in_panel;
      *reinterpret_cast<uint4*>(static_cast<char*>(tile) + at) = make_uint4(0, 0, 0, 0);
    }
  }
}

}  // namespace cute_attn
