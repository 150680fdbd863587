// Online softmax over score fragments whose rows are keys (see key_gemm.hpp).
//
// Probabilities are relative to a reference exponent of their query row, which rises to the row's
// maximum only when a probability comes out too large. A step has no maximum, no shuffles and no
// rescale of the output as long as no score stands out.
#pragma once

#include <cute_attn/softmax.hpp>

namespace cute_attn::ampere {

// The largest value of the lanes that share a query row.
CUTE_DEVICE float keys_max(float x) {
  CUTE_UNROLL
  for (int mask = 4; mask < 32; mask *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, mask));
  return x;
}
CUTE_DEVICE float keys_sum(float x) {
  CUTE_UNROLL
  for (int mask = 4; mask < 32; mask *= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
  return x;
}

// Two query rows a thread and tile of eight; all indices are [tile][row].
template <int kTiles>
struct KeySoftmax {
  // Base-2 exponents, over all lanes of the row. A row that has seen no key so far has one below
  // all scores, but finite: hidden scores (-inf) stay -inf less it.
  float reference[kTiles][2];
  float row_sum[kTiles][2];  // over this thread's keys only
  float scale_log2;          // score -> base-2 exponent

  CUTE_DEVICE explicit KeySoftmax(float scale) : scale_log2(scale) {
    CUTE_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      reference[t][0] = reference[t][1] = kNoKey;
      row_sum[t][0] = row_sum[t][1] = 0.f;
    }
  }

  // The probabilities of 16 keys; `out` is rescaled if a reference rises.
  template <int kColumns>
  CUTE_DEVICE void step(float const (&score)[kTiles][4], float (&p)[kTiles][4],
                        float (&out)[kTiles][kColumns][4]) {
    if (__any_sync(0xffffffffu, !(exponentiate(score, p) <= kLargest))) {
      follow(score, out);
      exponentiate(score, p);
    }
    CUTE_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      CUTE_UNROLL
      for (int row = 0; row < 2; ++row) row_sum[t][row] += p[t][row] + p[t][2 + row];
    }
  }

 private:
  static constexpr float kNoKey = -3.4028235e38f;
  static constexpr float kLargest = 32768.f;  // fp16 ends at 65504

  // Returns the largest of this thread's probabilities.
  CUTE_DEVICE float exponentiate(float const (&score)[kTiles][4], float (&p)[kTiles][4]) const {
    float largest = 0.f;
    CUTE_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      CUTE_UNROLL
      for (int i = 0; i < 4; ++i) {
        p[t][i] = exp2_approx(score[t][i] * scale_log2 - reference[t][i % 2]);
        largest = fmaxf(largest, p[t][i]);
      }
    }
    return largest;
  }

  // Each row for itself, whatever the others hold: so its bits do not depend on them.
  template <int kColumns>
  CUTE_DEVICE void follow(float const (&score)[kTiles][4], float (&out)[kTiles][kColumns][4]) {
    CUTE_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      CUTE_UNROLL
      for (int row = 0; row < 2; ++row) {
        float const top = keys_max(fmaxf(score[t][row], score[t][2 + row])) * scale_log2;
        float const before = reference[t][row];
        if (exp2_approx(top - before) > kLargest) reference[t][row] = top;
        float const rescale = exp2_approx(before - reference[t][row]);
        row_sum[t][row] *= rescale;
        CUTE_UNROLL
        for (int i = 0; i < kColumns; ++i) {
          out[t][i][row] *= rescale;
          out[t][i][2 + row] *= rescale;
        }
      }
    }
  }
};

// In the place of a softmax: scores are the weights of the values, and nothing normalises them.
template <int kTiles>
struct KeyWeights {
  float scale;  // score -> weight

  CUTE_DEVICE explicit KeyWeights(float scale) : scale(scale) {}

  template <int kColumns>
  CUTE_DEVICE void step(float const (&score)[kTiles][4], float (&p)[kTiles][4],
                        float (&)[kTiles][kColumns][4]) const {
    CUTE_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      CUTE_UNROLL
      for (int i = 0; i < 4; ++i) p[t][i] = score[t][i] * scale;
    }
  }
};

}  // namespace cute_attn::ampere
