// The line of tiles: how it is shared out and where it is cut; the C++ text of
// cute_attn/scheduler/cuts.py.
#pragma once

#include <cute_attn_bundle/plan_runs.hpp>
#include <limits>
#include <numeric>
#include <optional>

namespace cute_attn_planner {

// A position on the line, before KV block `block` (of those it visits) of `tile`.
struct Position {
  std::int64_t tile = 0;
  std::int64_t block = 0;
  std::int64_t run = 0;
  std::int64_t cost = 0;  // of everything before it
};

using Cuts = std::vector<Position>;  // num_blocks + 1

// Where an ideal cut falls: in tile `local` of `run`, `rest` of its cost after its begin.
struct Mark {
  std::int64_t run;
  std::int64_t local;
  std::int64_t rest;
  bool past;  // nearer to the end of the tile than to its begin
};

// (num_blocks + 1) ideal cuts, as cost from the begin of the line, so that all blocks end together
// after what they have; those with the least take part, as many as can take `min_share` each.
// `smallest` becomes the smallest share.
inline Numbers share_line(Numbers const& loads, std::int64_t line_cost, std::int64_t min_share,
                          std::int64_t& smallest) {
  std::size_t const size = loads.size();
  std::vector<std::size_t> order(size);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return loads[a] < loads[b]; });
  // level - filled falls with every block that joins, so those with enough are the first ones.
  Numbers level(size);
  std::size_t enough = 0;
  std::int64_t filled = 0;
  for (std::size_t i = 0; i < size; ++i) {
    filled += loads[order[i]];
    level[i] = ceil_divide(filled + line_cost, static_cast<std::int64_t>(i) + 1);
    enough += level[i] - loads[order[i]] >= min_share;
  }
  std::size_t const last = std::max<std::size_t>(enough, 1) - 1;
  Numbers shares(size, 0), cuts(size + 1, 0);
  for (std::size_t i = 0; i <= last; ++i) shares[order[i]] = level[last] - loads[order[i]];
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < size; ++i) {
    sum += shares[i];
    cuts[i + 1] = std::min(sum, line_cost);
  }
  smallest = level[last] - loads[order[last]];
  return cuts;
}

// The same for blocks without a load and a line that is not empty.
inline Numbers share_line_equally(std::int64_t num_blocks, std::int64_t line_cost,
                                  std::int64_t min_share, std::int64_t& smallest) {
  if (line_cost >= std::int64_t{1} << 46) {
    return share_line(Numbers(num_blocks, 0), line_cost, min_share, smallest);
  }
  std::int64_t joined = num_blocks;
  if (min_share > 1) {
    joined = std::max<std::int64_t>(1, std::min(num_blocks, (line_cost - 1) / (min_share - 1)));
  }
  smallest = ceil_divide(line_cost, joined);
  Numbers cuts(num_blocks + 1);
  for (std::int64_t i = 0; i <= num_blocks; ++i) cuts[i] = std::min(i * smallest, line_cost);
  return cuts;
}

// The last run that begins at or before a cost; there is one.
inline std::int64_t run_at(Tiles const& tiles, std::int64_t cost) {
  auto const after =
      std::upper_bound(tiles.runs.begin() + 1, tiles.runs.end(), cost,
                       [](std::int64_t value, Run const& run) { return value < run.cost_begin; });
  return after - tiles.runs.begin() - 1;
}

// Ideal cuts of the line that begins after `begin_cost`.
inline std::vector<Mark> mark_line(Tiles const& tiles, std::int64_t begin_cost,
                                   Numbers const& shared) {
  std::vector<Mark> marks;
  for (std::int64_t const share : shared) {
    std::int64_t const position = share + begin_cost;
    std::int64_t const at = run_at(tiles, position);
    Run const& run = tiles.runs[at];
    std::int64_t const local = (position - run.cost_begin) / run.tile_cost;
    std::int64_t const rest = position - run.cost_begin - local * run.tile_cost;
    marks.push_back(Mark{at, local, rest, rest + rest >= run.tile_cost});
  }
  return marks;
}

// The begin of a tile of a run.
inline Position begin_of(Tiles const& tiles, std::int64_t run, std::int64_t local) {
  Run const& r = tiles.runs[run];
  return Position{r.tile_begin + local, 0, run, r.cost_begin + local * r.tile_cost};
}

