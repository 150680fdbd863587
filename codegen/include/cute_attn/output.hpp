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

// Pieces first .. first + 3 of one of the thread's two rows of an accumulator fragment, scaled, as
// 16-bit elements: eight columns each, of which lane c of the quad gets number first + c.
template <class Element, int N>
CUTE_DEVICE void take_pieces(float const (&fragment)[N], int half, float scale, int first,
                             uint32_t (&word)[4]) {
  CUTE_UNROLL
  for (int i = 0; i < 4; ++i) {
    bool const present = first + i < N / 4;  // the last pieces may be fewer
    float const* pair = fragment + (present ? 4 * (first + i) + 2 * half : 0);
    word[i] = present ? pack<Element>(pair[0] * scale, pair[1] * scale) : 0;
  }
  quad_transpose(word);
}

CUTE_DEVICE void store_piece(void* to, uint32_t const (&word)[4]) {
  *static_cast<uint4*>(to) = make_uint4(word[0], word[1], word[2], word[3]);
}

// Writes one of the thread's two rows of an accumulator fragment: 16 bytes per lane, 64 per quad.
// `row` is where the row begins (N * 2 columns); all lanes of the quad call.
template <class Element, int N>
CUTE_DEVICE void store_row(float const (&fragment)[N], int half, float scale, Element* row,
                           bool valid) {
  int const lane = threadIdx.x % 4;
  CUTE_UNROLL
  for (int piece = 0; piece < N / 4; piece += 4) {
    uint32_t word[4];
    take_pieces<Element>(fragment, half, scale, piece, word);
    if (valid && piece + lane < N / 4) store_piece(row + 8 * (piece + lane), word);
  }
}

// The same, 128 bytes of a row by eight lanes: the two quads of rows 2 i and 2 i + 1 exchange
// halves of their lines. All lanes of the warp call.
template <class Element, int N>
CUTE_DEVICE void store_row_by_lines(float const (&fragment)[N], int half, float scale, Element* row,
                                    bool valid) {
  static_assert(N % 32 == 0);
  bool const second = threadIdx.x & 4;
  auto const neighbour = __shfl_xor_sync(0xffffffffu, reinterpret_cast<uint64_t>(row), 4);
  bool const neighbour_valid = __shfl_xor_sync(0xffffffffu, valid, 4);
  Element* const rows[2] = {second ? reinterpret_cast<Element*>(neighbour) : row,
                            second ? row : reinterpret_cast<Element*>(neighbour)};
  bool const valid_rows[2] = {second ? neighbour_valid : valid, second ? valid : neighbour_valid};
  CUTE_UNROLL
  for (int piece = 0; piece < N / 4; piece += 8) {
    uint32_t word[2][4];  // halves of this row's line; then of the first row's and the second row's
    take_pieces<Element>(fragment, half, scale, piece, word[0]);
    take_pieces<Element>(fragment, half, scale, piece + 4, word[1]);
    CUTE_UNROLL
    for (int i = 0; i < 4; ++i) {
      uint32_t const got = __shfl_xor_sync(0xffffffffu, second ? word[0][i] : word[1][i], 4);
      (second ? word[0][i] : word[1][i]) = got;
    }
    int const column = 8 * (piece + threadIdx.x % 8);
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      if (valid_rows[r]) store_piece(rows[r] + column, word[r]);
    }
  }
}

// The same row as float32, into a partial slot, in the order in which lanes hold it: 16 bytes per
// lane, 64 per quad. What lies at float4 number i of the slot's row are the columns
// partial_column(i) and + 1, and those eight behind. kWhole: in one store, for which four registers
// in a row must be free.
CUTE_DEVICE constexpr int partial_column(int i) { return i / 4 * 16 + i % 4 * 2; }

template <bool kWhole, int N>
CUTE_DEVICE void store_partial_row(float const (&fragment)[N], int half, float scale, float* row) {
  static_assert(N % 8 == 0);
  CUTE_UNROLL
  for (int j = 0; j < N / 8; ++j) {
    float const* pair = fragment + 8 * j + 2 * half;
    float* const to = row + 16 * j + 4 * (threadIdx.x % 4);
    float2 const first = make_float2(pair[0] * scale, pair[1] * scale);
    float2 const second = make_float2(pair[4] * scale, pair[5] * scale);
    if constexpr (kWhole) {
      *reinterpret_cast<float4*>(to) = make_float4(first.x, first.y, second.x, second.y);
    } else {
      reinterpret_cast<float2*>(to)[0] = first;
      reinterpret_cast<float2*>(to)[1] = second;
    }
  }
}

}  // namespace cute_attn
