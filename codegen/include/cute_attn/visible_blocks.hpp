// Which KV blocks of an item its mask leaves anything of. Every warp that works on an item finds
// out for itself, from the same numbers: producers and consumers agree without a word.
#pragma once

#include <cute_attn/work.hpp>

namespace cute_attn {

// What a mask leaves of a block of scores.
struct BlockClass {
  bool some;  // false: nothing
  bool all;   // true: everything
};

// The blocks [begin, end) of an item that the mask does not empty, from last to first. All lanes of
// a warp walk together: each classifies one of 32 blocks, and they vote. Classes come from
// variant_block, which knows the mask.
template <class Params, int kTileKV, int kGroup>
class VisibleBlocks {
 public:
  CUTE_DEVICE VisibleBlocks(Params const& params, Item const& item, int begin, int end)
      : params_(params), item_(item), begin_(begin), base_(end) {}

  // The next block; -1 if there is none left.
  CUTE_DEVICE int next() {
    while (visible_ == 0) {
      if (base_ <= begin_) return -1;
      base_ -= 32;
      classify();
    }
    int const bit = 31 - __clz(visible_);
    visible_ ^= 1u << bit;
    full = filled_ >> bit & 1;
    return base_ + bit;
  }

  bool full = false;  // the block that next() gave is visible to every row, as far as it has keys

 private:
  // Of blocks [base_, base_ + 32).
  CUTE_DEVICE void classify() {
    Request const& request = item_.request;
    int const block = base_ + static_cast<int>(threadIdx.x % 32);
    int const first_key = block * kTileKV;
    int const last_key = min(first_key + kTileKV, request.kv_len) - 1;
    int const head = item_.kv_head * kGroup, row = item_.row_begin;
    BlockClass const c = variant_block(params_, request.batch(), head, head + kGroup - 1,
                                       request.q_pos + row / kGroup,
                                       request.q_pos + (row + item_.num_rows - 1) / kGroup,
                                       request.kv_pos + first_key, request.kv_pos + last_key);
    visible_ = __ballot_sync(0xffffffffu, c.some && block >= begin_);
    filled_ = __ballot_sync(0xffffffffu, c.all);
  }

  Params const& params_;
  Item const& item_;
  int begin_;
  int base_;              // blocks from here on have been classified
  unsigned visible_ = 0;  // those of them that come, as bits
  unsigned filled_ = 0;
};

// The next item of a walk; false when there is none left. It ends with its last visible block;
// without any it has no blocks.
template <class Blocks, class Work, class Params>
CUTE_DEVICE bool next_visible(Work& work, Params const& params, Item& item) {
  if (!work.next(item)) return false;
  int const last = Blocks(params, item, item.block_begin, item.block_end).next();
  item.block_end = last < 0 ? item.block_begin : last + 1;
  return true;
}

}  // namespace cute_attn
