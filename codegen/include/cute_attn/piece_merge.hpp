// Merge of a split tile by the block that finishes its last piece.
#pragma once

#include <cute_attn/merge_state.hpp>
#include <cute_attn/work.hpp>

namespace cute_attn {

// The slots of a tile whose pieces are all done; none if some are still missing.
struct PieceSlots {
  int first;
  int count;
};

// Counts a piece whose partial result all threads of the block have written. One of them calls,
// between two barriers: the partial results of others are visible behind the second one. The
// counter is zero again after the last piece.
// `of_tile`: what knows the slots of all pieces of the tile.
template <class Slots>
CUTE_DEVICE PieceSlots arrive_at(Slots const& of_tile, int32_t* arrivals) {
  int32_t* const arrived = arrivals + of_tile.first_slot;
  int32_t const num_slots = of_tile.num_slots;
  int32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(arrived)
               : "memory");
  bool const last = before == num_slots - 1;
  if (last) *arrived = 0;
  return {of_tile.first_slot, last ? num_slots : 0};
}
CUTE_DEVICE PieceSlots arrive_piece(int32_t const* plan, int32_t* arrivals, Item const& item) {
  return arrive_at(Plan{plan, static_cast<int>(gridDim.x)}.cut(item.cut), arrivals);
}

// How the threads of a warp share rows of kHeadDim float32 elements: as many threads per row as
// divide both the warp and the row.
template <int kHeadDim>
struct RowLanes {
  static constexpr int kRowVectors = kHeadDim / 4;
  static constexpr int kPowerOfTwo = kRowVectors & -kRowVectors;
  static constexpr int kLanes = kPowerOfTwo < 32 ? kPowerOfTwo : 32;  // threads that hold a row
  static constexpr int kVectors = kRowVectors / kLanes;               // float4 per thread
};

// Adds the partial results of kRows rows that are kRowStep apart, in slot order; kInFlight of each
// are read together. `out` points at this thread's first element of the first row in slot 0, `lse2`
// at the row's value there. State: MergeState, or MergeSum.
template <int kRows, int kRowStep, int kInFlight, int kSlotRows, int kHeadDim, class State>
CUTE_DEVICE void merge_rows(float const* out, float const* lse2, int count, State (&state)[kRows]) {
  constexpr int kLanes = RowLanes<kHeadDim>::kLanes, kVectors = RowLanes<kHeadDim>::kVectors;
  for (int slot = 0; slot < count; slot += kInFlight) {
    float piece_lse2[kRows][kInFlight];
    float4 piece_out[kRows][kInFlight][kVectors];
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      CUTE_UNROLL
      for (int i = 0; i < kInFlight; ++i) {
        bool const valid = slot + i < count;
        int64_t const row = int64_t{slot + i} * kSlotRows + r * kRowStep;
        // Past L1: other SMs have written these in this launch.
        piece_lse2[r][i] = valid ? __ldcg(lse2 + row) : neg_infinity();
        CUTE_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          float const* from = out + row * kHeadDim + 4 * v * kLanes;
          piece_out[r][i][v] = valid ? __ldcg(reinterpret_cast<float4 const*>(from))
                                     : make_float4(0.f, 0.f, 0.f, 0.f);
        }
      }
    }
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) state[r].add(piece_lse2[r], piece_out[r]);
  }
}

// The same for one row.
template <int kInFlight, int kSlotRows, int kHeadDim, template <int> class State = MergeState>
CUTE_DEVICE State<RowLanes<kHeadDim>::kVectors> merge_row(float const* out, float const* lse2,
                                                          int count) {
  State<RowLanes<kHeadDim>::kVectors> state[1];
  merge_rows<1, 0, kInFlight, kSlotRows, kHeadDim>(out, lse2, count, state);
  return state[0];
}

}  // namespace cute_attn
