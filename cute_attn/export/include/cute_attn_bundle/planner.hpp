// The planner: the lengths of a step in, the plan buffer out. To the bit what
// cute_attn.scheduler.plan_batch makes of them; the C++ text of cute_attn/scheduler/planner.py.
//
//   cute_attn_planner::Plan plan =
//       cute_attn_planner::plan_batch(requests, geometry, num_blocks, costs);
#pragma once

#include <cute_attn_bundle/plan_price.hpp>
#include <cute_attn_bundle/plan_requests.hpp>
#include <initializer_list>
#include <utility>

namespace cute_attn_planner {

inline void require(bool right, char const* what) {
  if (!right) throw std::invalid_argument(what);
}

inline void check_requests(std::vector<Request> const& requests, Geometry const& geometry,
                           std::int64_t num_blocks) {
  require(1 <= num_blocks && num_blocks < 1 << 16, "num_blocks takes 1 .. 65535");
  for (std::int64_t const value :
       {geometry.tile_q, geometry.tile_kv, geometry.group, geometry.num_kv_heads}) {
    require(1 <= value && value <= 1 << 16, "the geometry takes 1 .. 65536");
  }
  for (std::int64_t const value : {geometry.window_left, geometry.window_right}) {
    require(0 <= value && value <= kUnbounded, "windows take 0 .. 2^30");
  }
  require(static_cast<std::int64_t>(requests.size()) < kMaxBatch, "a plan takes 2^20 - 1 requests");
  std::int64_t num_tiles = 0;
  for (Request const& r : requests) {
    for (std::int64_t const value : {r.q_start, r.q_len, r.kv_start, r.kv_len, r.kv_pos}) {
      require(0 <= value && value <= kMostInt32, "lengths and starts take 0 .. 2^31 - 1");
    }
    require(r.kv_len < kUnbounded, "kv_len is below 2^30");
    std::int64_t const first = r.q_pos - r.kv_pos;
    require(-kUnbounded < first && first + r.q_len < kUnbounded,
            "query positions, counted from the first key, lie within 2^30");
    require(0 <= r.id && r.id < kMaxBatch, "ids take 0 .. 2^20 - 1");
    require(r.q_len * geometry.group <= kMostInt32, "q_len times group stays below 2^31");
    num_tiles += ceil_divide(r.q_len * geometry.group, geometry.tile_q) * geometry.num_kv_heads;
  }
  require(num_tiles <= kMostInt32, "a plan takes 2^31 - 1 tiles");
}

// Whether a tile is long enough for two pieces.
inline bool is_splittable(Tiles const& tiles) {
  for (Run const& run : tiles.runs) {
    if (run.blocks >= 2 * tiles.records[run.record].min_piece) return true;
  }
  return false;
}

// The cheapest way to hand out the tiles, of equals the first; `rounds`, `sorted`: memory for those
// that it names.
inline Candidate hand_out(Tiles const& tiles, std::int64_t num_blocks, std::int64_t item,
                          Costs const& model, bool split, Rounds& rounds, Rounds& sorted) {
  if (tiles.num_tiles == 0) {
    return price_between(Cuts(num_blocks + 1), {}, 0, nullptr);
  }
  std::vector<Candidate> found;
  auto const cheapest = [&] {
    return *std::min_element(found.begin(), found.end(),
                             [](auto const& a, auto const& b) { return a.finish() < b.finish(); });
  };
  std::int64_t num_whole = 0;
  Numbers loads;
  Rounds const* used = nullptr;
  if (tiles.most_q_tiles > 1) {
    std::int64_t const share = ceil_divide(tiles.total_cost, num_blocks);
    std::int64_t const slack = share / 512;
    Numbers costs;
    for (Run const& run : tiles.runs) costs.insert(costs.end(), run.heads, run.tile_cost);
    rounds = hand_out_rounds(std::move(costs), num_blocks);
    used = &rounds;
    found.push_back(price_whole(tiles, rounds));
    if (found[0].finish() > share + slack && !rounds.tiles.empty()) {
      sorted = sort_last_rounds(rounds);
      found.push_back(price_whole(tiles, sorted));
      found = {cheapest()};
    }
    // No split plan does better than one more item per block and a merge.
    if (found[0].finish() <= share + std::max(slack, item + model.merge_ns)) return found[0];
    num_whole = rounds.prefix(share, loads);
  }

  std::int64_t longest = 0, piece = 0;
  for (Run const& run : tiles.runs) longest = std::max(longest, run.tile_cost);
  for (Record const& record : tiles.records) {
    if (record.q_tiles > 0) piece = std::max(piece, record.min_piece * record.block_cost);
  }
  piece += item;
  bool const splittable = split && is_splittable(tiles);
  std::int64_t const min_share = splittable ? std::min(piece, longest) : 0;
  std::int64_t begin_cost = 0, smallest = 0;
  Numbers shared;
  if (loads.empty()) {
    shared = share_line_equally(num_blocks, tiles.total_cost, min_share, smallest);
  } else {
    begin_cost = std::accumulate(loads.begin(), loads.end(), std::int64_t{0});
    shared = share_line(loads, tiles.total_cost - begin_cost, min_share, smallest);
  }
  std::vector<Mark> const marks = mark_line(tiles, begin_cost, shared);
  std::vector<Candidate> splits;
  if (splittable) {
    Cuts cuts = cut_anywhere(tiles, marks, item, smallest >= 2 * piece);
    splits.push_back(price_split(tiles, std::move(cuts), item, model, loads, num_whole, used));
    if (std::optional<Cuts> even = cut_evenly(tiles, num_blocks, item)) {
      splits.push_back(price_split(tiles, std::move(*even), item, model, {}, 0, nullptr));
    }
  }
  // With all tiles on the line, cut between them, a block has the longest tile.
  if (num_whole > 0 || splits.empty() || splits[0].finish() >= longest) {
    found.push_back(price_between(cut_between_tiles(tiles, marks), loads, num_whole, used));
  }
  found.insert(found.end(), splits.begin(), splits.end());
  return cheapest();
}

// Fills the buffer; abi/plan.py has its layout.
inline Plan write_plan(Tiles const& tiles, Geometry const& geometry, Candidate const& best,
                       std::int64_t num_blocks) {
  std::int64_t const count = static_cast<std::int64_t>(tiles.records.size());
  std::int64_t const requests_at = requests_offset(num_blocks);
  std::int64_t const places_at = requests_at + kRequestInts * (count + 1);
  std::int64_t first_listed = kUnbounded;
  Numbers listed;
  if (best.rounds != nullptr && !best.rounds->tiles.empty()) {
    listed = best.rounds->places(ceil_divide(best.num_whole, num_blocks));
    if (!listed.empty()) first_listed = best.rounds->first_listed;
  }
  std::int64_t const num_listed = static_cast<std::int64_t>(listed.size());
  Plan plan;
  plan.num_tiles = tiles.num_tiles;
  plan.num_split_tiles = static_cast<std::int64_t>(best.slots.splits.size());
  plan.num_slots = best.slots.count;
  plan.block_costs = best.costs;
  plan.merge_cost = best.merge;
  std::vector<std::int32_t>& buffer = plan.buffer;
  buffer.assign(places_at + (num_listed + 1) / 2, 0);
  auto const write = [&](std::int64_t at, std::initializer_list<std::int64_t> values) {
    for (std::int64_t const value : values) buffer[at++] = static_cast<std::int32_t>(value);
  };
  std::int64_t const places = num_listed > 0 ? places_at : 0;
  write(0, {count, tiles.num_tiles, best.num_whole, plan.num_split_tiles, geometry.window_left,
            geometry.window_right, plan.num_slots, geometry.tile_q, geometry.tile_kv,
            geometry.group, geometry.num_kv_heads, num_blocks, first_listed, places});
  for (std::int64_t i = 0; i < num_listed; ++i) {
    std::uint32_t const place = static_cast<std::uint32_t>(listed[i]) << (i % 2 * 16);
    buffer[places_at + i / 2] |= static_cast<std::int32_t>(place);
  }

  std::int64_t const splits_at = kHeaderInts + kStartInts * num_blocks;
  std::int64_t const cuts_at = splits_at + kSplitInts * num_blocks;
  auto const record_of = [&](Position const& cut) {
    return tiles.runs.empty() ? 0 : tiles.runs[cut.run].record;
  };
  for (std::int64_t i = 0; i <= num_blocks; ++i) {
    Position const& cut = best.cuts[i];
    write(cuts_at + kCutInts * i, {cut.tile, cut.block, record_of(cut), -1, 0, 0});
  }
  for (InnerCut const& inner : best.slots.inner) {
    SplitTile const& split = best.slots.splits[inner.split];
    write(cuts_at + kCutInts * inner.cut + 3, {inner.slot, split.first_slot, split.pieces});
  }
  for (std::int64_t i = 0; i < plan.num_split_tiles; ++i) {
    SplitTile const& split = best.slots.splits[i];
    Position const& lead = best.cuts[split.lead];
    write(splits_at + kSplitInts * i, {lead.tile, record_of(lead), split.first_slot, split.pieces});
  }

  Numbers ends;  // of each record's tiles
  std::int64_t tile_begin = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    Record const& record = tiles.records[i];
    Request const& r = record.request;
    write(requests_at + kRequestInts * i,
          {r.q_start, r.q_len, r.kv_start, r.kv_len, r.q_pos, r.kv_pos, tile_begin,
           r.id | record.section_heads << 24});
    tile_begin += record.q_tiles * geometry.num_kv_heads;
    ends.push_back(tile_begin);
  }
  buffer[requests_at + kRequestInts * count + 6] = static_cast<std::int32_t>(tile_begin);

