// Requests sorted, and their tiles as runs of equal ones; the C++ text of
// cute_attn/scheduler/tiles.py.
#pragma once

#include <cute_attn_bundle/plan_types.hpp>
#include <numeric>
#include <utility>

namespace cute_attn_planner {

// KV blocks that a tile of packed query rows [row, row_end) visits; shift is q_pos - kv_pos.
inline std::int64_t visible_blocks(Geometry const& geometry, std::int64_t shift,
                                   std::int64_t kv_len, std::int64_t row, std::int64_t row_end) {
  std::int64_t high = kv_len;
  if (geometry.window_right != kUnbounded) {
    std::int64_t const last =
        shift + floor_divide(row_end - 1, geometry.group) + (geometry.window_right + 1);
    high = std::max<std::int64_t>(std::min(last, kv_len), 0);
  }
  std::int64_t const blocks = ceil_divide(high, geometry.tile_kv);
  if (geometry.window_left == kUnbounded) return blocks;
  std::int64_t const low =
      std::max<std::int64_t>(shift + (row / geometry.group - geometry.window_left), 0);
  return high > low ? blocks - low / geometry.tile_kv : 0;
}

// A request in plan order.
struct Record {
  Request request;
  std::int64_t q_tiles;      // per KV head
  std::int64_t last_blocks;  // KV blocks of the tile with the last query rows
  std::int64_t block_cost;
  std::int64_t partial_cost;  // of writing one partial result of a tile
  std::int64_t merge_cost;    // of reading it again
  std::int64_t min_piece;     // no piece of a split tile is shorter than this many KV blocks
  std::int64_t section_heads;
};

// One query tile of a record under the KV heads of one section.
struct Run {
  std::int64_t record;
  std::int64_t heads;   // tiles
  std::int64_t blocks;  // KV blocks of each
  std::int64_t tile_cost;
  std::int64_t tile_begin;  // tiles before it
  std::int64_t cost_begin;  // cost before it
};

// All tiles of a step in plan order.
struct Tiles {
  std::vector<Record> records;
  std::vector<Run> runs;
  std::int64_t most_q_tiles = 0;
  std::int64_t num_tiles = 0;
  std::int64_t total_cost = 0;

  Record const& record_of(std::int64_t run) const { return records[runs[run].record]; }
};

// Sorts requests by the cost of their last tile, falling; ties by index, those without queries
// last.
inline void sort_requests(std::vector<Request> const& requests, Geometry const& geometry,
                          Costs const& costs, PlanOptions const& options, Tiles& tiles) {
  std::int64_t const zero = 0, one = 1;
  std::size_t const count = requests.size();
  std::int64_t const heads = geometry.num_kv_heads;
  Numbers q_tiles(count), blocks(count);
  std::int64_t loaded = 0, computed = 0;
  bool has_single = false;
  for (std::size_t i = 0; i < count; ++i) {
    Request const& r = requests[i];
    std::int64_t const packed = r.q_len * geometry.group;
    q_tiles[i] = ceil_divide(packed, geometry.tile_q);
    tiles.most_q_tiles = std::max(tiles.most_q_tiles, q_tiles[i]);
    std::int64_t const last_row = std::max(q_tiles[i] - 1, zero) * geometry.tile_q;
    std::int64_t const shift = r.q_pos - r.kv_pos;
    blocks[i] = visible_blocks(geometry, shift, r.kv_len, last_row, packed);
    loaded += blocks[i];
    has_single = has_single || q_tiles[i] == 1;
    if (q_tiles[i] > 1) {  // in between the visible range grows evenly
      std::int64_t const end = std::min(packed, geometry.tile_q);
      std::int64_t const first = visible_blocks(geometry, shift, r.kv_len, 0, end);
      computed += q_tiles[i] * (first + blocks[i]);
    }
  }
  bool const is_decode = tiles.most_q_tiles <= 1;
  std::int64_t read = costs.read_block(geometry);
  if (!is_decode && has_single) read = costs.read_block_in_step(geometry, loaded, computed / 2);
  Numbers block_cost(count);
  std::vector<std::pair<std::int64_t, std::size_t>> order(count);  // the cost, negative; the index
  for (std::size_t i = 0; i < count; ++i) {
    block_cost[i] = costs.block(geometry, is_decode ? one : q_tiles[i], read);
    std::int64_t const tile_cost = is_decode ? blocks[i] : blocks[i] * block_cost[i];
    order[i] = {q_tiles[i] > 0 ? -tile_cost - 1 : 0, i};
  }
  std::sort(order.begin(), order.end());
  bool const one_section = heads <= kMaxSectionHeads;
  std::int64_t const most_heads = std::min(heads, kMaxSectionHeads);
  std::int64_t const least_piece = 63 / geometry.tile_kv + 1;  // 64 keys
  tiles.records.reserve(count);
  for (auto const& [cost, i] : order) {
    Request const& r = requests[i];
    std::int64_t const rows = std::min(r.q_len * geometry.group, geometry.tile_q);
    std::int64_t fit = heads;
    if (!is_decode || !one_section) {
      std::int64_t const shared = options.l2_budget / std::max(r.kv_len * costs.key_bytes, one);
      fit = q_tiles[i] > 1 ? std::max(std::min(shared, most_heads), one) : most_heads;
    }
    std::int64_t const partial_cost = rows * costs.partial_row_ps / 1000;
    std::int64_t const piece = std::max(ceil_divide(partial_cost, block_cost[i]), least_piece);
    tiles.records.push_back(Record{r, q_tiles[i], blocks[i], block_cost[i], partial_cost,
                                   rows * costs.merge_row_ps / 1000,
                                   options.min_piece > 0 ? options.min_piece : piece,
                                   ceil_divide(heads, ceil_divide(heads, fit))});
  }
}

// The runs of all records: sections of KV heads; in a section the last query tile first.
inline void make_runs(Geometry const& geometry, Costs const& costs, Tiles& tiles) {
  std::int64_t const item = costs.item(geometry);
  std::int64_t num_runs = 0;
  for (Record const& record : tiles.records) {
    num_runs += record.q_tiles * ceil_divide(geometry.num_kv_heads, record.section_heads);
  }
  tiles.runs.reserve(num_runs);
  for (std::size_t i = 0; i < tiles.records.size(); ++i) {
    Record const& record = tiles.records[i];
    Request const& r = record.request;
    std::int64_t const packed = r.q_len * geometry.group;
    for (std::int64_t head = 0; head < geometry.num_kv_heads; head += record.section_heads) {
      std::int64_t const heads = std::min(record.section_heads, geometry.num_kv_heads - head);
      for (std::int64_t tile = record.q_tiles - 1; tile >= 0; --tile) {
        std::int64_t const row = tile * geometry.tile_q;
        std::int64_t const blocks = visible_blocks(geometry, r.q_pos - r.kv_pos, r.kv_len, row,
                                                   std::min(packed, row + geometry.tile_q));
        std::int64_t const cost = blocks * record.block_cost + item;
        tiles.runs.push_back(Run{static_cast<std::int64_t>(i), heads, blocks, cost, tiles.num_tiles,
                                 tiles.total_cost});
        tiles.num_tiles += heads;
        tiles.total_cost += heads * cost;
      }
    }
  }
}

}  // namespace cute_attn_planner
