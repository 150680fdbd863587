// The items of a thread block, found one ahead and kept in shared memory.
//
// Thread 0 walks the plan while the block computes, so that neither the latency of the plan nor the
// registers of the walker are felt in the main loop.
#pragma once

#include <cute_attn/work.hpp>

namespace cute_attn::ampere {

template <int kTileQ, int kTileKV, int kGroup, template <int, int, int> class Walker = WorkWalker,
          class WalkedItem = Item>
struct WorkQueue {
  Walker<kTileQ, kTileKV, kGroup> walker;
  WalkedItem items[2];  // the one in work and the next
  bool present[2];      // false behind the last item

  CUTE_DEVICE void start(int const* plan, int num_kv_heads) {
    if (threadIdx.x != 0) return;
    walker = Walker<kTileQ, kTileKV, kGroup>(plan, num_kv_heads);
    present[0] = walker.next(items[0]);
  }

  // Finds the item after number `turn`. All threads must be done with the one before it.
  CUTE_DEVICE void find_next(int turn) {
    if (threadIdx.x == 0) present[(turn + 1) % 2] = walker.next(items[(turn + 1) % 2]);
  }
};

}  // namespace cute_attn::ampere
