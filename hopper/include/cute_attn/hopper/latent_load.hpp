// Panels of a block of latent keys, by TMA or row by row.
#pragma once

#include <cute_attn/hopper/tile_copy.hpp>
#include <cute_attn/hopper/tma_load.hpp>

namespace cute_attn {

// `panels` panels of kRows contiguous rows, from column `column` of the map on.
template <int kRows, class Params, class Element>
CUTE_DEVICE void load_panels(Params const&, KVMap map, ContiguousBlock const& from,
                             FullBarrier& full, Element* tile, int column, int panels) {
  if (!cute::elect_one_sync()) return;
  full.arrive_and_expect_tx(panels * kRows * 64 * sizeof(Element));
  for (int panel = 0; panel < panels; ++panel) {
    cute::SM90_TMA_LOAD_4D::copy(&map.descriptor, reinterpret_cast<uint64_t*>(&full),
                                 static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL),
                                 tile + panel * kRows * 64, column + panel * 64, from.row,
                                 from.kv_head, 0);
  }
}

// The same in pages: boxes of params.box_rows rows of a panel.
template <int kRows, class Params, class Element>
CUTE_DEVICE void load_panels(Params const& params, KVMap map, PagedBlock const& from,
                             FullBarrier& full, Element* tile, int column, int panels) {
  if (cute::elect_one_sync()) {
    full.arrive_and_expect_tx(panels * kRows * 64 * sizeof(Element));
  }
  for (int box = 0; box * params.box_rows < kRows; ++box) {
    int const page = warp_uniform(from.page, box), row = warp_uniform(from.row, box);
    if (!cute::elect_one_sync()) continue;
    for (int panel = 0; panel < panels; ++panel) {
      cute::SM90_TMA_LOAD_4D::copy(&map.descriptor, reinterpret_cast<uint64_t*>(&full),
                                   static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL),
                                   tile + (panel * kRows + box * params.box_rows) * 64,
                                   column + panel * 64, row, from.kv_head, page);
    }
  }
}

// `panels` panels of the rows of a RowCopy with one row per thread: own is where that begins.
template <class Rows, int kRows, class Element>
CUTE_DEVICE void copy_panels(Element const* own, Element* tile, int panels, int thread) {
  CUTE_UNROLL
  for (int pass = 0; pass < Rows::kPasses; ++pass) {
    auto const row = __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(own), pass, 8);
    Element const* const from = reinterpret_cast<Element const*>(row) + thread % 8 * 8;
    for (int panel = 0; panel < panels; ++panel) {
      cute::SM80_CP_ASYNC_CACHEGLOBAL<cute::uint128_t>::copy(
          *reinterpret_cast<cute::uint128_t const*>(from + panel * 64),
          *reinterpret_cast<cute::uint128_t*>(tile + Rows::place(pass, panel, thread)));
    }
  }
}

}  // namespace cute_attn
