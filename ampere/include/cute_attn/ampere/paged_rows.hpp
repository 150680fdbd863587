// Where the keys of a KV block are: pages named by the request's page table.
#pragma once

#include <cute_attn/ampere/copy.hpp>
#include <cute_attn/paging.hpp>

namespace cute_attn::ampere {

// The rows of the keys of one KV block that this thread copies: locate(), then load() well before
// copy(), so that the latency of the table is hidden.
template <int kKeys, int kThreads>
struct BlockPages {
  static constexpr int kRowsPerCopy = kThreads / kThreadsPerRow;
  static constexpr int kCopies = kKeys / kRowsPerCopy;

  int page[kCopies];  // entries of the table, then what they hold
  int row[kCopies];   // in the page

  // The keys are [first_key, first_key + kKeys); `thread` is this thread's number among kThreads.
  CUTE_DEVICE void locate(PageDivider divider, int first_key, int kv_len, unsigned thread) {
    CUTE_UNROLL
    for (int i = 0; i < kCopies; ++i) {
      int const key = first_key + int(thread / kThreadsPerRow) + i * kRowsPerCopy;
      int const present = min(key, kv_len - 1);
      page[i] = divider.page_of(present);
      row[i] = divider.row_in_page(present, page[i]);
    }
  }

  // `table` is the request's page table.
  CUTE_DEVICE void load(int const* table) {
    CUTE_UNROLL
    for (int i = 0; i < kCopies; ++i) page[i] = __ldg(table + page[i]);
  }

  // Copies the keys of locate(); `head` points to the KV head in page 0, from first_column() on.
  // Strides are below 2^31, as the host has checked. kTail: keys at or past kv_len become zeros;
  // else there are none.
  template <bool kTail, int kHeadDim, class Element>
  CUTE_DEVICE void copy(Element const* head, int64_t page_stride, int64_t token_stride,
                        int first_key, int kv_len, unsigned thread, Element* tile) const {
    int const thread_row = thread / kThreadsPerRow;
    ChunkOffset const mine(thread_row, thread % kThreadsPerRow);
    CUTE_UNROLL
    for (int i = 0; i < kCopies; ++i) {
      int const key = first_key + thread_row + i * kRowsPerCopy;
      Element const* source =
          head + wide_product(page[i], page_stride) + wide_product(row[i], token_stride);
      copy_row<kKeys, kHeadDim>(source, tile, mine, i * kRowsPerCopy, !kTail || key < kv_len);
    }
  }
};

// The same with fewer registers: where a key is in its page is computed a second time.
template <int kKeys, int kThreads>
struct CompactBlockPages {
  using Rows = BlockPages<kKeys, kThreads>;

  int page[Rows::kCopies];
  PageDivider divider;

  CUTE_DEVICE void locate(PageDivider by, int first_key, int kv_len, unsigned thread) {
    divider = by;
    Rows rows;
    rows.locate(divider, first_key, kv_len, thread);
    CUTE_UNROLL
    for (int i = 0; i < Rows::kCopies; ++i) page[i] = rows.page[i];
  }

  CUTE_DEVICE void load(int const* table) {
    CUTE_UNROLL
    for (int i = 0; i < Rows::kCopies; ++i) page[i] = __ldg(table + page[i]);
  }

  template <bool kTail, int kHeadDim, class Element>
  CUTE_DEVICE void copy(Element const* head, int64_t page_stride, int64_t token_stride,
                        int first_key, int kv_len, unsigned thread, Element* tile) const {
    Rows rows;
    rows.locate(divider, first_key, kv_len, thread);
    CUTE_UNROLL
    for (int i = 0; i < Rows::kCopies; ++i) rows.page[i] = page[i];
    rows.template copy<kTail, kHeadDim>(head, page_stride, token_stride, first_key, kv_len, thread,
                                        tile);
  }
};

}  // namespace cute_attn::ampere
