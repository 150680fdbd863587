// Functions that traced hooks call, beside CUDA's own and those of softmax.hpp: the fast ones of
// float32, and integer division as Python has it.
#pragma once

#include <cute_attn/softmax.hpp>

#include <cute/config.hpp>

namespace cute_attn {

CUTE_DEVICE float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

CUTE_DEVICE float fast_exp(float x) {
  constexpr float kLog2E = 1.4426950408889634f;
  return exp2_approx(x * kLog2E);
}

CUTE_DEVICE float fast_sigmoid(float x) { return fast_reciprocal(1.f + fast_exp(-x)); }

// 1 / (1 + 2^-x) to a relative error of 2^-12.8, with one MUFU operation: the reciprocal of d is
// guessed from its bits, to 5 % (the constant is the best one), and a cubic step leaves the third
// power of that. The exponential is limited so that the guess is no denormal; NaN stays NaN.
CUTE_DEVICE float sigmoid2_approx(float x) {
  constexpr int kGuess = 0x7ef311c3;
  float exponent;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(exponent) : "f"(-x), "f"(125.f));
  float const d = 1.f + exp2_approx(exponent);
  float const guess = __int_as_float(kGuess - __float_as_int(d));
  float const rest = fmaf(-d, guess, 1.f);
  return fmaf(guess, fmaf(rest, rest, rest), guess);
}
CUTE_DEVICE float sigmoid_approx(float x) {
  constexpr float kLog2E = 1.4426950408889634f;
  return sigmoid2_approx(x * kLog2E);
}

// To a relative error of 2^-11.
CUTE_DEVICE float tanh_approx(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

CUTE_DEVICE float fast_sqrt(float x) {
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// x ** y for x >= 0.
CUTE_DEVICE float fast_pow(float x, float y) { return exp2_approx(y * __log2f(x)); }

// x less whole turns, in [-pi, pi], where the hardware's sine is good to 2^-21: for |x| below 1e5
// the two parts of 2 pi lose no more than that.
CUTE_DEVICE float within_a_turn(float x) {
  constexpr float kTurns = 0.15915494309189535f;
  constexpr float kTurnHigh = 6.28125f;                // few bits: its multiples are exact
  constexpr float kTurnLow = 1.9353071795864769e-03f;  // 2 pi - kTurnHigh
  float const turns = rintf(x * kTurns);
  return fmaf(-turns, kTurnLow, fmaf(-turns, kTurnHigh, x));
}

CUTE_DEVICE float fast_sin(float x) { return __sinf(within_a_turn(x)); }
CUTE_DEVICE float fast_cos(float x) { return __cosf(within_a_turn(x)); }

// a // b and a % b: rounded down, the remainder has the sign of b.
CUTE_DEVICE int floor_div(int a, int b) {
  int const quotient = a / b;
  return quotient - (a % b != 0 && (a ^ b) < 0);
}
CUTE_DEVICE int floor_mod(int a, int b) {
  int const remainder = a % b;
  return remainder != 0 && (remainder ^ b) < 0 ? remainder + b : remainder;
}

// The nearest 32-bit integer.
CUTE_DEVICE int saturated(int64_t x) {
  return static_cast<int>(min(max(x, int64_t(-2147483647 - 1)), int64_t(2147483647)));
}

// An index within [0, size); one that is not becomes the last: hooks are also called for positions
// behind the last key or query.
CUTE_DEVICE int64_t within(int index, int size) {
  return int64_t(min(unsigned(index), unsigned(size - 1)));
}

// The address of a tensor's row, about which the compiler knows nothing: it would add up the row's
// offset and the index first, in 64 bits and for every element.
template <class T>
CUTE_DEVICE T const* row_address(T const* row) {
  asm("" : "+l"(row));
  return row;
}

}  // namespace cute_attn
