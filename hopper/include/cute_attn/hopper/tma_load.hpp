// Tiles by TMA: boxes of up to 256 rows x 64 columns, one or more per chunk of the tile (layout:
// see wgmma.hpp). The full barrier counts the bytes of whole boxes, padding and zeros included.
#pragma once

#include <cute/arch/copy_sm90_desc.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute_attn/hopper/ring.hpp>
#include <cute_attn/hopper/tile_copy.hpp>
#include <cute_attn/paging.hpp>
#include <cute_attn/work.hpp>

namespace cute_attn {

// A KV block of a request and KV head.
struct KVBlock {
  int kv_start, kv_len;  // of the request
  int kv_head;
  int block;
};

// Publishes an item with its Q tile of kTileQ packed rows, by one thread: a box of kTileQ / kGroup
// tokens x kGroup heads x 64 columns per chunk lands as packed rows. Rows past the end of the
// request are other queries, or zeros past the tensor; what becomes of them is not written. An item
// without rows (the end) or without KV blocks needs no queries.
template <int kTileQ, int kHeadDim, int kGroup, class Element>
CUTE_DEVICE void publish_item(cute::TmaDescriptor const& q_map, Item const& item, Item& record,
                              FullBarrier& full, Element* tile) {
  record = item;
  __threadfence_block();  // the record before the arrival: also for the compiler
  if (item.num_rows == 0 || item.block_begin == item.block_end) {
    full.arrive();
    return;
  }
  full.arrive_and_expect_tx(kChunks<kHeadDim> * kTileQ * 64 * sizeof(Element));  // whole boxes
  int const token = item.request.q_start + item.row_begin / kGroup;
  CUTE_UNROLL
  for (int chunk = 0; chunk < kChunks<kHeadDim>; ++chunk) {
    cute::SM90_TMA_LOAD_3D::copy(&q_map, reinterpret_cast<uint64_t*>(&full),
                                 static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST),
                                 tile + chunk * kTileQ * 64, chunk * 64, item.kv_head * kGroup,
                                 token);
  }
}

// One K or V block of kRows contiguous rows: a box of kRows rows x 64 columns per chunk, one lane.
template <int kRows, int kHeadDim, class Element>
CUTE_DEVICE void load_block(cute::TmaDescriptor const& map, KVBlock const& from, FullBarrier& full,
                            Element* tile, int lane) {
  if (lane != 0) return;
  full.arrive_and_expect_tx(kRows * kChunks<kHeadDim> * 64 * sizeof(Element));
  CUTE_UNROLL
  for (int chunk = 0; chunk < kChunks<kHeadDim>; ++chunk) {
    cute::SM90_TMA_LOAD_4D::copy(&map, reinterpret_cast<uint64_t*>(&full),
                                 static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST),
                                 tile + chunk * kRows * 64, chunk * 64,
                                 from.kv_start + from.block * kRows, from.kv_head, 0);
  }
}

// One K or V block through the page table: boxes of params.box_rows rows x 64 columns, one lane per
// box. Boxes past the request's last page point past the pool, where TMA fills with zeros.
template <int kRows, int kHeadDim, class Params, class Element>
CUTE_DEVICE void load_pages(Params const& params, cute::TmaDescriptor const& map,
                            KVBlock const& from, FullBarrier& full, Element* tile, int lane) {
  PageDivider const divider{params.page_size, params.page_magic, params.page_shift};
  if (lane == 0) full.arrive_and_expect_tx(kRows * kChunks<kHeadDim> * 64 * sizeof(Element));
  __syncwarp();
  int const boxes = kRows / params.box_rows;
  for (int i = lane; i < boxes * kChunks<kHeadDim>; i += 32) {
    int const chunk = i / boxes, row = (i - chunk * boxes) * params.box_rows;
    int const token = from.block * kRows + row;
    int const page = divider.page_of(token);
    int const pool_page =
        token < from.kv_len ? params.page_table[from.kv_start + page] : params.num_pages;
    cute::SM90_TMA_LOAD_4D::copy(&map, reinterpret_cast<uint64_t*>(&full),
                                 static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST),
                                 tile + chunk * kRows * 64 + row * 64, chunk * 64,
                                 divider.row_in_page(token, page), from.kv_head, pool_page);
  }
}

}  // namespace cute_attn
