// The end of an item: its rows go to the output, or to a partial slot if other items share the
// tile; the block that finishes the last piece of a tile merges them. Packed row r of a tile is
// token r / group, head r % group of the KV head's group.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cute_attn/elements.hpp>
#include <cute_attn/hopper/ring.hpp>
#include <cute_attn/hopper/wgmma.hpp>
#include <cute_attn/output.hpp>
#include <cute_attn/piece_merge.hpp>
#include <cute_attn/work.hpp>

namespace cute_attn {

// Consumer warpgroups of kWarps warps in all, 64 rows each, write (kTileQ, kColumns) tiles.
template <class Params, class Element, int kTileQ, int kColumns, int kGroup, int kWarps>
struct ItemOutput {
  static constexpr int kThreads = 32 * kWarps;
  static constexpr float kLn2 = 0.6931471805599453f;

  // Where a packed row of the item begins in the output, and its place in lse.
  CUTE_DEVICE static Element* output_row(Params const& params, Item const& item, int row) {
    int const packed = item.row_begin + row;
    int64_t const token = item.request.q_start + packed / kGroup;
    int64_t const head = item.kv_head * kGroup + packed % kGroup;
    return params.out + token * params.out_token_stride + head * params.out_head_stride;
  }
  CUTE_DEVICE static float& lse_place(Params const& params, Item const& item, int row) {
    int const packed = item.row_begin + row;
    int64_t const token = item.request.q_start + packed / kGroup;
    return params
        .lse[token * (params.num_kv_heads * kGroup) + item.kv_head * kGroup + packed % kGroup];
  }

  // Writes the item's rows: the output, or a partial slot if other items share the tile. out: this
  // thread's part of (64, kColumns).
  CUTE_DEVICE static void write(Params const& params, Item const& item, int consumer,
                                float const (&out)[kColumns / 2], float const (&inverse)[2],
                                float const (&lse2)[2]) {
    CUTE_UNROLL
    for (int half = 0; half < 2; ++half) {
      int const row = thread_row(consumer) + 8 * half;
      bool const valid = row < item.num_rows;
      if (item.slot >= 0) {
        if (!valid) continue;
        int64_t const slot_row = int64_t(item.slot) * kTileQ + row;
        store_partial_row(out, half, inverse[half], params.partial_out + slot_row * kColumns);
        if (threadIdx.x % 4 == 0) params.partial_lse[slot_row] = lse2[half];
      } else {
        store_row(out, half, inverse[half], output_row(params, item, row), valid);
        if (params.lse != nullptr && valid && threadIdx.x % 4 == 0) {
          lse_place(params, item, row) = lse2[half] * kLn2;
        }
      }
    }
  }

  // An item without keys: output 0, lse -inf.
  CUTE_DEVICE static void write_empty(Params const& params, Item const& item, int consumer) {
    constexpr int kPieces = kColumns / 8;  // 16 bytes each
#pragma unroll 1
    for (int i = consumer * 128 + threadIdx.x % 128; i < item.num_rows * kPieces; i += kThreads) {
      int const row = i / kPieces, piece = i % kPieces;
      *reinterpret_cast<uint4*>(output_row(params, item, row) + 8 * piece) = make_uint4(0, 0, 0, 0);
      if (params.lse != nullptr && piece == 0) lse_place(params, item, row) = neg_infinity();
    }
  }

  // All consumers, after the partial result of a piece: those who finished the tile's last piece
  // merge all of them, in slot order, and write the output. shared_pieces is in shared memory.
  CUTE_DEVICE static void finish_piece(Params const& params, Item const& item, int consumer,
                                       PieceSlots& shared_pieces) {
    using Lanes = RowLanes<kColumns>;
    // Rows and pieces that are read together: what the registers hold beside the next item's
    // scores.
    constexpr int kRows = kWarps == 8 ? 2 : 1;
    constexpr int kReads = 4 * kRows;
    constexpr int kInFlight = Lanes::kVectors < kReads ? kReads / Lanes::kVectors : 1;
    int const thread = consumer * 128 + threadIdx.x % 128;
    __threadfence();  // our partial result before our arrival
    cutlass::arch::NamedBarrier::sync(kThreads, kPieceDone);
    if (thread == 0) shared_pieces = arrive_piece(params.plan, params.arrivals, item);
    cutlass::arch::NamedBarrier::sync(kThreads, kPieceDone);
    PieceSlots const pieces = shared_pieces;
    if (pieces.count == 0) return;

    int const lane = thread % Lanes::kLanes;
    constexpr int kRowStep = kThreads / Lanes::kLanes;
    static_assert(kTileQ % (kRows * kRowStep) == 0);
#pragma unroll 1
    for (int row = thread / Lanes::kLanes; row < item.num_rows; row += kRows * kRowStep) {
      int64_t const first = int64_t(pieces.first) * kTileQ + row;
      MergeState<Lanes::kVectors> state[kRows];
      merge_rows<kRows, kRowStep, kInFlight, kTileQ, kColumns>(
          params.partial_out + first * kColumns + 4 * lane, params.partial_lse + first,
          pieces.count, state);
      CUTE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        int const own = row + r * kRowStep;
        if (own >= item.num_rows) continue;
        Element* const to = output_row(params, item, own) + 4 * lane;
        CUTE_UNROLL
        for (int v = 0; v < Lanes::kVectors; ++v) {
          float4 const value = state[r].normalised(v);
          *reinterpret_cast<uint2*>(to + 4 * v * Lanes::kLanes) =
              make_uint2(pack<Element>(value.x, value.y), pack<Element>(value.z, value.w));
        }
        if (params.lse != nullptr && lane == 0) {
          lse_place(params, item, own) = state[r].lse2() * kLn2;
        }
      }
    }
  }
};

}  // namespace cute_attn
