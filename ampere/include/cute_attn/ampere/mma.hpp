// mma.sync m16n8k16 for both element types, and the conversion of accumulators to operands.
#pragma once

#include <cute/arch/mma_sm80.hpp>
#include <cute_attn/elements.hpp>

namespace cute_attn::ampere {

template <class Element>
struct MmaOf;
template <>
struct MmaOf<bf16> {
  using Type = cute::SM80_16x8x16_F32BF16BF16F32_TN;
};
template <>
struct MmaOf<fp16> {
  using Type = cute::SM80_16x8x16_F32F16F16F32_TN;
};

// c += a b, c being four registers of an accumulator fragment (see softmax.hpp for the map).
template <class Element>
CUTE_DEVICE void mma(float* c, uint32_t const (&a)[4], uint32_t b0, uint32_t b1) {
  MmaOf<Element>::Type::fma(c[0], c[1], c[2], c[3], a[0], a[1], a[2], a[3], b0, b1, c[0], c[1],
                            c[2], c[3]);
}

// A operand of m16n8k16 from accumulators of m16n8: columns [16 k, 16 k + 16) of the fragment.
// Accumulator and operand share one map of registers to elements, so this only rounds.
template <class Element, int N>
CUTE_DEVICE void to_operand(float const (&fragment)[N], int k, uint32_t (&a)[4]) {
  CUTE_UNROLL
  for (int i = 0; i < 4; ++i) {
    a[i] = pack<Element>(fragment[8 * k + 2 * i], fragment[8 * k + 2 * i + 1]);
  }
}

}  // namespace cute_attn::ampere
