// `LazySoftmax` whose probabilities are e4m3.
//
// e4m3 reaches from 2^-9 to 448. A reference three binades below the maximum of an item's first
// block leaves later scores six of room before one stands out, and the 2^-9 of the largest
// probability below which bits are lost; what lies under 2^-13 of it is zero. The bits of a
// probability that are lost are lost to the output alone: the sum is taken before rounding.
#pragma once

#include <cute_attn/hopper/fp8.hpp>
#include <cute_attn/hopper/lazy_softmax.hpp>

namespace cute_attn {

struct Fp8Softmax : LazySoftmax {
  using LazySoftmax::LazySoftmax;

  // The maximum of an item's first block, less the room above it, becomes the reference.
  template <int N>
  CUTE_DEVICE void start(float const (&score)[N]) {
    LazySoftmax::start(score);
    float reference[2];
    references.get(reference);
    reference[0] -= kRoom;
    reference[1] -= kRoom;
    references.set(reference);
  }

  // As LazySoftmax::follow.
  template <int N>
  CUTE_DEVICE void follow(float const (&score)[N], float const (&sum)[2], float (&rescale)[2]) {
    float reference[2];
    references.get(reference);
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) {
      bool const grows = quad_max(sum[row] <= kLargest ? 0.f : 1.f) > 0.f;
      float const top = quad_max(row_top(score, row) * scale_log2) - kRoom;
      float const next = grows ? fmaxf(top, reference[row]) : reference[row];
      rescale[row] = exp2_approx(reference[row] - next);
      reference[row] = next;
      row_sum[row] *= rescale[row];
    }
    references.set(reference);
  }

  // Probabilities of registers [kBegin, kEnd), packed for P V; the scores stay.
  template <int kBegin, int kEnd, int N, int M>
  CUTE_DEVICE void exponentiate_packed(float const (&score)[N], uint32_t (&p)[M],
                                       float (&sum)[2]) const {
    static_assert(kBegin % 8 == 0 && kEnd % 8 == 0);
    float reference[2];
    references.get(reference);
    CUTE_UNROLL
    for (int i = kBegin / 8; i < kEnd / 8; ++i) {
      CUTE_UNROLL
      for (int row = 0; row < 2; ++row) {
        float value[4];
        CUTE_UNROLL
        for (int e = 0; e < 4; ++e) {
          float const s = score[first_of_word(i, row) + e % 2 + e / 2 * 4];
          value[e] = exp2_approx(s * scale_log2 - reference[row]);
          sum[row] += value[e];
        }
        p[place_of_word(i, row)] = pack_e4m3(value[0], value[1], value[2], value[3]);
      }
    }
  }

  // As LazySoftmax::complete.
  template <int kEarly, int N, int P, int M>
  CUTE_DEVICE void complete(float const (&score)[N], float (&sum)[2], uint32_t (&p)[P],
                            float (&out)[M]) {
    // A loop to the compiler, which otherwise moves the exponentials ahead of the waits.
    bool again = opaque(0u);
#pragma unroll 1
    while (true) {
      if (again) {
        float rescale[2];
        follow(score, sum, rescale);
        scale_rows(out, rescale);
        sum[0] = sum[1] = 0.f;
        exponentiate_packed<0, kEarly>(score, p, sum);
      }
      exponentiate_packed<kEarly, N>(score, p, sum);
      if (again || !too_large(sum)) break;
      again = true;
    }
    row_sum[0] += sum[0];
    row_sum[1] += sum[1];
  }

  CUTE_DEVICE static bool too_large(float const (&sum)[2]) {
    return __any_sync(0xffffffffu, !(sum[0] <= kLargest && sum[1] <= kLargest));
  }

  // As LazySoftmax::finish; v_scale: of the values, which the row's factor takes in.
  CUTE_DEVICE void finish(float (&inverse)[2], float (&lse2)[2], float v_scale) {
    LazySoftmax::finish(inverse, lse2);
    inverse[0] *= v_scale;
    inverse[1] *= v_scale;
  }

 private:
  static constexpr float kRoom = 3.f;
  static constexpr float kLargest = 448.f;  // no probability is larger: e4m3 ends there
};

}  // namespace cute_attn
