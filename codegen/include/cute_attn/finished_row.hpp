// Rows that have seen all their keys, through the hooks of a variant.
//
// RowHooks, which a kernel with such hooks prints:
//   static constexpr bool kState, kOutput;
//   static float row_state(Params const&, float lse, RowPlace const&);         natural logarithms
//   static float output(Params const&, float out, RowPlace const&, int column);
#pragma once

#include <cute_attn/softmax.hpp>
#include <cute_attn/work.hpp>

namespace cute_attn {

// A query row, as hooks see it.
struct RowPlace {
  int b;
  int h;
  int q_idx;

  // The packed row `packed` of a request under a KV head.
  template <int kGroup>
  CUTE_DEVICE static RowPlace of(Request const& request, int kv_head, int packed) {
    return {request.batch(), kv_head * kGroup + packed % kGroup, request.q_pos + packed / kGroup};
  }
};

struct NoRowHooks {
  static constexpr bool kState = false, kOutput = false;
};

// Passes the log-sum-exp of a row (base 2) through the hook; returns what its normalised output is
// to be multiplied with. Without keys that is 0, whatever the hook makes of -inf.
template <class RowHooks, class Params>
CUTE_DEVICE float finish_state(Params const& params, RowPlace const& at, float& lse2) {
  constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
  if constexpr (RowHooks::kState) {
    float const before = lse2;
    lse2 = RowHooks::row_state(params, before * kLn2, at) * kLog2E;
    return before == neg_infinity() ? 0.f : exp2_approx(before - lse2);
  }
  return 1.f;
}

// Elements of a row from `column` on.
template <class RowHooks, class Params>
CUTE_DEVICE float2 finish_output(Params const& params, RowPlace const& at, float2 out, int column) {
  if constexpr (RowHooks::kOutput) {
    out.x = RowHooks::output(params, out.x, at, column);
    out.y = RowHooks::output(params, out.y, at, column + 1);
  }
  return out;
}
template <class RowHooks, class Params>
CUTE_DEVICE float4 finish_output(Params const& params, RowPlace const& at, float4 out, int column) {
  float2 const low = finish_output<RowHooks>(params, at, make_float2(out.x, out.y), column);
  float2 const high = finish_output<RowHooks>(params, at, make_float2(out.z, out.w), column + 2);
  return make_float4(low.x, low.y, high.x, high.y);
}

// One of the thread's two rows of an accumulator fragment (see softmax.hpp), first multiplied with
// `scale`.
template <class RowHooks, class Params, int N>
CUTE_DEVICE void finish_fragment(Params const& params, RowPlace const& at, int half, float scale,
                                 float (&out)[N]) {
  CUTE_UNROLL
  for (int j = 0; j < N; j += 4) {
    float* const pair = out + j + 2 * half;
    int const column = 2 * j + 2 * (threadIdx.x % 4);
    float2 const value = make_float2(pair[0] * scale, pair[1] * scale);
    float2 const finished = finish_output<RowHooks>(params, at, value, column);
    pair[0] = finished.x;
    pair[1] = finished.y;
  }
}

}  // namespace cute_attn
