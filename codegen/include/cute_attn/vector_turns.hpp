// How pairs of elements of a row are turned by its position: a table of angles per pair, made once
// in a launch, and turns of rows that follow each other, each from the one behind it.
#pragma once

#include <cute_attn/elements.hpp>
#include <cute_attn/rope.hpp>

namespace cute_attn {

// How a pair is turned: how far from a position to the next, in units of 2^-64 of a turn (a signed
// low word and the high word that goes with it), and the turn from a row of a thread to its next.
struct alignas(16) PairTurn {
  int low;
  int high;
  float2 stride;  // cosine, sine

  // The turn at a position. Of the product, the upper word is an angle in half turns: whole turns
  // have dropped out.
  CUTE_DEVICE float2 at(int position) const {
    constexpr float kRadians = 3.14159265358979f * 0x1p-31f;
    auto const whole = static_cast<unsigned>(high) * static_cast<unsigned>(position);
    auto const rest = static_cast<unsigned>(static_cast<long long>(low) * position >> 32);
    float const angle = static_cast<int>(whole + rest) * kRadians;
    return {__cosf(angle), __sinf(angle)};  // within [-pi, pi]: to 2^-21
  }
};

CUTE_DEVICE float2 turned(float2 x, float2 by) {
  return {x.x * by.x - x.y * by.y, x.y * by.x + x.x * by.y};
}

struct NoTurns {};

// The turns of a hook's pairs. Computed once in a launch.
template <class Hook>
struct Turns {
  static constexpr int kPairs = Hook::kPaired / 2;
  PairTurn pairs[kPairs];

  // Lanes of a row read neighbours.
  CUTE_DEVICE static int place(int unit, int e) { return e * (kPairs / 4) + unit; }
  CUTE_DEVICE PairTurn const& of(int unit, int e) const { return pairs[place(unit, e)]; }

  // rows: from a row of a thread to its next.
  template <class Params>
  CUTE_DEVICE void fill(Params const& params, int rows, int thread, int threads) {
    constexpr double kTurnsPerRadian = 0.15915494309189533577;
    for (int pair = thread; pair < kPairs; pair += threads) {
      double const turns = Hook::frequency_of(params, pair) * kTurnsPerRadian;
      long long const step = __double2ll_rn((turns - rint(turns)) * 0x1p64);
      PairTurn& to = pairs[place(pair / 4, pair % 4)];
      to.low = static_cast<int>(step);
      to.high = static_cast<int>((step - to.low) >> 32);
      float2 turn;
      sincospif(half_turns(rows, static_cast<unsigned long long>(step)), &turn.y, &turn.x);
      to.stride = turn;
    }
  }
};

// The turns of a unit's pairs in two rows of a thread, last row first, where its rows are at one
// distance from each other: each from the one behind it. (By 2 cos(d) t(n) - t(n - 1) half the
// instructions would do, but what is rounded grows with the square of the rows, to 2^-15, and shows
// in log-sum-exps of few keys.)
struct FallingTurns {
  float2 row[2][4];
  float2 back[4];  // from a row of the thread to the one before it

  template <class TurnsOf>
  CUTE_DEVICE void start(TurnsOf const& turns, int unit, int position) {
    CUTE_UNROLL
    for (int e = 0; e < 4; ++e) {
      PairTurn const pair = turns.of(unit, e);
      back[e] = {pair.stride.x, -pair.stride.y};
      row[0][e] = pair.at(position);
      row[1][e] = turned(row[0][e], back[e]);
    }
  }

  CUTE_DEVICE void advance() {
    CUTE_UNROLL
    for (int e = 0; e < 4; ++e) {
      row[0][e] = turned(row[1][e], back[e]);
      row[1][e] = turned(row[0][e], back[e]);
    }
  }
};

// The same of one row, in fewer registers: the way to the next is read again for each.
struct StridingTurns {
  float2 row[1][4];

  template <class TurnsOf>
  CUTE_DEVICE void start(TurnsOf const& turns, int unit, int position) {
    CUTE_UNROLL
    for (int e = 0; e < 4; ++e) row[0][e] = turns.of(unit, e).at(position);
  }

  template <class TurnsOf>
  CUTE_DEVICE void advance(TurnsOf const& turns, int unit) {
    CUTE_UNROLL
    for (int e = 0; e < 4; ++e) {
      float2 const stride = turns.of(unit, e).stride;
      row[0][e] = turned(row[0][e], {stride.x, -stride.y});
    }
  }
};

template <bool kFalling, bool kCompact>
struct RowTurns {};  // each row has its own
template <>
struct RowTurns<true, false> : FallingTurns {};
template <>
struct RowTurns<true, true> : StridingTurns {};

}  // namespace cute_attn
