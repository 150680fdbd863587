// Online softmax that looks for the maximum of a block only when its probabilities came out too
// large, so that a step has no comparisons, no shuffles and no rescale of the output as long as no
// score stands out (the rescale left out: Dao et al., FlashAttention-4, 2026). Fragment layout: see
// softmax.hpp.
#pragma once

#include <cute_attn/hopper/wgmma.hpp>
#include <cute_attn/opaque.hpp>
#include <cute_attn/softmax.hpp>

namespace cute_attn {

CUTE_DEVICE float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Largest score of one of the thread's two rows, in two chains.
template <int N>
CUTE_DEVICE float row_top(float const (&score)[N], int row) {
  float even = fmaxf(score[2 * row], score[2 * row + 1]);
  float odd = fmaxf(score[4 + 2 * row], score[5 + 2 * row]);
  CUTE_UNROLL
  for (int j = 8; j < N; j += 8) {
    even = fmaxf(even, fmaxf(score[j + 2 * row], score[j + 2 * row + 1]));
    odd = fmaxf(odd, fmaxf(score[j + 4 + 2 * row], score[j + 5 + 2 * row]));
  }
  return fmaxf(even, odd);
}

// Two values in an aligned pair of registers, that is, one in each bank of the register file. The
// operands of an instruction are kept for the next ones, one per bank: where instructions use the
// two values in turn, both are read once and the tensor core has the file for itself (without the
// pair 2 to 3 % of a kernel, by chance).
class RegisterPair {
 public:
  CUTE_DEVICE explicit RegisterPair(float both) {
    float const value[2] = {both, both};
    set(value);
  }
  CUTE_DEVICE void set(float const (&value)[2]) {
    asm("mov.b64 %0, {%1, %2};" : "=l"(bits_) : "f"(value[0]), "f"(value[1]));
  }
  CUTE_DEVICE void get(float (&value)[2]) const {
    asm("mov.b64 {%0, %1}, %2;" : "=f"(value[0]), "=f"(value[1]) : "l"(bits_));
  }

 private:
  uint64_t bits_;
};

// Running sum of this thread's two rows, relative to a reference exponent.
struct LazySoftmax {
  // Base-2 exponents, over all lanes of the row. A row that has seen no key so far has one below
  // all scores, but finite: hidden scores (-inf) stay -inf less it.
  RegisterPair references;
  float row_sum[2];  // over this thread's columns only, until finish()
  float scale_log2;  // score -> base-2 exponent

  CUTE_DEVICE explicit LazySoftmax(float scale)
      : references(kNoKey), row_sum{0.f, 0.f}, scale_log2(scale) {}

  // The maximum of an item's first block becomes the reference.
  template <int N>
  CUTE_DEVICE void start(float const (&score)[N]) {
    float reference[2];
    references.get(reference);
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) {
      reference[row] = fmaxf(quad_max(row_top(score, row) * scale_log2), reference[row]);
    }
    references.set(reference);
  }

  // Where the sum of a block is too large, its maximum becomes the reference: each row for itself,
  // whatever the others hold. What came before is relative to the same reference, so the earlier
  // output must be multiplied with rescale[row], and the block be done again.
  template <int N>
  CUTE_DEVICE void follow(float const (&score)[N], float const (&sum)[2], float (&rescale)[2]) {
    float reference[2];
    references.get(reference);
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) {
      bool const grows = quad_max(sum[row] <= kLargest ? 0.f : 1.f) > 0.f;
      float const top = fmaxf(quad_max(row_top(score, row) * scale_log2), reference[row]);
      float const next = grows ? top : reference[row];
      rescale[row] = exp2_approx(reference[row] - next);
      reference[row] = next;
      row_sum[row] *= rescale[row];
    }
    references.set(reference);
  }

  // Probabilities of the first kCount registers of the fragment, and their sums.
  template <int kCount, int N>
  CUTE_DEVICE void exponentiate(float const (&score)[N], float (&to)[kCount],
                                float (&sum)[2]) const {
    float reference[2];
    references.get(reference);
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) {
      CUTE_UNROLL
      for (int j = 2 * row; j < kCount; j += 4) {
        CUTE_UNROLL
        for (int e = 0; e < 2; ++e) {
          to[j + e] = exp2_approx(score[j + e] * scale_log2 - reference[row]);
          sum[row] += to[j + e];
        }
      }
    }
  }

  // The same for registers [kBegin, kEnd), packed for P V (pack_probabilities). The scores stay.
  template <class Element, int kBegin, int kEnd, int N>
  CUTE_DEVICE void exponentiate_packed(float const (&score)[N], uint32_t (&p)[N / 2],
                                       float (&sum)[2]) const {
    float reference[2];
    references.get(reference);
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) {
      CUTE_UNROLL
      for (int j = kBegin + 2 * row; j < kEnd; j += 4) {
        float const even = exp2_approx(score[j] * scale_log2 - reference[row]);
        float const odd = exp2_approx(score[j + 1] * scale_log2 - reference[row]);
        sum[row] += even;
        sum[row] += odd;
        p[j / 2] = pack<Element>(even, odd);
      }
    }
  }

  // The rest of a block: probabilities from register kEarly on, and all of them again, with the
  // earlier output rescaled, if a score stands out. No product is in flight.
  template <class Element, int kEarly, int N, int M>
  CUTE_DEVICE void complete(float const (&score)[N], float (&sum)[2], uint32_t (&p)[N / 2],
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
        exponentiate_packed<Element, 0, kEarly>(score, p, sum);
      }
      exponentiate_packed<Element, kEarly, N>(score, p, sum);
      if (again || !too_large(sum)) break;
      again = true;
    }
    row_sum[0] += sum[0];
    row_sum[1] += sum[1];
  }

  // Whether the sum of a block, in any thread of the warp, says that a reference is too low for its
  // scores. Not even infinite probabilities are lost then: the block is done again.
  CUTE_DEVICE static bool too_large(float const (&sum)[2]) {
    return __any_sync(0xffffffffu, !(sum[0] <= kLargest && sum[1] <= kLargest));
  }

  // Sums over the lanes of a row. Afterwards inverse[row] normalises the output (0 for a row that
  // saw no key) and lse2[row] is log2 of the sum of the exponentials (-inf for such a row).
  CUTE_DEVICE void finish(float (&inverse)[2], float (&lse2)[2]) {
    float reference[2];
    references.get(reference);
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) {
      float const sum = quad_sum(row_sum[row]);
      bool const empty = sum == 0.f;
      inverse[row] = empty ? 0.f : reciprocal_approx(sum);
      lse2[row] = empty ? neg_infinity() : reference[row] + __log2f(sum);
    }
  }

 private:
  static constexpr float kNoKey = -3.4028235e38f;
  static constexpr float kLargest = 32768.f;  // no probability is larger: fp16 ends at 65504
};

