// The consumers' side of the items: records in shared memory, published with their Q tiles.
#pragma once

#include <cute_attn/hopper/lazy_softmax.hpp>
#include <cute_attn/hopper/ring.hpp>
#include <cute_attn/hopper/tile_copy.hpp>
#include <cute_attn/hopper/wgmma.hpp>
#include <cute_attn/work.hpp>

namespace cute_attn {

// Record of the block's item number `index`. There are two more than Q tiles: a record is read
// until the next item has begun, and if that releases its Q tile at once (RegisterQueries), the one
// after it may already come.
template <class Smem>
CUTE_DEVICE Item const& item_record(Smem& smem, unsigned index) {
  return smem.item[index % (sizeof(smem.item) / sizeof(smem.item[0]))];
}

CUTE_DEVICE bool has_rows(Item const& item) { return warp_uniform(item.num_rows) > 0; }
CUTE_DEVICE bool has_keys(Item const& item) {
  return warp_uniform(item.block_begin) < warp_uniform(item.block_end);
}

// Waits for an item, takes the 64 rows of this warpgroup, and waits for the K of the item's last
// block, with which it begins.
template <class Smem, class Ring, class Queries>
CUTE_DEVICE void take_item(Smem& smem, unsigned index, Ring ring, Queries& queries) {
  constexpr int kStagesQ = sizeof(smem.q_full) / sizeof(smem.q_full[0]);
  unsigned const stage = index % kStagesQ;
  wait_full(smem.q_full[stage], index / kStagesQ % 2);
  compiler_fence();  // the record is read behind the wait
  queries.take(smem.q[stage] + consumer() * 64 * Queries::kPanel);
  if (Queries::kInRegisters) release_item(smem.q_empty[stage]);
  Item const& item = item_record(smem, index);
  if (has_rows(item) && has_keys(item)) wait_full(smem.k_full[ring.stage], ring.parity);
}

// The last product with the item's queries has been waited for.
template <class Queries, class Smem>
CUTE_DEVICE void end_queries(Smem& smem, unsigned index) {
  constexpr int kStagesQ = sizeof(smem.q_full) / sizeof(smem.q_full[0]);
  if (!Queries::kInRegisters) release_item(smem.q_empty[index % kStagesQ]);
}

// Zeroes the rows of a stage of V that are past the end of the request: unwritten cache rows may
// hold NaN, and 0 * NaN is NaN. Every warpgroup does, with the same zeros.
template <class LayoutV, int kTileKV, int kHeadDim, class Smem, class Ring>
CUTE_DEVICE void zero_tail(Smem& smem, Ring ring, int valid_keys) {
  wait_full(smem.v_full[ring.stage], ring.parity);
  zero_rows<LayoutV, kTileKV, kHeadDim>(smem.v[ring.stage], valid_keys, threadIdx.x % 128);
  cutlass::arch::fence_view_async_shared();
  cutlass::arch::NamedBarrier::sync(128, kTailZeroed + consumer());
}

}  // namespace cute_attn
