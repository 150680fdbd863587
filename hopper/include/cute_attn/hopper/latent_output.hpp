// The end of an item of the latent kernel, whose two consumer warpgroups hold all 64 rows of a tile
// and half of the output's columns each.
#pragma once

#include <cute_attn/hopper/item_output.hpp>

namespace cute_attn {

// The first of this thread's two rows of a tile; the other is eight rows below. The same threads of
// both warpgroups have the same rows.
CUTE_DEVICE int latent_row() { return threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4; }

template <class Params, class Element, int kColumns, int kGroup>
struct LatentOutput : ItemOutput<Params, Element, 64, kColumns, kGroup, 8, true> {
  using Base = ItemOutput<Params, Element, 64, kColumns, kGroup, 8, true>;
  static constexpr int kOwnColumns = kColumns / 2;
  // Rows that are merged at a time: a warp has half of one.
  static constexpr int kRows = 4;
  using Merges = BlockMerges<kRows, TileRows>;

  CUTE_DEVICE static void begin(Merges& merges) {
    if (threadIdx.x == Base::kFirst) merges.clear();
  }

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
        Element* const to = Base::output_row(params, TileRows::of(item), row);
        store_row_by_lines(out, half, finished.inverse[half], to + column, valid);
        if (writes_lse && params.lse != nullptr) {
          Base::lse_place(params, TileRows::of(item), row) = finished.lse2[half] * Base::kLn2;
        }
      }
    }
    if (!partial) return;
    cutlass::arch::NamedBarrier::sync(Base::kThreads, kPieceDone);
    if (threadIdx.x == Base::kFirst) merges.arrive(params.plan, params.arrivals, item);
  }

  // All consumers, when the block has no more items. A row's pieces are far from each other and few
  // are read at a time, so many blocks must read: shares of four rows, where ItemOutput has eight.
  CUTE_DEVICE static void merge(Params const& params, Merges& merges) {
    constexpr int kVectors = kOwnColumns / 128;  // float4 of a lane
    constexpr int kInFlight = 16 / kVectors;
    int const thread = threadIdx.x - Base::kFirst, lane = thread % 32;
    int const column = thread / 32 % 2 * kOwnColumns;
    for (;;) {
      if (thread == 0) merges.find_share();
      cutlass::arch::NamedBarrier::sync(Base::kThreads, kPieceDone);
      if (!merges.any) return;
      auto const share = merges.share;
#pragma unroll 1
      for (int row = share.row_begin + thread / 64; row < share.row_end; row += kRows) {
        int64_t const first = int64_t(share.first_slot) * 64 + row;
        MergeState<kVectors> state;
        for (int slot = 0; slot < share.num_slots; slot += kInFlight) {
          float lse2[kInFlight];
          float4 piece[kInFlight][kVectors];
          CUTE_UNROLL
          for (int i = 0; i < kInFlight; ++i) {
            bool const valid = slot + i < share.num_slots;
            int64_t const at = first + int64_t(slot + i) * 64;
            // Past L1: other SMs have written these in this launch.
            lse2[i] = valid ? __ldcg(params.partial_lse + at) : neg_infinity();
            CUTE_UNROLL
            for (int v = 0; v < kVectors; ++v) {
              float const* from = params.partial_out + at * kColumns + column + 4 * (32 * v + lane);
              piece[i][v] = valid ? __ldcg(reinterpret_cast<float4 const*>(from))
                                  : make_float4(0.f, 0.f, 0.f, 0.f);
            }
          }
          state.add(lse2, piece);
        }
        write_merged(params, share.tile, row, column, lane, state);
      }
      cutlass::arch::NamedBarrier::sync(Base::kThreads, kPieceDone);  // all have read the share
    }
  }

 private:
  template <int kVectors>
  CUTE_DEVICE static void write_merged(Params const& params, TileRows const& tile, int row,
                                       int column, int lane, MergeState<kVectors> const& state) {
    Element* const to = Base::output_row(params, tile, row) + column;
    CUTE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      float4 const value = state.normalised(v);
      Element* const pair = to + partial_column(32 * v + lane);
      *reinterpret_cast<uint32_t*>(pair) = pack<Element>(value.x, value.y);
      *reinterpret_cast<uint32_t*>(pair + 8) = pack<Element>(value.z, value.w);
    }
    if (params.lse != nullptr && lane == 0 && column == 0) {
      Base::lse_place(params, tile, row) = state.lse2() * Base::kLn2;
    }
  }
};

}  // namespace cute_attn
