// Rows of a swizzled shared-memory tile through a variant's hook, in place.
//
// The generated hook is made of functions of a pair of elements, or of an element in no pair. A
// thread takes of a row two pieces of 16 bytes, a *unit*: elements [8 u, 8 u + 8) and their
// partners where pairs are halves, else elements [16 u, 16 u + 16). In both cases the unit's pairs
// are 8 u to 8 u + 7. Threads keep their unit from row to row.
#pragma once

#include <cute_attn/elements.hpp>
#include <cute_attn/opaque.hpp>
#include <cute_attn/rope.hpp>

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
  int b;
  int h;
  int first;  // its position
  CUTE_DEVICE VectorPlace operator()(int row) const { return {b, h, first + row}; }
};

// Packed query rows from row `first` of a request and KV head on.
template <int kGroup>
struct QueryPlaces {
  int b;
  int kv_head;
  int first;
  int q_pos;
  CUTE_DEVICE VectorPlace operator()(int row) const {
    int const packed = first + row;
    return {b, kv_head * kGroup + packed % kGroup, q_pos + packed / kGroup};
  }
};

// A tile of kRows rows in chunks of 64 columns; see codegen.smem_tile.SmemTile.
template <int kRows>
struct Chunks {
  static constexpr int kGroupBytes = 1024;         // from a group of eight rows to the next
  static constexpr int kChunkBytes = kRows * 128;  // from a chunk of 64 columns to the next
};

// How kThreads threads share rows of kColumns elements.
template <int kColumns, int kThreads>
struct VectorShare {
  static constexpr int kUnits = kColumns / 16;
  static constexpr int kLanes = kUnits <= 4 ? 4 : kUnits <= 8 ? 8 : 16;  // of a row; some idle
  static constexpr int kRows = kThreads / kLanes;                        // at a time
  static_assert(kColumns % 16 == 0 && kUnits <= kLanes && kRows >= 1);
};

struct NoTurns {};

// The turns of a hook's pairs: how far from a position to the next, to 2^-64 of a turn, and cosine
// and sine of the turn from a row of a thread to its next. Computed once in a launch.
template <class Hook>
struct Turns {
  static constexpr int kPairs = Hook::kPaired / 2;
  unsigned long long step[kPairs];
  float2 stride[kPairs];

  // Lanes of a row read neighbours.
  CUTE_DEVICE static int place(int unit, int e) { return e * (kPairs / 8) + unit; }

  // rows: from a row of a thread to its next.
  template <class Params>
  CUTE_DEVICE void fill(Params const& params, int rows, int thread, int threads) {
    constexpr double kTurnsPerRadian = 0.15915494309189533577;
    for (int pair = thread; pair < kPairs; pair += threads) {
      double const turns = Hook::frequency_of(params, pair) * kTurnsPerRadian;
      long long const fraction = __double2ll_rn((turns - rint(turns)) * 0x1p64);
      int const at = place(pair / 8, pair % 8);
      step[at] = static_cast<unsigned long long>(fraction);
      float2 turn;
      sincospif(half_turns(rows, step[at]), &turn.y, &turn.x);
      stride[at] = turn;
    }
  }

  // Cosine and sine of a unit's pairs.
  template <class Params>
  CUTE_DEVICE void at(Params const& params, VectorPlace row, int unit, float2 (&turn)[8]) const {
    constexpr float kPi = 3.14159265358979f;
    CUTE_UNROLL
    for (int e = 0; e < 8; ++e) {
      int const position = turn_position<Hook>(params, row, 8 * unit + e);
      float const angle = half_turns(position, step[place(unit, e)]) * kPi;
      turn[e] = {__cosf(angle), __sinf(angle)};  // within [-pi, pi]: to 2^-21
    }
  }
};

template <class Element>
CUTE_DEVICE void unpack_piece(uint4 piece, float* to) {
  uint32_t const words[4] = {piece.x, piece.y, piece.z, piece.w};
  CUTE_UNROLL
  for (int i = 0; i < 4; ++i) {
    float2 const two = unpack<Element>(words[i]);
    to[2 * i] = two.x;
    to[2 * i + 1] = two.y;
  }
}

template <class Element>
CUTE_DEVICE uint4 pack_piece(float const* from) {
  return {pack<Element>(from[0], from[1]), pack<Element>(from[2], from[3]),
          pack<Element>(from[4], from[5]), pack<Element>(from[6], from[7])};
}

// One thread's unit of rows.
template <class Hook, int kColumns>
struct VectorUnit {
  int unit;
  bool paired;

  CUTE_DEVICE explicit VectorUnit(int unit)
      : unit(unit),
        paired(Hook::kPaired == kColumns || (Hook::kPaired > 0 && unit < Hook::kPaired / 16)) {}

  // The places of its two pieces in a row, in pieces.
  CUTE_DEVICE int piece(int second) const {
    if (Hook::kHalves && paired) return unit + second * (Hook::kPaired / 16);
    return 2 * unit + second;
  }

  // Where in the unit the elements of pair e are.
  CUTE_DEVICE static constexpr int first(int e) { return Hook::kHalves ? e : 2 * e; }
  CUTE_DEVICE static constexpr int second(int e) { return Hook::kHalves ? 8 + e : 2 * e + 1; }

