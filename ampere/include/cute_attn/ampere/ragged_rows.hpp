// Where the keys of a KV block are: contiguous rows of the request.
#pragma once

#include <cute_attn/ampere/copy.hpp>

namespace cute_attn::ampere {

// Copies keys [first_key, first_key + kKeys) of one request and head; `rows` points to key 0, from
// first_column() on. kTail: keys at or past kv_len become zeros; else there are none. The copy is
// shared by kThreads threads, of which this is `thread`.
template <bool kTail, int kKeys, int kHeadDim, int kThreads, class Element>
CUTE_DEVICE void copy_keys(Element const* rows, int64_t token_stride, int first_key, int kv_len,
                           unsigned thread, Element* tile) {
  constexpr int kRowsPerCopy = kThreads / kThreadsPerRow;
  int const thread_row = thread / kThreadsPerRow;
  ChunkOffset const mine(thread_row, thread % kThreadsPerRow);
  int64_t const step = opaque(kRowsPerCopy * token_stride);
  Element const* source = rows + (first_key + thread_row) * token_stride;
  CUTE_UNROLL
  for (int row = 0; row < kKeys; row += kRowsPerCopy) {
    bool const exists = !kTail || first_key + thread_row + row < kv_len;
    copy_row<kKeys, kHeadDim>(source, tile, mine, row, exists);
    source += step;
  }
}

}  // namespace cute_attn::ampere
