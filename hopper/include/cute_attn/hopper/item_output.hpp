// The end of an item: its rows go to the output, or to a partial slot if other items share the
// tile. What is partial is merged after the last item (shared_merge.hpp). Packed row r of a tile is
// token r / group, head r % group of the KV head's group.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cute_attn/elements.hpp>
#include <cute_attn/finished_row.hpp>
#include <cute_attn/hopper/ring.hpp>
#include <cute_attn/hopper/wgmma.hpp>
#include <cute_attn/output.hpp>
#include <cute_attn/shared_merge.hpp>
#include <cute_attn/work.hpp>

namespace cute_attn {

// What the accumulators hold when an item has seen all its keys.
struct Finished {
  bool any = false;           // false: nothing
  float inverse[2], lse2[2];  // see LazySoftmax::finish
};

// Consumer warpgroups of kWarps warps in all, 64 rows each, write (kTileQ, kColumns) tiles.
// kByLines: eight lanes write 128 bytes of a row, rather than four lanes 64. RowHooks: see
// finished_row.hpp. kSoftmax: rows have a log-sum-exp.
template <class Params, class Element, int kTileQ, int kColumns, int kGroup, int kWarps,
          bool kByLines, class RowHooks = NoRowHooks, bool kSoftmax = true>
struct ItemOutput {
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kFirst = 128;  // thread of the consumers: behind the producer warpgroup
  static constexpr float kLn2 = 0.6931471805599453f;
  using Lanes = RowLanes<kColumns>;
  // Rows that are merged together, and pieces of each: 16 reads in flight.
  static constexpr int kRows = kWarps == 8 && Lanes::kVectors <= 3 ? 2 : 1;
  static constexpr int kPieces = 16 / (kRows * Lanes::kVectors);
  static constexpr int kRowStep = kThreads / Lanes::kLanes;
  static_assert(kTileQ % (kRows * kRowStep) == 0);
  static constexpr bool kHooks = RowHooks::kState || RowHooks::kOutput;
  using Rows = cute::conditional_t<kHooks, PlacedRows, TileRows>;
  using Merges = BlockMerges<kRows * kRowStep, Rows>;
  using State =
      cute::conditional_t<kSoftmax, MergeState<Lanes::kVectors>, MergeSum<Lanes::kVectors>>;

  // Where a packed row of the tile begins in the output, and its place in lse.
  CUTE_DEVICE static Element* output_row(Params const& params, TileRows const& tile, int row) {
    int const packed = tile.row_begin + row;
    int64_t const token = tile.q_start + packed / kGroup;
    int64_t const head = tile.kv_head * kGroup + packed % kGroup;
    return params.out + token * params.out_token_stride + head * params.out_head_stride;
  }
  CUTE_DEVICE static float& lse_place(Params const& params, TileRows const& tile, int row) {
    int const packed = tile.row_begin + row;
    int64_t const token = tile.q_start + packed / kGroup;
    return params
        .lse[token * (params.num_kv_heads * kGroup) + tile.kv_head * kGroup + packed % kGroup];
  }

  CUTE_DEVICE static void begin(Merges& merges) {
    if (threadIdx.x == kFirst) merges.clear();
  }

  // The end of an item.
  CUTE_DEVICE static void write_item(Params const& params, Item const& item,
                                     float (&out)[kColumns / 2], Finished const& finished,
                                     Merges& merges) {
    write(params, item, out, finished.inverse, finished.lse2);
    if (warp_uniform(item.slot) < 0) return;
    cutlass::arch::NamedBarrier::sync(kThreads, kPieceDone);
    if (threadIdx.x == kFirst) merges.arrive(params.plan, params.arrivals, item);
  }

  // An item without keys: output 0, lse -inf, or what hooks make of that.
  CUTE_DEVICE static void write_empty(Params const& params, Item const& item) {
    if constexpr (kHooks) {
      write_empty_rows(params, item);
      return;
    }
    constexpr int kVectors = kColumns / 8;  // 16 bytes each
    TileRows const tile = TileRows::of(item);
#pragma unroll 1
    for (int i = threadIdx.x - kFirst; i < item.num_rows * kVectors; i += kThreads) {
      int const row = i / kVectors, vector = i % kVectors;
      *reinterpret_cast<uint4*>(output_row(params, tile, row) + 8 * vector) =
          make_uint4(0, 0, 0, 0);
      if (params.lse != nullptr && vector == 0) lse_place(params, tile, row) = neg_infinity();
    }
  }

  // The same where an item that shares its tile may have no visible keys.
  CUTE_DEVICE static void write_empty_item(Params const& params, Item const& item, Merges& merges) {
    if (warp_uniform(item.slot) < 0) return write_empty(params, item);
    int64_t const first_row = int64_t(item.slot) * kTileQ;
#pragma unroll 1
    for (int i = threadIdx.x - kFirst; i < item.num_rows * (kColumns / 4); i += kThreads) {
      int const row = i / (kColumns / 4), vector = i % (kColumns / 4);
      float* const to = params.partial_out + (first_row + row) * kColumns + 4 * vector;
      *reinterpret_cast<float4*>(to) = make_float4(0.f, 0.f, 0.f, 0.f);
      if (kSoftmax && vector == 0) params.partial_lse[first_row + row] = neg_infinity();
    }
    cutlass::arch::NamedBarrier::sync(kThreads, kPieceDone);
    if (threadIdx.x == kFirst) merges.arrive(params.plan, params.arrivals, item);
  }

