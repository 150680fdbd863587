// From accumulator fragments to rows in global memory.
#pragma once

#include <cute/config.hpp>
#include <cute_attn/elements.hpp>

namespace cute_attn {

// Lane c of a quad holds word c of four 4-word rows; afterwards it holds all four words of row c.
CUTE_DEVICE void quad_transpose(uint32_t (&word)[4]) {
  bool const odd = threadIdx.x & 1, upper = threadIdx.x & 2;
  CUTE_UNROLL
  for (int i = 0; i < 4; i += 2) {
    uint32_t const got = __shfl_xor_sync(0xffffffffu, odd ? word[i] : word[i + 1], 1);
    (odd ? word[i] : word[i + 1]) = got;
  }
  CUTE_UNROLL
  for (int i = 0; i < 2; ++i) {
    uint32_t const got = __shfl_xor_sync(0xffffffffu, upper ? word[i] : word[i + 2], 2);
    (upper ? word[i] : word[i + 2]) = got;
  }
}

// Writes one of the thread's two rows of an accumulator fragment, scaled, as 16-bit elements:
// 16 bytes per lane. `row` is where the row begins (N * 2 columns); all lanes of the quad call.
template <class Element, int N>
CUTE_DEVICE void store_row(float const (&fragment)[N], int half, float scale, Element* row,
                           bool valid) {
  int const lane = threadIdx.x % 4;
  CUTE_UNROLL
  for (int j = 0; j < N / 4; j += 4) {  // four groups of eight columns; the last may be fewer
    uint32_t word[4] = {};
    CUTE_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (j + i >= N / 4) break;
      float const* pair = fragment + 4 * (j + i) + 2 * half;
      word[i] = pack<Element>(pair[0] * scale, pair[1] * scale);
    }
    quad_transpose(word);
    if (valid && j + lane < N / 4) {
      *reinterpret_cast<uint4*>(row + 8 * (j + lane)) =
          make_uint4(word[0], word[1], word[2], word[3]);
    }
  }
}

// The same row as float32, into a partial slot.
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
