// Online softmax whose reference follows the running maximum only when it must, so that a step has
// neither shuffles nor a rescale of the output as long as no score stands out (the idea: Dao et
// al., FlashAttention-4, 2026). Fragment layout: see softmax.hpp.
#pragma once

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

  // First part of a step: what the exponents are relative to. The usual reference is the running
  // maximum; here it follows the maximum only when that has grown by more than 2^kSlack, because
  // output and sum are relative to the same reference and the result is the same. Returns whether
  // any row of the warp has a new one: then the earlier output must be multiplied with
  // rescale[row].
  template <int N>
  CUTE_DEVICE bool update_reference(float const (&score)[N], float (&rescale)[2]) {
    constexpr float kSlack = 8.f;  // probabilities up to 256
    float reference[2], top[2];    // top: over this thread's columns
    references.get(reference);
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) top[row] = row_top(score, row) * scale_log2;
    bool const grown = top[0] > reference[0] + kSlack || top[1] > reference[1] + kSlack;
    if (!__any_sync(0xffffffffu, grown)) return false;
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) {  // each row for itself, whatever the others hold
      float const next = quad_max(top[row]);
      bool const grows = next > reference[row] + kSlack;
      rescale[row] = grows ? exp2_approx(reference[row] - next) : 1.f;
      reference[row] = grows ? next : reference[row];
      row_sum[row] *= rescale[row];
    }
    references.set(reference);
    return true;
  }

  // Second part: registers [kBegin, kEnd) of the fragment become probabilities.
  template <int kBegin, int kEnd, int N>
  CUTE_DEVICE void exponentiate(float (&score)[N]) {
    float reference[2];
    references.get(reference);
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) {
      float sum = 0.f;
      CUTE_UNROLL
      for (int j = kBegin; j < kEnd; j += 4) {
        CUTE_UNROLL
        for (int e = 0; e < 2; ++e) {
          float& p = score[j + 2 * row + e];
          p = exp2_approx(p * scale_log2 - reference[row]);
          sum += p;
        }
      }
      row_sum[row] += sum;
    }
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
// thread's first column. The columns that stay are a run of bits, and the assembler moves bits to
// predicates by the byte: one instruction and a fraction per score, where comparisons take two or
// three.
template <int N>
CUTE_DEVICE void keep_columns(float (&score)[N], int row, int begin, int end) {
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
      s = keep & (1u << i) ? s : neg_infinity();
    }
  }
}

}  // namespace cute_attn
