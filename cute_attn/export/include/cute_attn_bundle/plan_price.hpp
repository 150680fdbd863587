// What ways to hand out the tiles cost; the C++ text of cute_attn/scheduler/pricing.py and of the
// numbering of partial results in cuts.py.
#pragma once

#include <cute_attn_bundle/plan_cuts.hpp>
#include <cute_attn_bundle/plan_rounds.hpp>

namespace cute_attn_planner {

// A tile that is split: its first cut, and its partial results.
struct SplitTile {
  std::int64_t lead;
  std::int64_t first_slot;
  std::int64_t pieces;
};

// What a cut inside a tile knows.
struct InnerCut {
  std::int64_t cut;
  std::int64_t slot;   // of the piece after it
  bool moved;          // anything lies between it and the next one
  std::int64_t split;  // which of the split tiles
};

struct Slots {
  std::vector<InnerCut> inner;
  std::vector<SplitTile> splits;
  std::int64_t count = 0;
};

// Numbers partial results along the line. `repeated`: cuts inside tiles may be those of the blocks
// before them, which have no share.
inline Slots number_slots(Cuts const& cuts, bool repeated) {
  Slots slots;
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    if (cuts[i].block == 0) continue;
    Position const& cut = cuts[i];
    std::int64_t slot = 1;
    bool leads = true;
    if (!slots.inner.empty()) {
      InnerCut& last = slots.inner.back();
      leads = cuts[last.cut].tile != cut.tile;
      last.moved = !repeated || cuts[last.cut].cost != cut.cost;
      slot = last.slot + last.moved + leads;  // a cut makes one piece more, the first of a tile two
    }
    if (leads) slots.splits.push_back(SplitTile{static_cast<std::int64_t>(i), slot - 1, 0});
    slots.inner.push_back(InnerCut{static_cast<std::int64_t>(i), slot, true,
                                   static_cast<std::int64_t>(slots.splits.size()) - 1});
  }
  if (slots.inner.empty()) return slots;
  slots.count = slots.inner.back().slot + 1;
  for (std::size_t i = 0; i < slots.splits.size(); ++i) {
    bool const last = i + 1 == slots.splits.size();
    std::int64_t const end = last ? slots.count : slots.splits[i + 1].first_slot;
    slots.splits[i].pieces = end - slots.splits[i].first_slot;
  }
  return slots;
}

// One way to hand out the tiles.
struct Candidate {
  std::int64_t num_whole = 0;
  Cuts cuts;
  Numbers costs;  // (num_blocks)
  std::int64_t merge = 0;
  Rounds const* rounds = nullptr;
  Slots slots;

  std::int64_t finish() const { return *std::max_element(costs.begin(), costs.end()) + merge; }
};

// Cost of each block but for what cuts inside tiles add; `loads`: of its whole tiles, or empty.
inline Numbers line_costs(Cuts const& cuts, Numbers const& loads) {
  Numbers costs(cuts.size() - 1);
  for (std::size_t i = 0; i < costs.size(); ++i) {
    costs[i] = cuts[i + 1].cost - cuts[i].cost + (loads.empty() ? 0 : loads[i]);
  }
  return costs;
}

// The candidate of cuts inside tiles.
inline Candidate price_split(Tiles const& tiles, Cuts cuts, std::int64_t item, Costs const& model,
                             Numbers const& loads, std::int64_t num_whole, Rounds const* rounds) {
  Candidate found;
  found.num_whole = num_whole;
  found.rounds = rounds;
  found.slots = number_slots(cuts, !loads.empty());
  found.costs = line_costs(cuts, loads);
  for (InnerCut const& inner : found.slots.inner) {
    Record const& record = tiles.record_of(cuts[inner.cut].run);
    if (inner.moved) found.costs[inner.cut] += record.partial_cost + item;
  }
  std::int64_t most = 0;
  for (SplitTile const& split : found.slots.splits) {
    Record const& record = tiles.record_of(cuts[split.lead].run);
    found.costs[split.lead - 1] += record.partial_cost;
    most = std::max(most, split.pieces * record.merge_cost);
  }
  if (!found.slots.splits.empty()) found.merge = model.merge_ns + most;
  found.cuts = std::move(cuts);
  return found;
}

// The candidate of cuts between tiles.
inline Candidate price_between(Cuts cuts, Numbers const& loads, std::int64_t num_whole,
                               Rounds const* rounds) {
  Candidate found;
  found.num_whole = num_whole;
  found.costs = line_costs(cuts, loads);
  found.rounds = rounds;
  found.cuts = std::move(cuts);
  return found;
}

// All tiles in rounds; every cut lies at the end of the line.
inline Candidate price_whole(Tiles const& tiles, Rounds const& rounds) {
  Candidate found;
  found.num_whole = tiles.num_tiles;
  found.costs = rounds.after(rounds.count());
  std::int64_t const run = static_cast<std::int64_t>(tiles.runs.size()) - 1;
  found.cuts.assign(found.costs.size() + 1, Position{tiles.num_tiles, 0, run, 0});
  found.rounds = &rounds;
  return found;
}

}  // namespace cute_attn_planner
