// How a thread block finds its items in a plan of fixed pieces: tiles are cut by a rule that knows
// their request alone (see `fixed_pieces` in cute_attn/abi/plan.py, and work.py, the twin).
#pragma once

#include <cute_attn/work.hpp>

namespace cute_attn {

// An item that knows the slots of all pieces of its tile: no cut does.
struct FixedPiece : Item {
  int first_slot;
  int num_slots;
};

template <int kTileQ, int kTileKV, int kGroup>
class PieceWalker : WorkWalker<kTileQ, kTileKV, kGroup> {
  using Base = WorkWalker<kTileQ, kTileKV, kGroup>;

 public:
  using Base::Base;

  // The next item of this block; false when there is none left.
  CUTE_DEVICE bool next(FixedPiece& item) {
    if (this->at_end()) return false;
    if (!this->at_start_) {
      while (this->tile_ >= this->plan_.requests()[this->request_ + 1].tile_begin) ++this->request_;
    }
    this->fill(item);
    int const blocks = item.block_end - item.block_begin;
    int const pieces = num_pieces(item.request, blocks);
    // Piece i begins at block i * blocks / pieces, rounded down.
    int const i = blocks > 0 ? (this->offset_ * pieces + blocks - 1) / blocks : 0;
    int const end = (i + 1) * blocks / pieces;
    item.block_end = item.block_begin + end;
    item.block_begin += this->offset_;
    if (pieces > 1) {
      item.slot = this->slot_++;
      item.first_slot = item.slot - i;
      item.num_slots = pieces;
    }
    bool const tile_ends = i + 1 == pieces;
    this->tile_ += tile_ends;
    this->offset_ = tile_ends ? 0 : end;
    item.last = this->at_end();
    return true;
  }

 private:
  static constexpr int kKeysOfSquare = 128;
  static constexpr int kMostPieces = 64;
  static constexpr int kMostRows = 1 << 14;

  // Pieces of a tile of so many KV blocks.
  CUTE_DEVICE int num_pieces(Request const& request, int blocks) const {
    int const squares = blocks * kTileKV / kKeysOfSquare;
    int root = static_cast<int>(sqrtf(static_cast<float>(squares)));
    root -= root * root > squares;  // in integers, whatever the approximation
    root += (root + 1) * (root + 1) <= squares;
    int const tiles = (request.q_len * kGroup + kTileQ - 1) / kTileQ * this->num_kv_heads_;
    int const most = min(kMostRows / (tiles * kTileQ), kMostPieces);
    return max(min(min(root, blocks), most), 1);
  }
};

}  // namespace cute_attn
