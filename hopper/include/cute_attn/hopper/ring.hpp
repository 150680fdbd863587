// Rings of shared-memory stages, guarded by a full and an empty mbarrier per stage.
#pragma once

#include <cutlass/arch/barrier.h>

namespace cute_attn {

using FullBarrier = cutlass::arch::ClusterTransactionBarrier;  // counts arrivals and TMA bytes
using EmptyBarrier = cutlass::arch::ClusterBarrier;            // counts consumer warps

// A position in a ring: the stage, and the parity of the pass through the ring. A consumer starts
// at parity 0; a producer waits on the empty barriers with the opposite parity, so that its first
// pass finds every stage free.
template <int kStages>
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;

  CUTE_DEVICE RingPosition previous() const {
    return stage > 0 ? RingPosition{stage - 1, parity} : RingPosition{kStages - 1, parity ^ 1};
  }

  CUTE_DEVICE RingPosition next() const {
    RingPosition position = *this;
    if (++position.stage == kStages) {
      position.stage = 0;
      position.parity ^= 1;
    }
    return position;
  }

  CUTE_DEVICE void advance() { *this = next(); }
};

// Every consumer warp releases what it has read (a stage, or an item and its Q tile) through its
// first lane.
CUTE_DEVICE void release(EmptyBarrier& empty) {
  __syncwarp();
  empty.arrive(0u, threadIdx.x % 32 == 0);
}

}  // namespace cute_attn
