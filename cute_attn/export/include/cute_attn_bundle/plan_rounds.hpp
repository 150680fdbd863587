// Whole tiles in rounds; the C++ text of cute_attn/scheduler/rounds.py.
#pragma once

#include <cute_attn_bundle/plan_types.hpp>
#include <numeric>
#include <utility>

namespace cute_attn_planner {

// Whole tiles, handed out in rounds: every thread block takes one of num_blocks neighbouring tiles.
struct Rounds {
  Numbers costs;  // (num_tiles) of each tile in plan order
  std::int64_t num_blocks = 0;
  std::int64_t first_listed = 0;  // rounds from this one on are in no order that kernels know
  Numbers before;                 // (num_blocks) cost of each block before the first listed round
  // (listed rounds, num_blocks): thread blocks of each round by cost, the cost of each of them
  // after the round, and its tile, counted from the first listed round's first.
  std::vector<Numbers> takers, loads, tiles;

  std::int64_t count() const { return first_listed + static_cast<std::int64_t>(takers.size()); }

  // Cost of the tile at a place, 0 behind the last.
  std::int64_t cost_at(std::int64_t tile) const {
    return tile < static_cast<std::int64_t>(costs.size()) ? costs[tile] : 0;
  }

  // Adds the costs of one round in snake order.
  void add_round(std::int64_t round, Numbers& sums) const {
    for (std::int64_t column = 0; column < num_blocks; ++column) {
      std::int64_t const block = round % 2 ? num_blocks - 1 - column : column;
      sums[block] += cost_at(round * num_blocks + column);
    }
  }

  // (num_blocks) cost of each block after so many rounds.
  Numbers after(std::int64_t rounds) const {
    std::int64_t const listed = rounds - first_listed;
    if (listed == 0) return before;
    Numbers sums(num_blocks, 0);
    if (listed < 0) {
      for (std::int64_t round = 0; round < rounds; ++round) add_round(round, sums);
    } else {
      for (std::int64_t i = 0; i < num_blocks; ++i) {
        sums[takers[listed - 1][i]] = loads[listed - 1][i];
      }
    }
    return sums;
  }

  // The most rounds that keep every block within `share`.
  std::int64_t within(std::int64_t share) const {
    if (*std::max_element(before.begin(), before.end()) > share) {
      Numbers sums(num_blocks, 0);
      for (std::int64_t round = 0; round < first_listed; ++round) {
        add_round(round, sums);
        if (*std::max_element(sums.begin(), sums.end()) > share) return round;
      }
      return first_listed;
    }
    std::int64_t round = first_listed;
    for (Numbers const& load : loads) {
      if (*std::max_element(load.begin(), load.end()) > share) break;
      ++round;
    }
    return round;
  }

  // (listed rounds, num_blocks) tile of each block in the listed ones of so many rounds.
  Numbers places(std::int64_t rounds) const {
    std::int64_t const listed = std::min(std::max<std::int64_t>(rounds - first_listed, 0),
                                         static_cast<std::int64_t>(takers.size()));
    Numbers found(listed * num_blocks);
    for (std::int64_t row = 0; row < listed; ++row) {
      for (std::int64_t i = 0; i < num_blocks; ++i) {
        found[row * num_blocks + takers[row][i]] = tiles[row][i];
      }
    }
    return found;
  }

