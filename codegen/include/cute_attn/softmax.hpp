// Online softmax over accumulator fragments, in base 2.
//
// wgmma (m64nN) and mma.sync (m16n8) share one map from registers to scores: the thread of lane l
// holds, of two rows (l / 4 and l / 4 + 8), the columns 8 j + 2 (l % 4) + e, in register
// 4 j + 2 row + e. A fragment of N columns is float[N / 2].
#pragma once

#include <cute/config.hpp>

namespace cute_attn {

CUTE_DEVICE float neg_infinity() { return __int_as_float(0xff800000); }

CUTE_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// out tanh(x in), tanh to 1e-6 (tanh.approx.f32 has a relative error of 5e-4, which a soft cap of
// 30 makes visible in the log-sum-exp). What is the same for all scores, in and out, is multiplied
// by the constants once.
CUTE_DEVICE float scaled_tanh(float x, float in, float out) {
  constexpr float kTwoLog2E = 2.885390081777927f;
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;"
      : "=f"(reciprocal)
      : "f"(exp2_approx(x * (in * kTwoLog2E)) + 1.f));
  return out + -2.f * out * reciprocal;
}
CUTE_DEVICE float fast_tanh(float x) { return scaled_tanh(x, 1.f, 1.f); }

// Reductions over the four lanes that share a row.
CUTE_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
CUTE_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Running maximum and sum of this thread's two rows.
struct OnlineSoftmax {
  float row_max[2];  // in units of the scores, over all lanes of the row
  float row_sum[2];  // over this thread's columns only, until finish()
  float scale_log2;  // score -> base-2 exponent

  CUTE_DEVICE explicit OnlineSoftmax(float scale)
      : row_max{neg_infinity(), neg_infinity()}, row_sum{0.f, 0.f}, scale_log2(scale) {}

  // Scores become probabilities relative to the new maximum; rescale[row] is what the earlier
  // output of the row must be multiplied with. kMayBeEmpty: a row may have no visible key so far
  // (maximum -inf), which must not turn into -inf - -inf.
  template <bool kMayBeEmpty, int N>
  CUTE_DEVICE void step(float (&score)[N], float (&rescale)[2]) {
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) {
      float top = row_max[row];
      CUTE_UNROLL
      for (int j = 0; j < N; j += 4) {
        top = fmaxf(top, fmaxf(score[j + 2 * row], score[j + 2 * row + 1]));
      }
      top = quad_max(top);
      float const base = kMayBeEmpty && top == neg_infinity() ? 0.f : top * scale_log2;
      rescale[row] = exp2_approx(row_max[row] * scale_log2 - base);
      row_max[row] = top;
      float sum = 0.f;
      CUTE_UNROLL
      for (int j = 0; j < N; j += 4) {
        CUTE_UNROLL
        for (int e = 0; e < 2; ++e) {
          float& p = score[j + 2 * row + e];
          p = exp2_approx(p * scale_log2 - base);
          sum += p;
        }
      }
      row_sum[row] = row_sum[row] * rescale[row] + sum;
    }
  }

  // Sums over the lanes of a row. Afterwards inverse[row] normalises the output (0 for a row that
  // saw no key) and lse2[row] is log2 of the sum of the exponentials (-inf for such a row).
  CUTE_DEVICE void finish(float (&inverse)[2], float (&lse2)[2]) {
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) {
      float const sum = quad_sum(row_sum[row]);
      bool const empty = sum == 0.f;
      inverse[row] = empty ? 0.f : 1.f / sum;
      lse2[row] = empty ? neg_infinity() : row_max[row] * scale_log2 + __log2f(sum);
    }
  }
};

// In the place of a softmax: scores are the weights of the values, and nothing normalises them. The
// same interface, with nothing to keep.
struct ScoreWeights {
  float scale;  // score -> weight

  CUTE_DEVICE explicit ScoreWeights(float scale) : scale(scale) {}

  template <bool kMayBeEmpty, int N>
  CUTE_DEVICE void step(float (&score)[N], float (&rescale)[2]) const {
    CUTE_UNROLL
    for (int j = 0; j < N; ++j) score[j] *= scale;
    rescale[0] = rescale[1] = 1.f;
  }

  CUTE_DEVICE void finish(float (&inverse)[2], float (&lse2)[2]) const {
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) {
      inverse[row] = 1.f;
      lse2[row] = 0.f;
    }
  }
};

// In an accumulator fragment, register i belongs to row (i / 2) % 2 of the thread's two rows.
template <int N>
CUTE_DEVICE void scale_rows(float (&fragment)[N], float const (&factor)[2]) {
  CUTE_UNROLL
  for (int i = 0; i < N; ++i) fragment[i] *= factor[(i / 2) % 2];
}

}  // namespace cute_attn