  for (std::int64_t i = 0; i < num_blocks; ++i) {
    std::int64_t tile = best.cuts[i].tile;
    std::int64_t const whole = num_listed > 0 && first_listed == 0 ? listed[i] : i;
    if (whole < best.num_whole) tile = whole;
    std::int64_t const request =
        std::upper_bound(ends.begin(), ends.end(), tile) - ends.begin();  // or the sentinel
    std::int64_t const at = kHeaderInts + kStartInts * i;
    write(at, {tile, request, geometry.window_left, geometry.window_right});
    std::copy_n(buffer.begin() + requests_at + kRequestInts * request, kRequestInts,
                buffer.begin() + at + 4);
    write(at + 12, {best.num_whole, count, first_listed, places});
  }
  return plan;
}

// Plans one step.
//
//   requests     in the caller's order
//   geometry     of the kernel and the step
//   num_blocks   thread blocks of the grid
//   costs        of the kernel
//
// Throws std::invalid_argument where a number is out of range.
inline Plan plan_batch(std::vector<Request> const& requests, Geometry const& geometry,
                       std::int64_t num_blocks, Costs const& costs,
                       PlanOptions const& options = {}) {
  check_requests(requests, geometry, num_blocks);
  Tiles tiles;
  sort_requests(requests, geometry, costs, options, tiles);
  make_runs(geometry, costs, tiles);
  Rounds rounds, sorted;
  Candidate const best =
      hand_out(tiles, num_blocks, costs.item(geometry), costs, options.split, rounds, sorted);
  return write_plan(tiles, geometry, best, num_blocks);
}

}  // namespace cute_attn_planner
