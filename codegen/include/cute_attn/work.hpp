// How a thread block finds its items in the plan.
//
// The C++ twin of cute_attn/abi/work.py, where the terms are explained; the layout of the buffer is
// documented in cute_attn/abi/plan.py. Every thread of a block may walk on its own: the loads are
// uniform and there is no communication.
#pragma once

#include <cute/config.hpp>

namespace cute_attn {

struct PlanHeader {
  int num_requests;
  int num_tiles;
  int num_whole_tiles;
  int num_split_tiles;
  int window_left;
  int window_right;
  int num_slots;
  int tile_q;
  int tile_kv;
  int group;
  int num_kv_heads;
  int num_blocks;
  int first_listed_round;
  int places;
  int fixed_pieces;
  int reserved;
};
static_assert(sizeof(PlanHeader) == 64);

struct Cut {
  int tile;
  int block;
  int request;
  int slot;
  int first_slot;
  int num_slots;
};
static_assert(sizeof(Cut) == 24);

struct Split {
  int tile;
  int request;
  int first_slot;
  int num_slots;
};
static_assert(sizeof(Split) == 16);

struct Request {
  int q_start;
  int q_len;
  int kv_start;
  int kv_len;
  int q_pos;
  int kv_pos;
  int tile_begin;
  unsigned meta;

  CUTE_DEVICE int batch() const { return meta & 0xFFFFF; }
  CUTE_DEVICE int level() const { return (meta >> 20) & 0xF; }
  CUTE_DEVICE int section_heads() const { return (meta >> 24) & 0x7F; }
  CUTE_DEVICE int shape() const { return meta >> 31; }
};
static_assert(sizeof(Request) == 32);

// All that a block needs for its first item, in 64 bytes.
struct alignas(16) Start {
  int tile;
  int request;
  int window_left;
  int window_right;
  Request record;
  int num_whole_tiles;
  int num_requests;
  int first_listed_round;
  int places;
};
static_assert(sizeof(Start) == 64);

struct Plan {
  int const* buffer;
  int num_blocks;

  CUTE_DEVICE PlanHeader const& header() const {
    return *reinterpret_cast<PlanHeader const*>(buffer);
  }
  CUTE_DEVICE Start const& start(int i) const {
    return reinterpret_cast<Start const*>(buffer + 16)[i];
  }
  CUTE_DEVICE Split split(int i) const {
    return reinterpret_cast<Split const*>(buffer + 16 + 16 * num_blocks)[i];
  }
  CUTE_DEVICE Cut const& cut(int i) const {
    return reinterpret_cast<Cut const*>(buffer + 16 + 20 * num_blocks)[i];
  }
  CUTE_DEVICE Request const* requests() const {
    int const cuts_end = 16 + 20 * num_blocks + 6 * (num_blocks + 1);
    return reinterpret_cast<Request const*>(buffer + (cuts_end + 7) / 8 * 8);
  }
};

// Where a tile lies: its KV head and the first of its packed query rows.
struct TilePlace {
  int kv_head;
  int row_begin;
};

template <int kTileQ, int kGroup>
CUTE_DEVICE TilePlace locate_tile(Request const& request, int local, int num_kv_heads) {
  int q_tiles = (request.q_len * kGroup + kTileQ - 1) / kTileQ;
  int section_tiles = q_tiles * request.section_heads();
  int section = local / section_tiles;
  int rest = local - section * section_tiles;
  int first_head = section * request.section_heads();
  int heads = min(request.section_heads(), num_kv_heads - first_head);
  int step = rest / heads;
  return {first_head + rest - step * heads, (q_tiles - 1 - step) * kTileQ};
}

struct Item {
  Request request;
  int kv_head;
  int row_begin;    // first packed query row of the tile
  int num_rows;     // packed query rows in the tile, 1 .. tile_q
  int block_begin;  // KV blocks [block_begin, block_end) of tile_kv keys, from the request's key 0
  int block_end;
  int interior_begin;  // blocks [interior_begin, interior_end) are visible to every row as far as
  int interior_end;    // the band decides; the range may be empty or reach past the item
  int slot;   // partial slot to write, or -1: the item is its whole tile and writes the output
  int cut;    // if slot >= 0: a cut inside the tile, which knows the slots of all its pieces
  bool last;  // if slot >= 0: the block has no more items
};

template <int kTileQ, int kTileKV, int kGroup>
class WorkWalker {
 public:
  // Loads that do not wait for each other (tile and num_whole_tiles: both sectors of the start):
  // the plan may have to come from HBM, and nothing else happens before the first item is known.
  CUTE_DEVICE WorkWalker(int const* plan, int num_kv_heads)
      : plan_{plan, static_cast<int>(gridDim.x)}, num_kv_heads_(num_kv_heads) {
    Cut const first = plan_.cut(blockIdx.x);
    last_ = plan_.cut(blockIdx.x + 1);
    tile_ = start().tile;
    request_ = start().request;
    if (tile_ >= start().num_whole_tiles) enter_line(first);
  }

