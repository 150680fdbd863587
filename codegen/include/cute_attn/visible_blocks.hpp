// Which KV blocks of an item its mask leaves anything of. Every warp that works on an item finds
// out for itself, from the same numbers: producers and consumers agree without a word.
#pragma once

#include <cute_attn/work.hpp>

namespace cute_attn {

// What a mask leaves of a block of scores.
struct BlockClass {
  bool some;          // false: nothing
  bool all;           // true: everything
  bool flat = false;  // see hopper/hooked_scores.hpp; of kernels that ask
};

// The blocks [begin, end) of kKeys keys that the mask of an item does not empty, from last to
// first; with a stride only every kStride-th, from end - kStride down. All lanes of a warp walk
// together: each classifies one of 32 blocks, and they vote. Classes come from variant_block, which
// knows the mask.
template <class Params, int kKeys, int kGroup, int kStride = 1, bool kFlat = false>
class VisibleBlocks {
 public:
  CUTE_DEVICE VisibleBlocks() {}
  CUTE_DEVICE VisibleBlocks(Params const& params, Item const& item, int begin, int end)
      : params_(&params), item_(&item), begin_(begin), base_(end) {}

  // Of an item whose last block is visible, at that block.
  CUTE_DEVICE static VisibleBlocks at_last(Params const& params, Item const& item) {
    int const begin = item.block_begin, end = item.num_rows > 0 ? item.block_end : begin;
    VisibleBlocks blocks(params, item, begin, end);
    blocks.next();
    return blocks;
  }

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
    if (kFlat) flat = flat_ >> bit & 1;
    return base_ + kStride * bit;
  }

  // Of the block that next() gave:
  bool full = false;  // every row sees all keys, and none is missing
  bool flat = false;

  // The first of them, if there is one, by groups of blocks that get smaller.
  CUTE_DEVICE int first() const {
    int begin = begin_, end = base_;
    for (int size = 0; size != 1;) {
      size = (end - begin + 31) / 32;
      int const own = begin + size * static_cast<int>(threadIdx.x % 32);
      unsigned const some =
          __ballot_sync(0xffffffffu, own < end && classify(own, min(own + size, end)).some);
      if (some == 0) break;
      begin += size * (__ffs(some) - 1);
      end = min(begin + size, end);
    }
    return begin;
  }

 private:
  // What the mask leaves of blocks [begin, end) together.
  CUTE_DEVICE BlockClass classify(int begin, int end) const {
    Request const& request = item_->request;
    int const head = item_->kv_head * kGroup;
    int const row = item_->row_begin, last_row = row + item_->num_rows - 1;
    return variant_block(*params_, request.batch(), head, head + kGroup - 1,
                         request.q_pos + row / kGroup, request.q_pos + last_row / kGroup,
                         request.kv_pos + begin * kKeys,
                         request.kv_pos + min(end * kKeys, request.kv_len) - 1);
  }

  // Of the 32 blocks below base_, or groups of as many, with size 32. Returns whether blocks have
  // been looked at, one by one.
  CUTE_DEVICE bool vote(int size) {
    int const begin = base_ - size * kStride * (32 - static_cast<int>(threadIdx.x % 32));
    int const end = begin + (size - 1) * kStride + 1;  // the last one included
    BlockClass const c = classify(max(begin, begin_), end);
    unsigned const some = __ballot_sync(0xffffffffu, c.some && end > begin_);
    if (size > 1) {
      base_ -= size * kStride * __clz(some);  // the empty ones
      return false;
    }
    base_ -= 32 * kStride;
    visible_ = some;
    bool const whole = end * kKeys <= item_->request.kv_len;
    filled_ = __ballot_sync(0xffffffffu, c.all && whole);
    if constexpr (kFlat) flat_ = __ballot_sync(0xffffffffu, c.flat);
    return true;
  }

  Params const* params_;
  Item const* item_;
  int begin_;
  int base_;              // blocks from here on have been classified
  unsigned visible_ = 0;  // those of them that come, as bits
  unsigned filled_ = 0;
  unsigned flat_ = 0;
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

// The next item of a walk; false when there is none left. It begins and ends with visible blocks;
// without any it has no blocks.
template <class Blocks, class Work, class Params>
CUTE_DEVICE bool next_visible(Work& work, Params const& params, Item& item) {
  if (!work.next(item)) return false;
  Blocks const all(params, item, item.block_begin, item.block_end);
  int const last = Blocks(all).next();
  item.block_end = last < 0 ? item.block_begin : last + 1;
  if (last >= 0) item.block_begin = all.first();
  return true;
}

}  // namespace cute_attn
