// A sleep of random length, for kernels that are tested with delays (hopper/delays.py).
#pragma once

#include <cute/config.hpp>

namespace cute_attn {

// Sleeps for up to about 2 us, half of the times not at all. Lengths differ between places of the
// source, warps, SMs and visits; the lanes of a converged warp agree. No branch, no memory clobber
// and no register that lives on: code around it is compiled as it would be without.
CUTE_DEVICE void random_delay(unsigned place) {
  unsigned hash, warp, sm;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(hash));
  asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  hash ^= (sm * 64 + warp) * 0x9E3779B1u + place * 0x85EBCA6Bu;
  hash ^= hash >> 15;
  hash *= 0x2C1B3C6Du;
  hash ^= hash >> 12;
  hash *= 0x297A2D39u;
  unsigned const length = hash >> 22;  // 0 .. 1023 ns; the hardware sleeps for up to twice that
  asm volatile("nanosleep.u32 %0;" ::"r"(hash & 1u << 16 ? length : 0u));
}

}  // namespace cute_attn
