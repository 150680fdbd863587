// Panels: how the columns of a tile are divided in shared memory (codegen.smem_tile.panel_columns).
#pragma once

#include <cute/config.hpp>

namespace cute_attn {

// Columns of a panel: 64, whose rows of 128 bytes have the widest swizzle, or 32 where those pad
// less. The last panel may be padded. Nobody reads the padding; TMA fills it with zeros, cp.async
// leaves it.
template <int kColumns>
constexpr int kPanelColumns = kColumns % 64 == 0 || kColumns % 64 > 32 ? 64 : 32;

template <int kColumns>
constexpr int kPanels = (kColumns + kPanelColumns<kColumns> - 1) / kPanelColumns<kColumns>;

// Elements of a tile.
template <int kRows, int kColumns>
constexpr int kTileElements = kRows * kPanels<kColumns> * kPanelColumns<kColumns>;

// Element offset (codegen.smem_tile.SmemTile.offset) of 16-byte piece `piece` of row `row` in a
// tile of kRows rows in panels.
template <int kRows, int kPanel>
CUTE_HOST_DEVICE constexpr int swizzled_offset(int row, int piece) {
  constexpr int kPieces = kPanel / 8;  // of a row
  int const place = (piece ^ row * kPieces / 8) % kPieces;
  return (piece / kPieces) * kRows * kPanel + row * kPanel + place * 8;
}

}  // namespace cute_attn