// In the place of a softmax: scores are the weights of the values, and nothing normalises them. The
// same interface, with nothing to keep.
struct LazyWeights {
  float row_sum[2];  // that nobody asks for
  float scale;       // score -> weight

  CUTE_DEVICE explicit LazyWeights(float scale) : scale(scale) {}

  template <int N>
  CUTE_DEVICE void start(float const (&)[N]) {}

  template <int kCount, int N>
  CUTE_DEVICE void exponentiate(float const (&score)[N], float (&to)[kCount], float (&)[2]) const {
    CUTE_UNROLL
    for (int j = 0; j < kCount; ++j) to[j] = score[j] * scale;
  }

  template <class Element, int kEarly, int N, int M>
  CUTE_DEVICE void complete(float const (&score)[N], float (&)[2], uint32_t (&p)[N / 2],
                            float (&)[M]) const {
    CUTE_UNROLL
    for (int j = kEarly; j < N; j += 2) {
      p[j / 2] = pack<Element>(score[j] * scale, score[j + 1] * scale);
    }
  }

  CUTE_DEVICE void finish(float (&inverse)[2], float (&lse2)[2]) const {
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) {
      inverse[row] = 1.f;
      lse2[row] = 0.f;
    }
  }
};

// Bits [begin, end) of a word; both may lie outside of it.
CUTE_DEVICE uint32_t bit_run(int begin, int end) {
  int const first = min(max(begin, 0), 32);
  uint32_t bits;
  asm("bmsk.clamp.b32 %0, %1, %2;" : "=r"(bits) : "r"(first), "r"(max(min(end, 32) - first, 0)));
  return bits;
}

// Calls f(score, column) for the scores of one of the thread's two rows; columns count from the
// thread's first one.
template <int N, class F>
CUTE_DEVICE void for_each_score(float (&score)[N], int row, F f) {
  CUTE_UNROLL
  for (int i = 0; i < N / 2; ++i) f(score[4 * (i / 2) + 2 * row + i % 2], 8 * (i / 2) + i % 2);
}

// Hides the columns of one of the thread's two rows outside [begin, end); both count from the
// thread's first column; hidden ones become `hidden`. The columns that stay are a run of bits, and
// the assembler moves bits to predicates by the byte: one instruction and a fraction per score,
// where comparisons take two or three.
template <int N>
CUTE_DEVICE void keep_columns(float (&score)[N], int row, int begin, int end,
                              float hidden = neg_infinity()) {
  constexpr int kOwn = N / 2;  // the thread's columns in a row: two of every eight
  auto own_before = [](int column) {
    int const c = min(max(column, 0), 4 * kOwn);
    return c / 8 * 2 + min(c % 8, 2);
  };
  int const first = own_before(begin), last = own_before(end);
  CUTE_UNROLL
  for (int base = 0; base < kOwn; base += 32) {
    uint32_t const keep = bit_run(first - base, last - base);
    CUTE_UNROLL
    for (int i = 0; i < 32 && base + i < kOwn; ++i) {
      float& s = score[4 * ((base + i) / 2) + 2 * row + i % 2];
      s = keep & (1u << i) ? s : hidden;
    }
  }
}

}  // namespace cute_attn
