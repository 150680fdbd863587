// Tiles by TMA: boxes of up to 256 rows, one or more per panel of the tile (layout:
// see wgmma.hpp). The full barrier counts the bytes of whole boxes, padding and zeros included.
#pragma once

#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm90_desc.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute_attn/hopper/ring.hpp>
#include <cute_attn/hopper/tile_copy.hpp>
#include <cute_attn/hopper/wgmma.hpp>
#include <cute_attn/paging.hpp>
#include <cute_attn/work.hpp>

namespace cute_attn {

// K or V. page_groups: for GroupedBlock.
struct KVMap {
  cute::TmaDescriptor const& descriptor;
  int page_groups = 0;
};

// Where a KV block of contiguous rows lies.
struct ContiguousBlock {
  int kv_head;
  int row;  // first one

  template <int kRows, class Params>
  CUTE_DEVICE static ContiguousBlock locate(Params const&, KVMap, Item const& item, int block,
                                            int) {
    return {item.kv_head, item.request.kv_start + block * kRows};
  }
};

// Where a KV block lies in the pages of a pool: lane i holds it for box i of params.box_rows rows.
struct PagedBlock {
  int kv_head;
  int page;  // in the pool
  int row;   // in the page

  // Boxes past the request's last page point past the pool, where TMA fills with zeros.
  template <int kRows, class Params>
  CUTE_DEVICE static PagedBlock locate(Params const& params, KVMap, Item const& item, int block,
                                       int lane) {
    PageDivider const divider{params.page_size, params.page_magic, params.page_shift};
    int const token = block * kRows + lane * params.box_rows;
    int const page = divider.page_of(token);
    bool const inside = token < item.request.kv_len;
    return {item.kv_head,
            inside ? params.page_table[item.request.kv_start + page] : params.num_pages,
            divider.row_in_page(token, page)};
  }
};

// The same for a map that counts groups of eight rows: a box is whole groups of a page, all panels
// of them. Pages whose distance is a whole number of groups, page_groups, are counted in groups as
// well; for others (page_groups 0) a box is one group, and begins at a row of a page.
struct GroupedBlock {
  int kv_head;
  int row;    // in the page, or 0 if groups are counted through
  int group;  // of the pool, or the page

  template <int kRows, class Params>
  CUTE_DEVICE static GroupedBlock locate(Params const& params, KVMap map, Item const& item,
                                         int block, int lane) {
    PagedBlock const at = PagedBlock::locate<kRows>(params, map, item, block, lane);
    if (map.page_groups == 0) return {at.kv_head, at.row, at.page};
    return {at.kv_head, 0, at.page * map.page_groups + at.row / 8};
  }
};

// Publishes an item with its Q tile of kTileQ packed rows, by one thread: a box of kTileQ / kGroup
// tokens x kGroup heads per panel of columns lands as packed rows. Rows past the end of the
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
  constexpr int kPanel = kPanelColumns<kHeadDim>;
  full.arrive_and_expect_tx(kTileElements<kTileQ, kHeadDim> * sizeof(Element));  // whole boxes
  int const token = item.request.q_start + item.row_begin / kGroup;
  CUTE_UNROLL
  for (int panel = 0; panel < kPanels<kHeadDim>; ++panel) {
    cute::SM90_TMA_LOAD_3D::copy(&q_map, reinterpret_cast<uint64_t*>(&full),
                                 static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST),
                                 tile + panel * kTileQ * kPanel, panel * kPanel,
                                 item.kv_head * kGroup, token);
  }
}

// One K or V block of contiguous rows: a box of kRows rows per panel.
template <int kRows, int kHeadDim, class Params, class Element>
CUTE_DEVICE void load_block(Params const&, KVMap map, ContiguousBlock const& from,
                            FullBarrier& full, Element* tile) {
  constexpr int kPanel = kPanelColumns<kHeadDim>;
  if (!cute::elect_one_sync()) return;
  full.arrive_and_expect_tx(kTileElements<kRows, kHeadDim> * sizeof(Element));
  CUTE_UNROLL
  for (int panel = 0; panel < kPanels<kHeadDim>; ++panel) {
    cute::SM90_TMA_LOAD_4D::copy(&map.descriptor, reinterpret_cast<uint64_t*>(&full),
                                 static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST),
                                 tile + panel * kRows * kPanel, panel * kPanel, from.row,
                                 from.kv_head, 0);
  }
}

// One K or V block in pages: boxes of params.box_rows rows of a panel. One lane issues them all:
// with the same coordinates in all lanes an issue takes a few instructions, with different ones a
// loop over lanes.
template <int kRows, int kHeadDim, class Params, class Element>
CUTE_DEVICE void load_block(Params const& params, KVMap map, PagedBlock const& from,
                            FullBarrier& full, Element* tile) {
  constexpr int kPanel = kPanelColumns<kHeadDim>;
  if (cute::elect_one_sync()) {
    full.arrive_and_expect_tx(kTileElements<kRows, kHeadDim> * sizeof(Element));
  }
#pragma unroll 2
  for (int box = 0; box * params.box_rows < kRows; ++box) {
    int const page = warp_uniform(from.page, box), row = warp_uniform(from.row, box);
    if (!cute::elect_one_sync()) continue;
    CUTE_UNROLL
    for (int panel = 0; panel < kPanels<kHeadDim>; ++panel) {
      cute::SM90_TMA_LOAD_4D::copy(&map.descriptor, reinterpret_cast<uint64_t*>(&full),
                                   static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST),
                                   tile + (panel * kRows + box * params.box_rows) * kPanel,
                                   panel * kPanel, row, from.kv_head, page);
    }
  }
}

// The same, a box of params.box_rows rows x all columns.
template <int kRows, int kHeadDim, class Params, class Element>
CUTE_DEVICE void load_block(Params const& params, KVMap map, GroupedBlock const& from,
                            FullBarrier& full, Element* tile) {
  if (cute::elect_one_sync()) full.arrive_and_expect_tx(kRows * kHeadDim * sizeof(Element));
#pragma unroll 2
  for (int box = 0; box * params.box_rows < kRows; ++box) {
    int const group = warp_uniform(from.group, box), row = warp_uniform(from.row, box);
    if (!cute::elect_one_sync()) continue;
    cute::SM90_TMA_LOAD_5D::copy(&map.descriptor, reinterpret_cast<uint64_t*>(&full),
                                 static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST),
                                 tile + box * params.box_rows * kHeadDim, 0, row, 0, from.kv_head,
                                 group);
  }
}

}  // namespace cute_attn
