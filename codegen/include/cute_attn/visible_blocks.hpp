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

// The blocks [begin, end) of kKeys keys that the mask of an item does not empty, from last to
// first; with a stride only every kStride-th, from end - kStride down. All lanes of a warp walk
// together: each classifies one of 32 blocks, and they vote. Classes come from variant_block, which
// knows the mask.
template <class Params, int kKeys, int kGroup, int kStride = 1>
class VisibleBlocks {
 public:
  CUTE_DEVICE VisibleBlocks(Params const& params, Item const& item, int begin, int end)
      : params_(params), item_(item), begin_(begin), base_(end) {}

  // The next block; -1 if there is none left.
  CUTE_DEVICE int next() {
    while (visible_ == 0) {
      if (base_ <= begin_) return -1;
      // Where many are left lanes look at 32 blocks each, for the next that are not all empty.
      int size = base_ - begin_ > 64 * kStride ? 32 : 1;
#pragma unroll 1
      for (bool found = false; !found; size = 1) found = vote(size);
    }
    int const bit = 31 - __clz(visible_);
    visible_ ^= 1u << bit;
    full = filled_ >> bit & 1;
    return base_ + kStride * bit;
  }

  bool full = false;  // of the block that next() gave every row sees all keys, and none is missing

 private:
  // Of the 32 blocks below base_, or groups of as many, with size 32. Returns whether blocks have
  // been looked at, one by one.
  CUTE_DEVICE bool vote(int size) {
    int const begin = base_ - size * kStride * (32 - static_cast<int>(threadIdx.x % 32));
    int const end = begin + (size - 1) * kStride + 1;  // the last one included
    Request const& request = item_.request;
    int const key = max(begin, begin_) * kKeys, keys_end = min(end * kKeys, request.kv_len);
    int const head = item_.kv_head * kGroup;
    int const row = item_.row_begin, last_row = row + item_.num_rows - 1;
    BlockClass const c = variant_block(
        params_, request.batch(), head, head + kGroup - 1, request.q_pos + row / kGroup,
        request.q_pos + last_row / kGroup, request.kv_pos + key, request.kv_pos + keys_end - 1);
    unsigned const some = __ballot_sync(0xffffffffu, c.some && end > begin_);
    if (size > 1) {
      base_ -= size * kStride * __clz(some);  // the empty ones
      return false;
    }
    base_ -= 32 * kStride;
    visible_ = some;
    filled_ = __ballot_sync(0xffffffffu, c.all && keys_end == end * kKeys);
    return true;
  }

  Params const& params_;
  Item const& item_;
  int begin_;
  int base_;              // blocks from here on have been classified
  unsigned visible_ = 0;  // those of them that come, as bits
  unsigned filled_ = 0;
};

// The same with the next kAhead blocks at hand, whose copies are under way.
template <class Blocks, int kAhead>
class BlocksAhead {
 public:
  CUTE_DEVICE explicit BlocksAhead(Blocks const& blocks) : blocks_(blocks) {
#pragma unroll 1
    for (int i = 0; i <= kAhead; ++i) advance();
  }

  // The one in work (0) and those after it; -1 behind the last.
  CUTE_DEVICE int block(int i) const { return found_[i] >> 1; }
  CUTE_DEVICE bool any() const { return found_[0] >= 0; }
  CUTE_DEVICE bool full() const { return found_[0] & 1; }

  CUTE_DEVICE void advance() {
    CUTE_UNROLL
    for (int i = 0; i < kAhead; ++i) found_[i] = found_[i + 1];
    int const block = blocks_.next();
    found_[kAhead] = block < 0 ? -1 : 2 * block + blocks_.full;
  }

 private:
  Blocks blocks_;
  int found_[kAhead + 1];  // twice the block, and 1 if it is full
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
