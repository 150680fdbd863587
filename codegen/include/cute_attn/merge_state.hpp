// The merge of partial attention results by their log-sum-exp, in registers.
//
// A state is (out, lse): an output that is normalised over some keys, and the log-sum-exp of their
// scores in base 2. States of disjoint keys merge to the state of all of them:
//   lse = log2(sum 2^lse_i),  out = sum 2^(lse_i - lse) out_i.
// The state of no keys is (0, -inf); it changes nothing and never yields -inf - -inf.
// MergeSum has the same interface, but for lse2().
#pragma once

#include <cute/config.hpp>
#include <cute_attn/softmax.hpp>

namespace cute_attn {

CUTE_DEVICE void fma4(float4& sum, float factor, float4 value) {
  sum.x += factor * value.x;
  sum.y += factor * value.y;
  sum.z += factor * value.z;
  sum.w += factor * value.w;
}

CUTE_DEVICE float4 scaled4(float4 value, float factor) {
  return {factor * value.x, factor * value.y, factor * value.z, factor * value.w};
}

// A running merge of one row; a thread holds kVectors x 4 of the row's elements.
template <int kVectors>
struct MergeState {
  float4 out[kVectors];  // relative to 2^top, not normalised
  float top;             // largest lse so far
  float sum;             // sum of 2^(lse - top)

  CUTE_DEVICE MergeState() : top(neg_infinity()), sum(0.f) {
    CUTE_UNROLL
    for (int v = 0; v < kVectors; ++v) out[v] = {0.f, 0.f, 0.f, 0.f};
  }

  // Adds kCount states in index order. Their loads were issued together, so that one wait serves
  // all of them.
  template <int kCount>
  CUTE_DEVICE void add(float const (&lse2)[kCount], float4 const (&value)[kCount][kVectors]) {
    float new_top = top;
    CUTE_UNROLL
    for (int i = 0; i < kCount; ++i) new_top = fmaxf(new_top, lse2[i]);
    float const base = new_top == neg_infinity() ? 0.f : new_top;
    float const rescale = exp2_approx(top - base);
    top = new_top;
    sum *= rescale;
    CUTE_UNROLL
    for (int v = 0; v < kVectors; ++v) out[v] = scaled4(out[v], rescale);
    CUTE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      float const factor = exp2_approx(lse2[i] - base);
      sum += factor;
      CUTE_UNROLL
      for (int v = 0; v < kVectors; ++v) fma4(out[v], factor, value[i][v]);
    }
  }

  // Elements 4 v .. 4 v + 3 of this thread, normalised; 0 for a row that saw no key.
  CUTE_DEVICE float4 normalised(int v) const {
    return scaled4(out[v], sum == 0.f ? 0.f : 1.f / sum);
  }

  // log2 of the sum of the exponentials; -inf for a row that saw no key.
  CUTE_DEVICE float lse2() const { return sum == 0.f ? neg_infinity() : top + __log2f(sum); }
};

// The same of rows without softmax: outputs that nothing has normalised add.
template <int kVectors>
struct MergeSum {
  float4 out[kVectors];

  CUTE_DEVICE MergeSum() {
    CUTE_UNROLL
    for (int v = 0; v < kVectors; ++v) out[v] = {0.f, 0.f, 0.f, 0.f};
  }

  template <int kCount>
  CUTE_DEVICE void add(float const (&)[kCount], float4 const (&value)[kCount][kVectors]) {
    CUTE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      CUTE_UNROLL
      for (int v = 0; v < kVectors; ++v) fma4(out[v], 1.f, value[i][v]);
    }
  }

  CUTE_DEVICE float4 normalised(int v) const { return out[v]; }
};

}  // namespace cute_attn
