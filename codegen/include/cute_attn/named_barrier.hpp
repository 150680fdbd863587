// Barriers of some of a block's threads. Barrier 0 is that of __syncthreads.
#pragma once

#include <cute/config.hpp>

namespace cute_attn {

// Waits until `threads` threads (a multiple of 32) have come, those that only arrive included.
CUTE_DEVICE void barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Comes without waiting; what this thread has written is seen behind the barrier.
CUTE_DEVICE void barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace cute_attn