  // How many tiles go out whole with every block within `share`: full rounds, then single tiles.
  // `sums` becomes the cost that each block then has.
  std::int64_t prefix(std::int64_t share, Numbers& sums) const {
    std::int64_t const full = within(share);
    sums = after(full);
    std::int64_t const begin = full * num_blocks;
    std::int64_t const num_tiles = static_cast<std::int64_t>(costs.size());
    std::int64_t const rest = std::min(num_blocks, num_tiles - begin);
    if (rest <= 0) return num_tiles;
    std::int64_t const listed = full - first_listed;
    Numbers block(num_blocks);
    for (std::int64_t i = 0; i < num_blocks; ++i) {
      if (listed >= 0) {
        block[tiles[listed][i] - listed * num_blocks] = takers[listed][i];
      } else {
        block[i] = full % 2 ? num_blocks - 1 - i : i;
      }
    }
    std::int64_t single = 0;
    while (single < rest && sums[block[single]] + costs[begin + single] <= share) {
      sums[block[single]] += costs[begin + single];
      ++single;
    }
    return begin + single;
  }
};

// Gives tiles to thread blocks, round by round: the longer, the less the block has so far.
//
//   order   (rounds, num_blocks) tiles, those of a round from the longest on
//   first   tile that order counts from
//   load    (num_blocks) cost of each block before
inline void longest_to_least(Rounds& rounds, std::vector<Numbers> const& order, std::int64_t first,
                             Numbers const& load) {
  std::vector<std::pair<std::int64_t, std::int64_t>> blocks(load.size());  // cost, block
  for (std::size_t i = 0; i < load.size(); ++i) {
    blocks[i] = {load[i], static_cast<std::int64_t>(i)};
  }
  for (Numbers const& row : order) {
    std::sort(blocks.begin(), blocks.end());
    Numbers takers(row.size()), loads(row.size());
    for (std::size_t i = 0; i < row.size(); ++i) {
      blocks[i].first += rounds.cost_at(first + row[i]);
      takers[i] = blocks[i].second;
      loads[i] = blocks[i].first;
    }
    rounds.takers.push_back(takers);
    rounds.loads.push_back(loads);
  }
}

// Hands out all tiles whole; at least one.
inline Rounds hand_out_rounds(Numbers costs, std::int64_t num_blocks) {
  Rounds rounds;
  rounds.costs = std::move(costs);
  rounds.num_blocks = num_blocks;
  std::int64_t const num_tiles = static_cast<std::int64_t>(rounds.costs.size());
  std::int64_t const count = ceil_divide(num_tiles, num_blocks);
  auto const [least, most] = std::minmax_element(rounds.costs.begin(), rounds.costs.end());
  bool const listable = count > 1 && num_blocks * kMaxListedRounds <= 1 << 16 && *most > *least &&
                        *most < (std::int64_t{1} << 46) / count;
  rounds.first_listed = listable ? std::max<std::int64_t>(0, count - kMaxListedRounds) : count;
  rounds.before.assign(num_blocks, 0);
  for (std::int64_t round = 0; round < rounds.first_listed; ++round) {
    rounds.add_round(round, rounds.before);
  }
  std::int64_t const first = rounds.first_listed * num_blocks;
  for (std::int64_t round = rounds.first_listed; round < count; ++round) {
    Numbers order(num_blocks);
    std::iota(order.begin(), order.end(), round * num_blocks - first);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return rounds.cost_at(first + a) > rounds.cost_at(first + b);
    });
    rounds.tiles.push_back(order);
  }
  longest_to_least(rounds, rounds.tiles, first, rounds.before);
  return rounds;
}

// The same with the tiles of the last rounds in one order, the shortest in the very last.
inline Rounds sort_last_rounds(Rounds const& rounds) {
  constexpr std::int64_t kLastRounds = 4;
  std::int64_t const num_blocks = rounds.num_blocks;
  std::int64_t const listed = static_cast<std::int64_t>(rounds.tiles.size());
  std::int64_t const keep = std::max<std::int64_t>(listed - kLastRounds, 0);
  std::int64_t const first = rounds.first_listed * num_blocks;
  Rounds sorted = rounds;
  sorted.takers.resize(keep);
  sorted.loads.resize(keep);
  sorted.tiles.resize(keep);
  Numbers order((listed - keep) * num_blocks);
  std::iota(order.begin(), order.end(), keep * num_blocks);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return rounds.cost_at(first + a) > rounds.cost_at(first + b);
  });
  std::vector<Numbers> rows;
  for (std::int64_t row = 0; row < listed - keep; ++row) {
    rows.emplace_back(order.begin() + row * num_blocks, order.begin() + (row + 1) * num_blocks);
  }
  sorted.tiles.insert(sorted.tiles.end(), rows.begin(), rows.end());
  longest_to_least(sorted, rows, first, rounds.after(rounds.first_listed + keep));
  return sorted;
}

}  // namespace cute_attn_planner
