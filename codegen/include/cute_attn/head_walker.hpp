// How a thread block finds its items in a plan in which every KV head of a request has keys of its
// own, and so a record of its own (see `heads_in_ids` in cute_attn/abi/plan.py, and work.py, the
// twin).
#pragma once

#include <cute_attn/work.hpp>

namespace cute_attn {

// From the id of a record, request * num_kv_heads + KV head, to the two: hooks are given the
// request, and everything else the KV head.
CUTE_DEVICE int take_kv_head(Request& record, int num_kv_heads) {
  int const id = record.batch();
  int const request = id / num_kv_heads;
  record.meta -= id - request;  // the id is the low bits
  return id - request * num_kv_heads;
}

template <int kTileQ, int kTileKV, int kGroup>
class HeadWalker : WorkWalker<kTileQ, kTileKV, kGroup> {
  using Base = WorkWalker<kTileQ, kTileKV, kGroup>;

 public:
  using Base::Base;

  // The next item of this block; false when there is none left.
  CUTE_DEVICE bool next(Item& item) {
    if (guess_request()) {
      this->fill(item);
      ++this->round_;
      this->enter_round();
    } else if (!Base::next(item)) {
      return false;
    }
    tile_begin_ = item.request.tile_begin;
    tiles_ = max((item.request.q_len * kGroup + kTileQ - 1) / kTileQ, 1);
    item.kv_head = take_kv_head(item.request, this->num_kv_heads_);
    return true;
  }

 private:
  // Of a round that is not the first: the record of the tile, if all records from the last one on
  // have as many tiles, as those of a pattern do. There are thousands of them, and a search reads
  // one after the other.
  CUTE_DEVICE bool guess_request() {
    if (this->on_line_ || this->round_ == 0) return false;
    int const guess = this->request_ + (this->tile_ - tile_begin_) / tiles_;
    if (guess < 0 || guess >= this->start().num_requests) return false;
    Request const* const records = this->plan_.requests() + guess;
    if (this->tile_ < records[0].tile_begin || this->tile_ >= records[1].tile_begin) return false;
    this->request_ = guess;
    return true;
  }

  int tile_begin_ = 0;  // of the last item's record
  int tiles_ = 1;       // and how many it has
};

}  // namespace cute_attn
