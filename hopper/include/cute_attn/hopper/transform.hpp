// What stands between copies and consumers where a variant has vector hooks: tiles that have
// landed are changed in place, and only then handed over.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cute_attn/hopper/ring.hpp>
#include <cute_attn/hopper/wgmma.hpp>
#include <cute_attn/vector_hooks.hpp>
#include <cute_attn/work.hpp>

namespace cute_attn {

constexpr int kTransformers = 4;  // named barrier of the transformer warpgroup

// What transformers read of an item's record.
template <int kGroup>
struct ItemRows {
  QueryPlaces<kGroup> queries;
  KeyPlaces first_keys;  // of key 0
  int num_rows;
  int block_begin;
  int block_end;

  CUTE_DEVICE explicit ItemRows(Item const& item)
      : queries{item.request.batch(), item.kv_head, item.row_begin, item.request.q_pos},
        first_keys{item.request.batch(), item.kv_head, item.request.kv_pos},
        num_rows(warp_uniform(item.num_rows)),
        block_begin(warp_uniform(item.block_begin)),
        block_end(warp_uniform(item.block_end)) {}

  // Queries that have come: none of an item without keys.
  CUTE_DEVICE int query_rows() const { return block_begin < block_end ? num_rows : 0; }
  CUTE_DEVICE KeyPlaces keys(int first) const {
    return {first_keys.b, first_keys.h, first_keys.first + first};
  }
};

// Waits until copies have landed.
CUTE_DEVICE void await_copies(FullBarrier& full, uint32_t parity) {
  full.wait(parity);
  compiler_fence();
}

// Hands a tile over that this warp has changed a part of, one arrival per warp: its writes are
// shown to the asynchronous proxy, through which wgmma reads.
CUTE_DEVICE void hand_over(FullBarrier& full) {
  compiler_fence();
  cutlass::arch::fence_view_async_shared();
  __syncwarp();
  if (threadIdx.x % 32 == 0) full.arrive();
}

// The turns of a hook's pairs, by the transformers together.
template <int kColumns, class Params, class TurnsOf>
CUTE_DEVICE void fill_turns(Params const& params, TurnsOf& turns, int thread) {
  turns.fill(params, VectorShare<kColumns, 128>::kRows, thread, 128);
  cutlass::arch::NamedBarrier::sync(128, kTransformers);
}

// Initialises barriers of what has landed, by one thread, before init_barriers: how many arrive.
CUTE_DEVICE void init_copied() {}
template <int kStages, class Barrier, class... Others>
CUTE_DEVICE void init_copied(Barrier (&copied)[kStages], int arrivals, Others&&... others) {
  CUTE_UNROLL
  for (int i = 0; i < kStages; ++i) copied[i].init(arrivals);
  init_copied(others...);
}

}  // namespace cute_attn
