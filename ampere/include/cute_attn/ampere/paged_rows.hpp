// Where the keys of a KV block are: pages named by the request's page table.
#pragma once

#include <cute_attn/ampere/copy.hpp>
#include <cute_attn/paging.hpp>

namespace cute_attn::ampere {

// The pages of the keys of one KV block that this thread copies. fetch() runs well before copy(),
// so that the latency of the table is hidden.
template <int kKeys, int kThreads>
struct BlockPages {
  static constexpr int kRowsPerCopy = kThreads / kThreadsPerRow;
  static constexpr int kCopies = kKeys / kRowsPerCopy;

  int page[kCopies];

  // `table` is the request's page table; `thread` is this thread's number among kThreads.
  CUTE_DEVICE void fetch(int const* table, PageDivider divider, int first_key, int kv_len,
                         unsigned thread) {
    CUTE_UNROLL
    for (int i = 0; i < kCopies; ++i) {
      int const key = first_key + int(thread / kThreadsPerRow) + i * kRowsPerCopy;
      page[i] = __ldg(table + divider.page_of(min(key, kv_len - 1)));
    }
  }

  // Copies keys [first_key, first_key + kKeys); `head` points to the KV head in page 0, from
  // first_column() on. Keys at or past kv_len become zeros.
  template <int kHeadDim, class Element>
  CUTE_DEVICE void copy(Element const* head, int64_t page_stride, int64_t token_stride,
                        PageDivider divider, int first_key, int kv_len, unsigned thread,
                        Element* tile) const {
    int const thread_row = thread / kThreadsPerRow;
    ChunkOffset const mine(thread_row, thread % kThreadsPerRow);
    CUTE_UNROLL
    for (int i = 0; i < kCopies; ++i) {
      int const key = first_key + thread_row + i * kRowsPerCopy;
      int const present = min(key, kv_len - 1);
      int const row_in_page = divider.row_in_page(present, divider.page_of(present));
      Element const* source = head + page[i] * page_stride + row_in_page * token_stride;
      copy_row<kKeys, kHeadDim>(source, tile, mine, i * kRowsPerCopy, key < kv_len);
    }
  }
};

}  // namespace cute_attn::ampere
