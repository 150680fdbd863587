// Rotary position embedding of single pairs, exact in the angle.
#pragma once

#include <cute/config.hpp>

namespace cute_attn {

// Turns the pair by position * step, where step is a fraction of a turn in units of 2^-64: whole
// turns drop out of the integer product, what remains is in [-1/2, 1/2) turns.
CUTE_DEVICE float2 rotate(float2 pair, int position, unsigned long long step) {
  long long const phase = static_cast<long long>(step * static_cast<long long>(position));
  float const half_turns = static_cast<int>(phase >> 32) * 0x1p-31f;
  float sine, cosine;
  sincospif(half_turns, &sine, &cosine);
  return {pair.x * cosine - pair.y * sine, pair.x * sine + pair.y * cosine};
}

}  // namespace cute_attn
