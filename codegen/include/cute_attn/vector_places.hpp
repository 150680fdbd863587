// What a variant's hook on rows of queries, keys or values is like, and what it is told.
#pragma once

#include <cute_attn/elements.hpp>

namespace cute_attn {

// What a hook knows of a row.
struct VectorPlace {
  int b;
  int h;
  int pos;
};

// A pair of its elements, and how it is turned; an element in no pair. Both with the row's sums.
struct VectorPair {
  int pair;
  float first, second, cosine, sine;
  float const* sums;
};
struct VectorElement {
  int index;
  float x;
  float const* sums;
};

// What a hook is like. Its first kPaired_ elements are in pairs, i and i + kPaired_ / 2 (kHalves_)
// or 2 i and 2 i + 1; they are turned; positions of rows that follow each other do so too; there
// are kSums_ sums over the row.
template <int kPaired_, bool kHalves_, bool kTurns_, bool kFollows_, int kSums_>
struct VectorTraits {
  static constexpr int kPaired = kPaired_;
  static constexpr bool kHalves = kHalves_;
  static constexpr bool kTurns = kTurns_;
  static constexpr bool kFollows = kFollows_;
  static constexpr int kSums = kSums_;
  static constexpr bool kPairPositions = false;  // else pair_position_of(params, at, pair)

  template <class Params>
  CUTE_DEVICE static int position_of(Params const&, VectorPlace at) {
    return at.pos;
  }
};

// The position that a pair of a row is turned by.
template <class Hook, class Params>
CUTE_DEVICE int turn_position(Params const& params, VectorPlace at, int pair) {
  if constexpr (Hook::kPairPositions) {
    return Hook::pair_position_of(params, at, pair);
  } else {
    return Hook::position_of(params, at);
  }
}

// Rows of one KV head from key `first` on.
struct KeyPlaces {
  static constexpr bool kConsecutive = true;  // positions
  int b;
  int h;
  int first;  // its position
  CUTE_DEVICE VectorPlace operator()(int row) const { return {b, h, first + row}; }
};

// Packed query rows from row `first` of a request and KV head on.
template <int kGroup>
struct QueryPlaces {
  static constexpr bool kConsecutive = false;
  int b;
  int kv_head;
  int first;
  int q_pos;
  CUTE_DEVICE VectorPlace operator()(int row) const {
    int const packed = first + row;
    return {b, kv_head * kGroup + packed % kGroup, q_pos + packed / kGroup};
  }
};

}  // namespace cute_attn
