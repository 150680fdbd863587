// Merge of a split tile by all blocks that have nothing else to do: each takes a share of its rows.
#pragma once

#include <cute_attn/piece_merge.hpp>

namespace cute_attn {

// Rows [row_begin, row_end) of the tile in slots [first_slot, first_slot + num_slots); no rows:
// nothing is left to do.
struct MergeShare {
  int first_slot;
  int num_slots;
  int row_begin;
  int row_end;
};

// A block's part in the merge of a tile, from the end of its piece on. It lies in shared memory;
// one thread calls.
//
// The block of the last piece merges. Blocks that are idle by then wait for it and help: the rows
// are shared out among the idle ones, and the last also takes the share of every one that lost
// patience. So nobody depends on help, and nobody waits for ever: a launch ends also if its blocks
// do not run all at the same time. Which block merges a row does not change its value.
//
// Two of the tile's words in `arrivals` count, and are zero again when all have decided:
//   arrived   pieces that are done; in the upper half, how many blocks registered as idle
//   decided   a bit per share that an idle block takes; in the upper half, how many have decided
template <int kUnit>  // rows that a block merges at a time
class TileMerge {
 public:
  // The partial result was written by threads that this one has met at a barrier since.
  CUTE_DEVICE void arrive(int32_t const* plan, int32_t* arrivals, Item const& item, bool idle) {
    Cut const& cut = Plan{plan, static_cast<int>(gridDim.x)}.cut(item.cut);
    first_slot_ = cut.first_slot;
    num_slots_ = cut.num_slots;
    num_rows_ = item.num_rows;
    arrived_ = reinterpret_cast<unsigned*>(arrivals + cut.first_slot);
    decided_ = arrived_ + 1;
    bool const helps = idle && num_rows_ > kUnit;
    __threadfence();  // the partial result before the arrival
    unsigned const before = atomicAdd(arrived_, helps ? kUpper + 1 : 1);
    last_ = before % kUpper == num_slots_ - 1;
    others_ = before / kUpper;
    own_share_ = helps ? 1u << min(others_, kMaxShares) : 0;
    undecided_ = last_ || helps;
    todo_ = 0;
    if (last_) {
      __threadfence();  // the others' partial results after their arrivals
      share_out(others_ + helps);
      todo_ = own_share_ & all_shares();
    }
  }

  // What the block merges next; after a share without rows nothing more.
  MergeShare share;

  CUTE_DEVICE void find_share() { share = next(); }

 private:
  CUTE_DEVICE MergeShare next() {
    if (todo_ == 0 && undecided_) {
      undecided_ = false;
      if (!last_) {
        if (wait_for_last()) todo_ = own_share_ & all_shares();
        atomicAdd(decided_, kUpper | todo_);
      } else {
        unsigned taken = now(decided_);
        for (; taken / kUpper < others_; taken = now(decided_)) __nanosleep(20);
        todo_ = all_shares() & ~taken & ~own_share_;
        *arrived_ = 0;
        *decided_ = 0;
      }
    }
    if (todo_ == 0) return {};
    int const share = __ffs(todo_) - 1;
    todo_ &= todo_ - 1;
    int const units = (num_rows_ + kUnit - 1) / kUnit;
    return {first_slot_, num_slots_, share * units / shares_ * kUnit,
            min((share + 1) * units / shares_ * kUnit, num_rows_)};
  }

  static constexpr unsigned kUpper = 1 << 16;
  static constexpr unsigned kMaxShares = 15;
  static constexpr int kPatience = 1 << 15;  // cycles: the pieces of a plan end closer together

  CUTE_DEVICE static unsigned now(unsigned const* word) {
    return *const_cast<unsigned const volatile*>(word);
  }

  CUTE_DEVICE void share_out(unsigned idle_blocks) {
    unsigned const units = (num_rows_ + kUnit - 1) / kUnit;
    shares_ = max(min(min(idle_blocks, kMaxShares), units), 1u);
  }

  CUTE_DEVICE unsigned all_shares() const { return (1u << shares_) - 1; }

  CUTE_DEVICE bool wait_for_last() {
    for (long long const start = clock64(); clock64() - start < kPatience; __nanosleep(20)) {
      unsigned const word = now(arrived_);
      if (word % kUpper < num_slots_) continue;
      __threadfence();
      share_out(word / kUpper);
      return true;
    }
    return false;
  }

  unsigned* arrived_;
  unsigned* decided_;
  int first_slot_;
  unsigned num_slots_;
  int num_rows_;
  int shares_;
  unsigned others_;     // idle blocks that registered before this one
  unsigned own_share_;  // its bit, if this block is idle
  unsigned todo_;       // shares that it still has to merge
  bool undecided_;
  bool last_;
};

}  // namespace cute_attn
