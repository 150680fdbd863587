// A unit of a row (two pieces of 8 bytes, four pairs) through a variant's hook, in registers.
//
// A unit is elements [4 u, 4 u + 4) and their partners where pairs are halves, else elements
// [8 u, 8 u + 8). In both cases the unit's pairs are 4 u to 4 u + 3.
#pragma once

#include <cute_attn/vector_places.hpp>

namespace cute_attn {

template <class Element>
CUTE_DEVICE void unpack_piece(uint2 piece, float* to) {
  float2 const low = unpack<Element>(piece.x), high = unpack<Element>(piece.y);
  to[0] = low.x;
  to[1] = low.y;
  to[2] = high.x;
  to[3] = high.y;
}

template <class Element>
CUTE_DEVICE uint2 pack_piece(float const* from) {
  return {pack<Element>(from[0], from[1]), pack<Element>(from[2], from[3])};
}

// One thread's unit of rows; it may be none, behind the last.
template <class Hook, int kColumns>
struct VectorUnit {
  static constexpr bool kAllPaired =
      Hook::kPaired == kColumns && (kColumns == 64 || kColumns == 128 || kColumns == 256);
  int unit;
  bool paired;

  CUTE_DEVICE explicit VectorUnit(int unit)
      : unit(unit), paired(kAllPaired || (Hook::kPaired > 0 && unit < Hook::kPaired / 8)) {}

  // The places of its two pieces in a row, in pieces.
  CUTE_DEVICE int piece(int second) const {
    if (Hook::kHalves && paired) return unit + second * (Hook::kPaired / 8);
    return 2 * unit + second;
  }

  // Where in the unit the elements of pair e are.
  CUTE_DEVICE static constexpr int first(int e) { return Hook::kHalves ? e : 2 * e; }
  CUTE_DEVICE static constexpr int second(int e) { return Hook::kHalves ? 4 + e : 2 * e + 1; }

  CUTE_DEVICE VectorPair pair(int e, float2 const (&turn)[4], float const (&x)[8],
                              float const* sums) const {
    return {4 * unit + e, x[first(e)], x[second(e)], turn[e].x, turn[e].y, sums};
  }

  template <class Params>
  CUTE_DEVICE void add_sums(Params const& params, VectorPlace at, float2 const (&turn)[4],
                            float const (&x)[8], float* sums) const {
    if constexpr (Hook::kPaired > 0) {
      CUTE_UNROLL
      for (int e = 0; e < 4; ++e) {
        if (paired) Hook::add_pair(params, at, pair(e, turn, x, nullptr), sums);
      }
    }
    if constexpr (Hook::kPaired < kColumns) {
      CUTE_UNROLL
      for (int i = 0; i < 8; ++i) {
        if (paired) continue;
        Hook::add_element(params, at, VectorElement{8 * unit + i, x[i], nullptr}, sums);
      }
    }
  }

  template <class Params>
  CUTE_DEVICE void apply(Params const& params, VectorPlace at, float2 const (&turn)[4],
                         float const* sums, float (&x)[8]) const {
    if constexpr (Hook::kPaired > 0) {
      CUTE_UNROLL
      for (int e = 0; e < 4; ++e) {
        if (!paired) continue;
        VectorPair const of = pair(e, turn, x, sums);
        x[first(e)] = Hook::first_of(params, at, of);
        x[second(e)] = Hook::second_of(params, at, of);
      }
    }
    if constexpr (Hook::kPaired < kColumns) {
      CUTE_UNROLL
      for (int i = 0; i < 8; ++i) {
        if (paired) continue;
        x[i] = Hook::element_of(params, at, VectorElement{8 * unit + i, x[i], sums});
      }
    }
  }
};

}  // namespace cute_attn