  // The next item of this block; false when there is none left.
  CUTE_DEVICE bool next(Item& item) {
    if (!on_line_) {
      if (round_ > 0) request_ = find_request(tile_);
      fill(item);
      ++round_;
      enter_round();
      return true;
    }
    if (at_end()) return false;
    if (!at_start_) {
      while (tile_ >= plan_.requests()[request_ + 1].tile_begin) ++request_;
    }
    fill(item);
    int begin = item.block_begin + offset_;
    int end = tile_ == last_.tile ? item.block_begin + last_.block : item.block_end;
    if (offset_ > 0) {
      item.slot = slot_;
      item.cut = blockIdx.x;
    } else if (end < item.block_end) {
      item.slot = last_.slot - 1;
      item.cut = blockIdx.x + 1;
    }
    item.block_begin = begin;
    item.block_end = end;
    ++tile_;
    offset_ = 0;
    item.last = at_end();
    return true;
  }

 protected:
  CUTE_DEVICE Start const& start() const { return plan_.start(blockIdx.x); }

  CUTE_DEVICE bool at_end() const {
    return tile_ > last_.tile || (tile_ == last_.tile && offset_ >= last_.block);
  }

  // This block's tile of the round; the line if it has none.
  CUTE_DEVICE void enter_round() {
    int blocks = gridDim.x, block = blockIdx.x;
    tile_ = round_ * blocks;
    if (tile_ < start().num_whole_tiles) {
      int const first_listed = start().first_listed_round;
      if (round_ < first_listed) {  // snake order: upwards through the blocks, then downwards
        tile_ += round_ % 2 ? blocks - 1 - block : block;
      } else {
        auto places = reinterpret_cast<unsigned short const*>(plan_.buffer + start().places);
        tile_ = first_listed * blocks + places[(round_ - first_listed) * blocks + block];
      }
    }
    if (tile_ >= start().num_whole_tiles) enter_line(plan_.cut(block));
  }

  CUTE_DEVICE void enter_line(Cut const& first) {
    tile_ = first.tile;
    offset_ = first.block;
    request_ = first.request;
    slot_ = first.slot;
    on_line_ = true;
  }

  // Records are sorted by tile_begin; the one that holds `tile` is the last that begins at or
  // before it (records of empty requests share a tile_begin with their successor). Listed rounds
  // may go back to earlier records.
  CUTE_DEVICE int find_request(int tile) const {
    int low = tile >= plan_.requests()[request_].tile_begin ? request_ : 0;
    int high = start().num_requests;
    while (high - low > 1) {
      int middle = (low + high) / 2;
      if (plan_.requests()[middle].tile_begin <= tile) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }

  CUTE_DEVICE void fill(Item& item) {
    Request const request = at_start_ ? start().record : plan_.requests()[request_];
    at_start_ = false;
    TilePlace place =
        locate_tile<kTileQ, kGroup>(request, tile_ - request.tile_begin, num_kv_heads_);
    item.request = request;
    item.kv_head = place.kv_head;
    item.row_begin = place.row_begin;
    item.num_rows = min(kTileQ, request.q_len * kGroup - place.row_begin);
    item.slot = -1;
    item.cut = -1;

    int first_token = item.row_begin / kGroup;
    int last_token = (item.row_begin + item.num_rows - 1) / kGroup;
    int shift = request.q_pos - request.kv_pos;
    int low = max(shift + first_token - start().window_left, 0);
    int high = min(shift + last_token + start().window_right + 1, request.kv_len);
    item.block_begin = low / kTileKV;
    item.block_end = high > low ? (high + kTileKV - 1) / kTileKV : item.block_begin;
    int interior_low = max(shift + last_token - start().window_left, 0);
    int interior_high = max(min(shift + first_token + start().window_right + 1, request.kv_len), 0);
    item.interior_begin = (interior_low + kTileKV - 1) / kTileKV;
    item.interior_end = interior_high / kTileKV;
  }

  Plan plan_;
  int num_kv_heads_;
  int tile_ = 0;
  int offset_ = 0;
  int request_ = 0;
  int slot_ = -1;
  int round_ = 0;
  bool on_line_ = false;
  bool at_start_ = true;
  Cut last_;
};

}  // namespace cute_attn
