// The end of an item of the latent kernel, whose two consumer warpgroups hold all 64 rows of a tile
// and half of the output's columns each.
#pragma once

#include <cute_attn/hopper/item_output.hpp>

namespace cute_attn {

// The first of this thread's two rows of a tile; the other is eight rows below. The same threads of
// both warpgroups have the same rows.
CUTE_DEVICE int latent_row() { return threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4; }

template <class Params, class Element, int kColumns, int kGroup, class RowHooks = NoRowHooks>
struct LatentOutput : ItemOutput<Params, Element, 64, kColumns, kGroup, 8, true, RowHooks> {
  using Base = ItemOutput<Params, Element, 64, kColumns, kGroup, 8, true, RowHooks>;
  using Merges = typename Base::Merges;
  static constexpr int kOwnColumns = kColumns / 2;

  // out: this thread's part of (64, kColumns / 2), the columns of its warpgroup.
  CUTE_DEVICE static void write_item(Params const& params, Item const& item,
                                     float (&out)[kOwnColumns / 2], Finished const& finished,
                                     Merges& merges) {
    int const column = consumer() * kOwnColumns;
    bool const partial = warp_uniform(item.slot) >= 0;
    CUTE_UNROLL
    for (int half = 0; half < 2; ++half) {
      int const row = latent_row() + 8 * half;
      bool const valid = row < item.num_rows;
      bool const writes_lse = valid && threadIdx.x % 4 == 0 && column == 0;
      if (partial) {
        int64_t const slot_row = int64_t(item.slot) * 64 + row;
        if (valid) {
          store_partial_row<true>(out, half, finished.inverse[half],
                                  params.partial_out + slot_row * kColumns + column);
        }
        if (writes_lse) params.partial_lse[slot_row] = finished.lse2[half];
      } else {
        float scale = finished.inverse[half], lse2 = finished.lse2[half];
        if constexpr (RowHooks::kState) {
          int const packed = item.row_begin + row;
          scale *= finish_state<RowHooks>(
              params, RowPlace::of<kGroup>(item.request, item.kv_head, packed), lse2);
        }
        Element* const to = Base::output_row(params, TileRows::of(item), row);
        store_row_by_lines(out, half, scale, to + column, valid);
        if (writes_lse && params.lse != nullptr) {
          Base::lse_place(params, TileRows::of(item), row) = lse2 * Base::kLn2;
        }
      }
    }
    if (!partial) return;
    cutlass::arch::NamedBarrier::sync(Base::kThreads, kPieceDone);
    if (threadIdx.x == Base::kFirst) merges.arrive(params.plan, params.arrivals, item);
  }
};

}  // namespace cute_attn
