// Rotary position embedding of single pairs, exact in the angle.
#pragma once

#include <cute/config.hpp>

namespace cute_attn {

// The angle position * step in half turns, where step is a fraction of a turn in units of 2^-64:
// whole turns drop out of the integer product, what remains is in [-1, 1).
CUTE_DEVICE float half_turns(int position, unsigned long long step) {
  long long const phase = static_cast<long long>(step * static_cast<long long>(position));
  return static_cast<int>(phase >> 32) * 0x1p-31f;
}

// Turns the pair by position * step; see half_turns.
CUTE_DEVICE float2 rotate(float2 pair, int position, unsigned long long step) {
  float sine, cosine;
  sincospif(half_turns(position, step), &sine, &cosine);
  return {pair.x * cosine - pair.y * sine, pair.x * sine + pair.y * cosine};
}

}  // namespace cute_attn
