// Tiles by cp.async, row by row from anywhere in global memory: packed query rows that are no TMA
// box, and KV rows through a page table of any page size.
#pragma once

#include <cute_attn/hopper/tile_copy.hpp>
#include <cute_attn/paging.hpp>
#include <cute_attn/work.hpp>

namespace cute_attn {

// The packed query rows (token, head of the group) of items, kTileQ of kColumns columns.
template <class Params, class Element, int kTileQ, int kColumns, int kGroup>
struct QueryRows {
  CUTE_DEVICE static Element const* row(Params const& params, Item const& item, int row) {
    int const packed = item.row_begin + row;
    int64_t const token = item.request.q_start + packed / kGroup;
    int64_t const head = item.kv_head * kGroup + packed % kGroup;
    return params.q + token * params.q_token_stride + head * params.q_head_stride;
  }

  // By any number of threads; rows past the end become zero. An item without KV blocks needs none.
  CUTE_DEVICE static void load(Params const& params, Item const& item, Element* tile, int thread,
                               int threads) {
    constexpr int kPieces = kColumns / 8;  // 16-byte pieces of a row
    if (item.block_begin == item.block_end) return;
#pragma unroll 1  // few registers: the copies are asynchronous anyway
    for (int i = thread; i < kTileQ * kPieces; i += threads) {
      int const at = i / kPieces, piece = i % kPieces;
      bool const valid = at < item.num_rows;
      Element const* from = row(params, item, at) + piece * 8;
      copy_16_bytes(tile + swizzled_offset<kTileQ, kPanelColumns<kColumns>>(at, piece),
                    valid ? from : params.q, valid);
    }
  }

  // By kThreads threads, addresses shared (RowCopy); rows past the end repeat the last one.
  template <int kThreads>
  CUTE_DEVICE static void load_whole(Params const& params, Item const& item, Element* tile,
                                     int thread) {
    using Rows = RowCopy<kTileQ, kColumns, kThreads>;
    Element const* own[Rows::kOwn];
    CUTE_UNROLL
    for (int i = 0; i < Rows::kOwn; ++i) {
      own[i] = row(params, item, min(Rows::own_row(i, thread), item.num_rows - 1));
    }
    Rows::copy(own, tile, thread);
  }
};

// The rows of a request's KV blocks whose pages and addresses this thread looks up (RowCopy: kOwn
// of the kTileKV rows of a block). Keys past the end of the request repeat its last one: the
// consumers mask them in K and zero them in V.
template <class Params, class Rows, int kTileKV>
struct PagedRows {
  Params const& params;
  int thread;
  PageDivider divider;

  CUTE_DEVICE PagedRows(Params const& params, int thread)
      : params(params),
        thread(thread),
        divider{params.page_size, params.page_magic, params.page_shift} {}

  CUTE_DEVICE int own_key(Request const& request, int block, int i) const {
    return max(min(block * kTileKV + Rows::own_row(i, thread), request.kv_len - 1), 0);
  }

  // The pages of the own rows of a block, which are the same for K and V.
  CUTE_DEVICE void look_up(Request const& request, int block, int (&pages)[Rows::kOwn]) const {
    CUTE_UNROLL
    for (int i = 0; i < Rows::kOwn; ++i) {
      int const page = divider.page_of(own_key(request, block, i));
      pages[i] = params.page_table[request.kv_start + page];
    }
  }

  // Where the own rows of a block begin in a pool, from the first row of a head on.
  template <class Element>
  CUTE_DEVICE void locate(Request const& request, int block, int const (&pages)[Rows::kOwn],
                          Element const* head, int64_t page_stride, int64_t token_stride,
                          Element const* (&own)[Rows::kOwn]) const {
    CUTE_UNROLL
    for (int i = 0; i < Rows::kOwn; ++i) {
      int const key = own_key(request, block, i);
      int const row = divider.row_in_page(key, divider.page_of(key));
      own[i] = head + pages[i] * page_stride + row * token_stride;
    }
  }
};

}  // namespace cute_attn
