// Values that the compiler knows nothing about.
#pragma once

#include <cute/config.hpp>

namespace cute_attn {

// Hides from the compiler that x is the same in every iteration of a loop. What depends on it is
// then computed in the loop, for a few instructions, and not ahead of it, for registers that are
// scarce.
CUTE_DEVICE unsigned opaque(unsigned x) {
  asm volatile("" : "+r"(x));
  return x;
}
CUTE_DEVICE int64_t opaque(int64_t x) {
  asm volatile("" : "+l"(x));
  return x;
}

}  // namespace cute_attn
