// Rings of shared-memory stages, guarded by a full and an empty mbarrier per stage, and the named
// barriers.
#pragma once

#include <cutlass/arch/barrier.h>

namespace cute_attn {

using FullBarrier = cutlass::arch::ClusterTransactionBarrier;  // counts arrivals and TMA bytes
struct CopiedBarrier : FullBarrier {};               // a full barrier of what cp.async writes
using EmptyBarrier = cutlass::arch::ClusterBarrier;  // counts consumer warps, q_empty their lanes

// Named barriers of the consumers, numbered from the first one that CUTLASS leaves to its users.
constexpr int kPieceDone = 0;   // all consumers
constexpr int kTailZeroed = 1;  // one per warpgroup, 128 threads

// Waits until a stage has landed; `landed`: it is known to have.
CUTE_DEVICE void wait_full(FullBarrier& full, uint32_t parity, bool landed = false) {
  if (!landed) full.wait(parity);
}

// The same, and shows what cp.async wrote to the asynchronous proxy, through which wgmma reads.
CUTE_DEVICE void wait_full(CopiedBarrier& full, uint32_t parity, bool landed = false) {
  if (!landed) full.wait(parity);
  cutlass::arch::fence_view_async_shared();
}

// CUTLASS's waits and arrivals say nothing about memory to the compiler: no access moves past this.
CUTE_DEVICE void compiler_fence() { asm volatile("" ::: "memory"); }

// Every consumer warp releases a stage that its products have read through its first lane.
CUTE_DEVICE void release(EmptyBarrier& empty) {
  __syncwarp();
  empty.arrive(0u, threadIdx.x % 32 == 0);
}

// Every lane of the consumers releases an item and its Q tile, because each has read the record.
CUTE_DEVICE void release_item(EmptyBarrier& empty) {
  compiler_fence();
  empty.arrive();
}

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

// Positions of a block in two rings of different lengths: that of K, and v, that of V.
template <int kStagesK, int kStagesV>
struct RingPositions : RingPosition<kStagesK> {
  RingPosition<kStagesV> v;

  CUTE_DEVICE RingPositions previous() const {
    return {RingPosition<kStagesK>::previous(), v.previous()};
  }
  CUTE_DEVICE RingPositions next() const { return {RingPosition<kStagesK>::next(), v.next()}; }
  CUTE_DEVICE void advance() { *this = next(); }
};

// Initialises the barriers of a kernel's shared memory, by one thread: how many arrive at the full
// barriers of Q, at those of K, at those of V, and how many consumer warps there are.
template <class Smem>
CUTE_DEVICE void init_barriers(Smem& smem, int q_full, int k_full, int v_full, int warps) {
  constexpr int kStagesQ = sizeof(smem.q_full) / sizeof(smem.q_full[0]);
  constexpr int kStages = sizeof(smem.k_full) / sizeof(smem.k_full[0]);
  constexpr int kStagesV = sizeof(smem.v_full) / sizeof(smem.v_full[0]);
  static_assert(kStagesV <= kStages);
  CUTE_UNROLL
  for (int i = 0; i < kStagesQ; ++i) {
    smem.q_full[i].init(q_full);
    smem.q_empty[i].init(32 * warps);
  }
  CUTE_UNROLL
  for (int i = 0; i < kStages; ++i) {
    smem.k_full[i].init(k_full);
    if (i < kStagesV) smem.v_full[i].init(v_full);
    smem.k_empty[i].init(warps);
    if (i < kStagesV) smem.v_empty[i].init(warps);
  }
  cutlass::arch::fence_barrier_init();
}

// The same, where as many arrive for K as for V.
template <class Smem>
CUTE_DEVICE void init_barriers(Smem& smem, int q_full, int kv_full, int warps) {
  init_barriers(smem, q_full, kv_full, kv_full, warps);
}

}  // namespace cute_attn