  CUTE_DEVICE VectorPair pair(int e, float2 const (&turn)[8], float const (&x)[16],
                              float const* sums) const {
    return {8 * unit + e, x[first(e)], x[second(e)], turn[e].x, turn[e].y, sums};
  }

  template <class Params>
  CUTE_DEVICE void add_sums(Params const& params, VectorPlace at, float2 const (&turn)[8],
                            float const (&x)[16], float* sums) const {
    if constexpr (Hook::kPaired > 0) {
      CUTE_UNROLL
      for (int e = 0; e < 8 && paired; ++e) {
        Hook::add_pair(params, at, pair(e, turn, x, nullptr), sums);
      }
    }
    if constexpr (Hook::kPaired < kColumns) {
      CUTE_UNROLL
      for (int i = 0; i < 16 && !paired; ++i) {
        Hook::add_element(params, at, VectorElement{16 * unit + i, x[i], nullptr}, sums);
      }
    }
  }

  template <class Params>
  CUTE_DEVICE void apply(Params const& params, VectorPlace at, float2 const (&turn)[8],
                         float const* sums, float (&x)[16]) const {
    if constexpr (Hook::kPaired > 0) {
      CUTE_UNROLL
      for (int e = 0; e < 8 && paired; ++e) {
        VectorPair const of = pair(e, turn, x, sums);
        x[first(e)] = Hook::first_of(params, at, of);
        x[second(e)] = Hook::second_of(params, at, of);
      }
    }
    if constexpr (Hook::kPaired < kColumns) {
      CUTE_UNROLL
      for (int i = 0; i < 16 && !paired; ++i) {
        x[i] = Hook::element_of(params, at, VectorElement{16 * unit + i, x[i], sums});
      }
    }
  }
};

// Passes rows [0, rows) of a tile of kColumns columns through a hook, by kThreads threads, whole
// warps, of which this is `thread`. No thread may still write the tile, and none read it before all
// are done: that is the caller's to see to.
//
// place(row): the row's VectorPlace. kConsecutive: positions of rows that follow each other do so
// too; then a row's turns come from those of the thread's row before, by a complex multiplication.
// kCompact: what is the same for all rows is read again, for registers that are scarce.
template <class Hook, class Layout, int kColumns, int kThreads, bool kConsecutive,
          bool kCompact = false, class Params, class Element, class TurnsOf, class Place>
CUTE_DEVICE void transform_rows(Params const& params, Element* tile, int rows, int thread,
                                TurnsOf const& turns, Place place) {
  using Share = VectorShare<kColumns, kThreads>;
  constexpr bool kByStrides = kConsecutive && Hook::kTurns && Hook::kFollows;
  thread = static_cast<int>(opaque(static_cast<unsigned>(thread)));  // kept for no later call
  VectorUnit<Hook, kColumns> own(thread % Share::kLanes);
  int const first_row = thread / Share::kLanes;
  bool const has_unit = Share::kUnits == Share::kLanes || own.unit < Share::kUnits;
  float2 turn[8], stride[8];
  if constexpr (kByStrides) {
    if (own.paired) {
      turns.at(params, place(first_row), own.unit, turn);
      CUTE_UNROLL
      for (int e = 0; e < 8 && !kCompact; ++e) stride[e] = turns.stride[turns.place(own.unit, e)];
    }
  }
#pragma unroll 1
  for (int begin = 0; begin < rows; begin += Share::kRows) {
    int const row = begin + first_row;
    if constexpr (kCompact) own.unit = static_cast<int>(opaque(static_cast<unsigned>(own.unit)));
    bool const valid = has_unit && row < rows;
    VectorPlace const at = place(row);
    uint4* piece[2];
    CUTE_UNROLL
    for (int i = 0; i < 2; ++i) {
      int const number = own.piece(i);
      int const bytes = number / 8 * Layout::kChunkBytes + row / 8 * Layout::kGroupBytes +
                        row % 8 * 128 + ((number ^ row) & 7) * 16;
      piece[i] = reinterpret_cast<uint4*>(reinterpret_cast<char*>(tile) + bytes);
    }
    float x[16];
    if (valid) {
      unpack_piece<Element>(*piece[0], x);
      unpack_piece<Element>(*piece[1], x + 8);
      if constexpr (Hook::kTurns && !kByStrides) {
        if (own.paired) {
          turns.at(params, at, own.unit, turn);
        }
      }
    }
    float sums[Hook::kSums > 0 ? Hook::kSums : 1] = {};
    if constexpr (Hook::kSums > 0) {
      if (valid) own.add_sums(params, at, turn, x, sums);
      CUTE_UNROLL
      for (int k = 0; k < Hook::kSums; ++k) {
        CUTE_UNROLL
        for (int lane = 1; lane < Share::kLanes; lane *= 2) {
          sums[k] += __shfl_xor_sync(0xffffffffu, sums[k], lane);
        }
      }
    }
    if (valid) {
      own.apply(params, at, turn, sums, x);
      *piece[0] = pack_piece<Element>(x);
      *piece[1] = pack_piece<Element>(x + 8);
    }
    if constexpr (kByStrides) {
      CUTE_UNROLL
      for (int e = 0; e < 8; ++e) {
        float2 const now = turn[e];
        float2 const by = kCompact ? turns.stride[turns.place(own.unit, e)] : stride[e];
        turn[e] = {now.x * by.x - now.y * by.y, now.y * by.x + now.x * by.y};
      }
    }
  }
}

}  // namespace cute_attn