  // All consumers, when the block has no more items.
  CUTE_DEVICE static void merge(Params const& params, Merges& merges) {
    int const thread = threadIdx.x - kFirst;
    int const lane = thread % Lanes::kLanes;
    for (;;) {
      if (thread == 0) merges.find_share();
      cutlass::arch::NamedBarrier::sync(kThreads, kPieceDone);
      if (!merges.any) return;
      auto const share = merges.share;
#pragma unroll 1
      for (int row = share.row_begin + thread / Lanes::kLanes; row < share.row_end;
           row += kRows * kRowStep) {
        int64_t const first = int64_t(share.first_slot) * kTileQ + row;
        State state[kRows];
        merge_rows<kRows, kRowStep, kPieces, kTileQ, kColumns>(
            params.partial_out + first * kColumns + 4 * lane, params.partial_lse + first,
            share.num_slots, state);
        CUTE_UNROLL
        for (int r = 0; r < kRows; ++r) {
          int const own = row + r * kRowStep;
          if (own < share.row_end) write_merged(params, share.tile, own, lane, state[r]);
        }
      }
      cutlass::arch::NamedBarrier::sync(kThreads, kPieceDone);  // all have read the share
    }
  }

 private:
  // Writes the item's rows: the output, or a partial slot if other items share the tile. out: this
  // thread's part of (64, kColumns).
  CUTE_DEVICE static void write(Params const& params, Item const& item, float (&out)[kColumns / 2],
                                float const (&inverse)[2], float const (&lse2)[2]) {
    CUTE_UNROLL
    for (int half = 0; half < 2; ++half) {
      int const row = thread_row() + 8 * half;
      bool const valid = row < item.num_rows;
      if (item.slot >= 0) {
        if (!valid) continue;
        int64_t const slot_row = int64_t(item.slot) * kTileQ + row;
        store_partial_row<(kWarps <= 8)>(out, half, inverse[half],
                                         params.partial_out + slot_row * kColumns);
        if (kSoftmax && threadIdx.x % 4 == 0) params.partial_lse[slot_row] = lse2[half];
      } else {
        float scale = inverse[half], row_lse2 = lse2[half];
        if constexpr (kHooks) {
          RowPlace const at = place(Rows::of(item), row);
          scale *= finish_state<RowHooks>(params, at, row_lse2);
          if constexpr (RowHooks::kOutput) {
            finish_fragment<RowHooks>(params, at, half, scale, out);
            scale = 1.f;
          }
        }
        Element* const to = output_row(params, TileRows::of(item), row);
        if constexpr (kByLines) {
          store_row_by_lines(out, half, scale, to, valid);
        } else {
          store_row(out, half, scale, to, valid);
        }
        if (kSoftmax && params.lse != nullptr && valid && threadIdx.x % 4 == 0) {
          lse_place(params, TileRows::of(item), row) = row_lse2 * kLn2;
        }
      }
    }
  }

  CUTE_DEVICE static void write_merged(Params const& params, Rows const& tile, int row, int lane,
                                       State const& state) {
    Element* const to = output_row(params, tile, row);
    float lse2 = 0.f, factor = 1.f;
    if constexpr (RowHooks::kState) {
      lse2 = state.lse2();
      factor = finish_state<RowHooks>(params, place(tile, row), lse2);
    }
    CUTE_UNROLL
    for (int v = 0; v < Lanes::kVectors; ++v) {
      float4 value = state.normalised(v);
      int const column = partial_column(v * Lanes::kLanes + lane);
      if constexpr (RowHooks::kState) value = scaled4(value, factor);
      if constexpr (RowHooks::kOutput) {
        RowPlace const at = place(tile, row);
        float2 const low = make_float2(value.x, value.y), high = make_float2(value.z, value.w);
        float2 const first = finish_output<RowHooks>(params, at, low, column);
        float2 const second = finish_output<RowHooks>(params, at, high, column + 8);
        value = make_float4(first.x, first.y, second.x, second.y);
      }
      Element* const pair = to + column;
      *reinterpret_cast<uint32_t*>(pair) = pack<Element>(value.x, value.y);
      *reinterpret_cast<uint32_t*>(pair + 8) = pack<Element>(value.z, value.w);
    }
    if constexpr (kSoftmax) {
      if (params.lse == nullptr || lane != 0) return;
      if constexpr (!RowHooks::kState) lse2 = state.lse2();
      lse_place(params, tile, row) = lse2 * kLn2;
    }
  }

  CUTE_DEVICE static void write_empty_rows(Params const& params, Item const& item) {
    Rows const tile = Rows::of(item);
#pragma unroll 1
    for (int i = threadIdx.x - kFirst; i < item.num_rows * (kColumns / 2); i += kThreads) {
      int const row = i / (kColumns / 2), column = i % (kColumns / 2) * 2;
      RowPlace const at = place(tile, row);
      float2 const value = finish_output<RowHooks>(params, at, make_float2(0.f, 0.f), column);
      *reinterpret_cast<uint32_t*>(output_row(params, tile, row) + column) =
          pack<Element>(value.x, value.y);
      if (kSoftmax && params.lse != nullptr && column == 0) {
        float lse2 = neg_infinity();
        finish_state<RowHooks>(params, at, lse2);
        lse_place(params, tile, row) = lse2 * kLn2;
      }
    }
  }

  CUTE_DEVICE static RowPlace place(PlacedRows const& tile, int row) {
    int const packed = tile.row_begin + row;
    return {tile.batch, tile.kv_head * kGroup + packed % kGroup, tile.q_pos + packed / kGroup};
  }
};

}  // namespace cute_attn
