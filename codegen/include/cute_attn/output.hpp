// From accumulator fragments to rows in global memory.
#pragma once

#include <cute/config.hpp>

namespace cute_attn {

// Writes one of the thread's two rows of an accumulator fragment, scaled, as float32 (2 N columns).
// `row` is where the row begins.
template <int N>
CUTE_DEVICE void store_partial_row(float const (&fragment)[N], int half, float scale, float* row) {
  int const lane = threadIdx.x % 4;
  CUTE_UNROLL
  for (int j = 0; j < N / 4; ++j) {
    float const* pair = fragment + 4 * j + 2 * half;
    *reinterpret_cast<float2*>(row + 8 * j + 2 * lane) =
        make_float2(pair[0] * scale, pair[1] * scale);
  }
}

}  // namespace cute_attn
