// Merge of split tiles by all blocks that have nothing else to do: each takes a share of the rows.
#pragma once

#include <cute_attn/piece_merge.hpp>

namespace cute_attn {

// Where the packed rows of a tile belong.
struct TileRows {
  int q_start;
  int kv_head;
  int row_begin;

  CUTE_DEVICE static TileRows of(Item const& item) {
    return {item.request.q_start, item.kv_head, item.row_begin};
  }
};

// The same, with what hooks on rows are given besides.
struct PlacedRows : TileRows {
  int batch;
  int q_pos;

  CUTE_DEVICE static PlacedRows of(Item const& item) {
    return {TileRows::of(item), item.request.batch(), item.request.q_pos};
  }
};

// Rows [row_begin, row_end) of the tile in slots [first_slot, first_slot + num_slots).
template <class Rows>
struct MergeShare {
  Rows tile;
  int first_slot;
  int num_slots;
  int row_begin;
  int row_end;
};

// A block's part in the merge of a tile, from the end of its piece on.
//
// The block of the last piece merges. Blocks that are idle by then wait for it and help: the rows
// are shared out among the idle ones, and the last also takes the share of every one that lost
// patience. So nobody depends on help, and nobody waits for ever: a launch ends also if its blocks
// do not run all at the same time. Which block merges a row does not change its value.
//
// Two of the tile's words in `arrivals` count, and are zero again when all have decided:
//   arrived   pieces that are done; in the upper half, how many blocks registered as idle
//   decided   a bit per share that an idle block takes; in the upper half, how many have decided
template <int kUnit, class Rows>  // kUnit: rows that a block merges at a time
class TileMerge {
 public:
  CUTE_DEVICE void clear() {
    todo_ = 0;
    undecided_ = false;
  }

  // The partial result was written by threads that this one has met at a barrier since.
  CUTE_DEVICE void arrive(int32_t const* plan, int32_t* arrivals, Item const& item) {
    Cut const& cut = Plan{plan, static_cast<int>(gridDim.x)}.cut(item.cut);
    tile_ = Rows::of(item);
    first_slot_ = cut.first_slot;
    num_slots_ = cut.num_slots;
    num_rows_ = item.num_rows;
    arrived_ = reinterpret_cast<unsigned*>(arrivals + cut.first_slot);
    decided_ = arrived_ + 1;
    bool const helps = item.last && num_rows_ > kUnit;
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

  // The next share that this block merges; false when there is none left.
  CUTE_DEVICE bool next(MergeShare<Rows>& share) {
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
    if (todo_ == 0) return false;
    int const i = __ffs(todo_) - 1;
    todo_ &= todo_ - 1;
    int const units = (num_rows_ + kUnit - 1) / kUnit;
    share = {tile_, first_slot_, static_cast<int>(num_slots_), i * units / shares_ * kUnit,
             min((i + 1) * units / shares_ * kUnit, num_rows_)};
    return true;
  }

 private:
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
  Rows tile_;
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

// All merges of a block: of the tile that its line begins in and of the tile that it ends in. Its
// pieces arrive as they are done; the block merges when it has no more items. Lies in shared
// memory; one thread calls, and the block reads `share` between barriers.
template <int kUnit, class Rows = TileRows>
class BlockMerges {
 public:
  CUTE_DEVICE void clear() {
    tiles_[0].clear();
    tiles_[1].clear();
  }

  CUTE_DEVICE void arrive(int32_t const* plan, int32_t* arrivals, Item const& item) {
    tiles_[item.cut - blockIdx.x].arrive(plan, arrivals, item);
  }

  CUTE_DEVICE void find_share() { any = tiles_[0].next(share) || tiles_[1].next(share); }

  bool any;  // false: nothing is left to merge
  MergeShare<Rows> share;

 private:
  TileMerge<kUnit, Rows> tiles_[2];
};

}  // namespace cute_attn