// Moves every cut to the nearest tile boundary.
inline Cuts cut_between_tiles(Tiles const& tiles, std::vector<Mark> const& marks) {
  Cuts cuts;
  for (Mark const& mark : marks) {
    cuts.push_back(begin_of(tiles, mark.run, mark.local + mark.past));
  }
  return cuts;
}

// Cuts inside tiles, but leaves no piece too short. `near`: a cut too close to a tile boundary goes
// to the nearer of the boundary and the shortest piece away from it, otherwise to the boundary.
inline Cuts cut_anywhere(Tiles const& tiles, std::vector<Mark> const& marks, std::int64_t fixed,
                         bool near) {
  Cuts cuts;
  for (Mark const& mark : marks) {
    Run const& run = tiles.runs[mark.run];
    Record const& record = tiles.record_of(mark.run);
    std::int64_t const piece = record.min_piece;
    std::int64_t at = floor_divide(mark.rest + (record.block_cost / 2 - fixed), record.block_cost);
    std::int64_t const margin = near ? (piece + 1) / 2 : piece;
    bool past = at > run.blocks - margin;
    bool inside = at >= margin && !past;
    if (run.blocks < 2 * piece) {  // too short to split
      past = mark.past;
      inside = false;
    }
    Position cut = begin_of(tiles, mark.run, mark.local + past);
    if (inside) {
      if (near) at = std::min(std::max(at, piece), run.blocks - piece);
      cut.block = at;
      cut.cost += fixed + at * record.block_cost;
    }
    cuts.push_back(cut);
  }
  return cuts;
}

// Cuts each tile in pieces of equal length, for one thread block each; nothing if there are too
// many tiles, or none is worth cutting.
inline std::optional<Cuts> cut_evenly(Tiles const& tiles, std::int64_t num_blocks,
                                      std::int64_t fixed) {
  constexpr std::int64_t kMostPieces = 64;
  if (2 * tiles.num_tiles > num_blocks) return std::nullopt;
  std::int64_t const one = 1;
  std::int64_t dearest = 0;
  for (Run const& run : tiles.runs) dearest = std::max(dearest, run.tile_cost - fixed);
  auto const pieces_of = [&](std::int64_t run, std::int64_t longest) {
    Run const& r = tiles.runs[run];
    std::int64_t const limit = std::max(r.blocks / tiles.record_of(run).min_piece, one);
    return std::max(std::min(ceil_divide(r.tile_cost - fixed, longest), limit), one);
  };
  std::int64_t const num_runs = static_cast<std::int64_t>(tiles.runs.size());
  std::int64_t best = 0;  // the longest piece of the best way
  std::int64_t least = 0;
  for (std::int64_t tried = 1; tried <= std::min(num_blocks - tiles.num_tiles + 1, kMostPieces);
       ++tried) {
    std::int64_t const longest = std::max(ceil_divide(dearest, tried), one);
    std::int64_t finish = 0, sum = 0;
    for (std::int64_t i = 0; i < num_runs; ++i) {
      Run const& run = tiles.runs[i];
      Record const& record = tiles.record_of(i);
      std::int64_t const pieces = pieces_of(i, longest);
      std::int64_t end = ceil_divide(run.blocks, pieces) * record.block_cost + fixed;
      if (pieces > 1) end += pieces * record.merge_cost + record.partial_cost;
      finish = std::max(finish, end);
      sum += run.heads * pieces;
    }
    if (sum > num_blocks) finish = std::numeric_limits<std::int64_t>::max();
    if (tried == 1 || finish < least) {
      least = finish;
      best = longest;
    }
  }
  Cuts cuts;
  bool is_cut = false;
  for (std::int64_t i = 0; i < num_runs; ++i) {
    std::int64_t const pieces = pieces_of(i, best);
    is_cut = is_cut || pieces > 1;
    for (std::int64_t local = 0; local < tiles.runs[i].heads; ++local) {
      for (std::int64_t piece = 0; piece < pieces; ++piece) {
        Position cut = begin_of(tiles, i, local);
        cut.block = piece * tiles.runs[i].blocks / pieces;
        if (piece > 0) cut.cost += fixed + cut.block * tiles.record_of(i).block_cost;
        cuts.push_back(cut);
      }
    }
  }
  if (!is_cut) return std::nullopt;
  cuts.resize(num_blocks + 1, begin_of(tiles, num_runs - 1, tiles.runs.back().heads));
  return cuts;
}

}  // namespace cute_attn_planner
