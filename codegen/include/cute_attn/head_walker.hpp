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
    if (!Base::next(item)) return false;
    item.kv_head = take_kv_head(item.request, this->num_kv_heads_);
    return true;
  }
};

}  // namespace cute_attn
