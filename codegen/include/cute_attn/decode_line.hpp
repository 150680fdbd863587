// The second half of the device planner (plan_decode.hpp): tiles on a line, and where it is cut.
// What cute_attn/scheduler/{cuts,pricing}.py do with arrays, each thread does for one cut.
#pragma once

#include <cute/config.hpp>
#include <cute_attn/block.hpp>
#include <cute_attn/decode_records.hpp>
#include <cute_attn/paging.hpp>

namespace cute_attn {

// a / b for a >= 0 and b > 0: estimates with float, whose error is corrected. (A division of 64-bit
// integers is a long subroutine.)
__noinline__ __device__ int64_t divide(int64_t a, int64_t b) {
  float const inverse = __fdividef(1.f, static_cast<float>(b));
  int64_t quotient = static_cast<int64_t>(static_cast<float>(a) * inverse);
  int64_t rest = a - quotient * b;
  int64_t const more = static_cast<int64_t>(static_cast<float>(rest) * inverse);
  quotient += more;
  rest -= more * b;
  for (; rest < 0; rest += b) --quotient;
  for (; rest >= b; rest -= b) ++quotient;
  return quotient;
}
CUTE_DEVICE int divide(int a, int b) { return static_cast<unsigned>(a) / static_cast<unsigned>(b); }

// The same by a constant of the launch.
struct Divisor {
  int value;
  unsigned magic;
  int shift;

  CUTE_DEVICE int of(int a) const { return PageDivider{value, magic, shift}.page_of(a); }
  CUTE_DEVICE int64_t of(int64_t a) const { return divide(a, int64_t{value}); }
};

// The last of `count` i for which rising(i) is not above x; 0 is one.
template <class Rising, class T>
CUTE_DEVICE int last_at_most(Rising const& rising, int count, T x) {
  int low = 0;
  int high = count;
  CUTE_NO_UNROLL
  while (high - low > 1) {
    int const middle = (low + high) / 2;
    if (rising(middle) <= x) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// A position on the line, before KV block `block` of `tile`.
template <class Cost>
struct Position {
  int tile;
  int block;
  Cost cost;  // of everything before it
};

// The line of tiles and its cuts. Thread i has cut i.
//
//   Cost   int if the costs of the step fit, else int64_t
template <class Cost, int kThreads, int kMaxRequests, class Params>
class Line {
  using Requests = Records<kThreads, kMaxRequests, Params>;

  // A way to cut the line: this thread's cut and what is known of all.
  struct Way {
    Position<Cost> cut{0, 0, 0};
    int run = 0;
    bool leads = false;  // the first cut inside of its tile
    int made = 0;        // slots up to its own
    int split = 0;       // the split tile
    int first_slot = 0;
    int pieces = 0;
    int num_splits = 0;
    int num_slots = 0;
  };

 public:
  CUTE_DEVICE Line(Requests const& records, PlanWriter const& plan)
      : records_(records),
        params_(records.params),
        memory_(records.memory),
        plan_(plan),
        heads_(params_.num_kv_heads) {}

  CUTE_DEVICE void run() {
    lay();
    find_cut();
    if (splittable_) {  // the same for all threads
      choose();
    } else {
      keep_between();
    }
    if (threadIdx.x == kThreads - 1) write_header();  // its warp is mostly idle
  }

 private:
  CUTE_DEVICE Cost block_cost() const { return static_cast<Cost>(params_.block_cost); }
  CUTE_DEVICE Cost item_cost() const { return static_cast<Cost>(params_.item_cost); }
  CUTE_DEVICE Cost tile_cost(int blocks) const { return blocks * block_cost() + item_cost(); }

  CUTE_DEVICE Cost total_cost() const {
    Cost const blocks = static_cast<Cost>(records_.num_blocks);
    return heads_ * (blocks * block_cost() + records_.count * item_cost());
  }

  // Cost of everything before a run.
  CUTE_DEVICE Cost cost_begin(int run) const {
    return heads_ *
           (static_cast<Cost>(memory_.blocks_begin[run]) * block_cost() + run * item_cost());
  }

  CUTE_DEVICE Cost* between_cost() const { return reinterpret_cast<Cost*>(memory_.between_cost); }
  CUTE_DEVICE Cost* inside_cost() const { return reinterpret_cast<Cost*>(memory_.inside_cost); }

  // Where runs begin, in the order of records. A warp has neighbouring runs.
  CUTE_DEVICE void lay() {
    int const warp = threadIdx.x / 32;
    int const lane = threadIdx.x % 32;
    int const rounds = (records_.count + kThreads - 1) / kThreads;
    int const first = warp * rounds * 32;
    int const end = min(first + rounds * 32, records_.count);
    unsigned sum = 0;  // of this warp
    CUTE_NO_UNROLL
    for (int begin = first; begin < end; begin += 32) {
      int const at = begin + lane;
      unsigned const blocks = at < end ? records_.blocks_of(memory_.order[at]) : 0;
      unsigned const until = sum + warp_scan(blocks);
      if (at < end) memory_.blocks_begin[at] = until - blocks;
      sum = __shfl_sync(kAllLanes, until, 31);
    }
    publish(sum, memory_.slots);
    sync_threads<kThreads>();
    unsigned const others = collect_sum(memory_.slots, warp);
    for (int at = first + lane; at < end; at += 32) memory_.blocks_begin[at] += others;
    sync_threads<kThreads>();
  }

  // `share_line_equally`, `mark_line`, `cut_between_tiles` and `cut_anywhere` for one cut.
  CUTE_DEVICE void find_cut() {
    int const count = records_.count;
    if (count == 0) return;
    int const most_blocks = records_.most_blocks;
    int const min_piece = params_.min_piece;
    Cost const total = total_cost();
    Cost const piece_cost = min_piece * block_cost() + item_cost();
    splittable_ = most_blocks >= 2 * int64_t{min_piece};
    Cost const min_share = splittable_ ? min(piece_cost, tile_cost(most_blocks)) : 0;
    int joined = plan_.num_blocks;  // blocks that take part
    Divisor const of_blocks{joined, params_.blocks_magic, params_.blocks_shift};
    bool const all = min_share <= 1 || total - 1 >= int64_t{joined} * (min_share - 1);
    if (!all) joined = max(1, static_cast<int>(divide(total - 1, Cost(min_share - 1))));
    Cost const dividend = total + (joined - 1);
    Cost const share = all ? of_blocks.of(dividend) : divide(dividend, Cost(joined));
    bool const near = share >= 2 * piece_cost;

    int const cut = threadIdx.x;
    if (cut > plan_.num_blocks) return;
    Cost const position = min(min(cut, joined) * share, total);
    run_ = last_at_most([&](int run) { return cost_begin(run); }, count, position);
    int const blocks = records_.blocks_of(memory_.order[run_]);
    Cost const cost = tile_cost(blocks);
    // A quotient of at most 127, and so at most one off.
    Cost rest = position - cost_begin(run_);
    int local = static_cast<int>(__fdividef(static_cast<float>(rest), static_cast<float>(cost)));
    rest -= local * cost;
    if (rest < 0) --local, rest += cost;
    if (rest >= cost) ++local, rest -= cost;
    int const tile = run_ * heads_ + local;
    Cost const begin = position - rest;
    bool past = rest >= cost - rest;
    between_tile_ = tile + past;
    between_cost()[cut] = begin + (past ? cost : 0);
    if (!splittable_) return;

    Divisor const of_block_cost{static_cast<int>(block_cost()), params_.cost_magic,
                                params_.cost_shift};
    Cost const numerator = rest + (block_cost() / 2 - item_cost());
    int at = numerator < 0 ? -1 : static_cast<int>(of_block_cost.of(numerator));
    int const margin = near ? (min_piece + 1) / 2 : min_piece;
    int const last = blocks - min_piece;
    bool const is_long = last >= min_piece;
    bool const over = at > blocks - margin;
    bool const inside = at >= margin && !over && is_long;
    if (is_long) past = over;
    if (near) at = min(max(at, min_piece), last);
    if (!inside) at = 0;
    way_ = Way{{tile + past, at, begin + (past ? cost : 0)}, run_};
    if (inside) way_.cut.cost += at * block_cost() + item_cost();
  }

  // Whether a cut lies inside a tile as the first one in it.
  CUTE_DEVICE bool leads(int cut) const {
    if (memory_.cut_block[cut] == 0) return false;
    return cut == 0 || memory_.cut_tile[cut] > memory_.cut_tile[cut - 1] ||
           memory_.cut_block[cut - 1] == 0;
  }

  // The cheapest of: cuts between tiles, anywhere, even pieces. Of equals the first.
  CUTE_DEVICE void choose() {
    int const num_tiles = records_.count * heads_;
    bool const few = 2 * num_tiles <= plan_.num_blocks;
    Cost between_finish = 0;
    bool between = false;
    CUTE_NO_UNROLL
    for (int i = 0; i < 1 + few; ++i) {
      if (i == 1 && !cut_evenly()) break;
      int64_t const finish = price(between_finish);
      if (i == 0) between = finish >= tile_cost(records_.most_blocks);
      if (i == 0 || finish < finish_) {
        finish_ = finish;
        keep(way_);
      }
    }
    if (between && between_finish <= finish_) {
      sync_threads<kThreads>();  // others keep other records
      keep_between();
    }
  }

  // `number_slots` and `price_split` for `way_`: the busiest thread block, then the merge.
  // `between_finish` becomes that of cuts between tiles.
  CUTE_DEVICE int64_t price(Cost& between_finish) {
    int const cut = threadIdx.x;
    bool const valid = cut <= plan_.num_blocks;
    if (valid) {
      inside_cost()[cut] = way_.cut.cost;
      memory_.cut_tile[cut] = way_.cut.tile;
      memory_.cut_block[cut] = way_.cut.block;
    }
    sync_threads<kThreads>();
    bool const inner = valid && way_.cut.block > 0;
    way_.leads = valid && leads(cut);
    int made = way_.leads;
    if (inner) made += cut == 0 || way_.cut.cost > inside_cost()[cut - 1];
    Cost busiest = 0;  // of this cut's thread block
    between_finish = 0;
    if (cut < plan_.num_blocks) {
      busiest = inside_cost()[cut + 1] - way_.cut.cost;
      between_finish = between_cost()[cut + 1] - between_cost()[cut];
      if (busiest > 0) {
        Cost const partial_cost = static_cast<Cost>(params_.partial_cost);
        if (inner) busiest += partial_cost + item_cost();
        if (leads(cut + 1)) busiest += partial_cost;
      }
    }
    Cost* const inside_costs = reinterpret_cast<Cost*>(memory_.costs[0]);
    Cost* const between_costs = reinterpret_cast<Cost*>(memory_.costs[1]);
    publish(warp_max(busiest), inside_costs);
    publish(warp_max(between_finish), between_costs);
    unsigned const counts = static_cast<unsigned>(way_.leads) << 16 | made;
    unsigned until = warp_scan(counts);
    publish(__shfl_sync(kAllLanes, until, 31), memory_.slots);
    sync_threads<kThreads>();
    busiest = collect_max<kThreads>(inside_costs);
    between_finish = collect_max<kThreads>(between_costs);
    until += collect_sum(memory_.slots, threadIdx.x / 32);
    unsigned const total = collect_sum(memory_.slots, kThreads / 32);
    way_.num_splits = total >> 16;
    way_.num_slots = total & 0xFFFF;
    way_.made = until & 0xFFFF;
    way_.split = static_cast<int>(until >> 16) - 1;
    if (way_.leads) memory_.ends[way_.split] = way_.made;
    sync_threads<kThreads>();
    way_.first_slot = way_.pieces = 0;
    if (inner) {
      bool const last = way_.split + 1 == way_.num_splits;
      int const end = memory_.ends[way_.split];
      way_.first_slot = end - 2;
      way_.pieces = (last ? way_.num_slots + 2 : memory_.ends[way_.split + 1]) - end;
    }
    publish(warp_max(way_.pieces), memory_.pieces);
    sync_threads<kThreads>();
    int const most_pieces = collect_max<kThreads>(memory_.pieces);
    int64_t finish = busiest;
    if (way_.num_splits > 0) finish += params_.merge_ns + most_pieces * params_.merge_cost;
    return finish;
  }

  // Pieces of a tile of `blocks` KV blocks, of which none costs more than `longest`, if possible.
  CUTE_DEVICE int even_pieces(int blocks, Cost longest) const {
    int const most = max(blocks / params_.min_piece, 1);
    Cost const wanted = divide(blocks * block_cost() + (longest - 1), longest);
    return wanted < most ? max(static_cast<int>(wanted), 1) : most;
  }

  // `cut_evenly`: a warp for each number of pieces, a lane for each tile. False: no tile is cut.
  CUTE_DEVICE bool cut_evenly() {
    int const count = records_.count;
    int const warp = threadIdx.x / 32;
    int const lane = threadIdx.x % 32;
    int const num_blocks = plan_.num_blocks;
    int const ways = min(num_blocks - count * heads_ + 1, kMostPieces);
    Cost const dearest = records_.most_blocks * block_cost();
    Cost const never = sizeof(Cost) == 4 ? 0x7FFFFFFF : int64_t{1} << 62;
    Cost* const finishes = reinterpret_cast<Cost*>(memory_.even_finish);
    CUTE_NO_UNROLL
    for (int pieces = warp + 1; pieces <= ways; pieces += kThreads / 32) {
      Cost const longest = max(divide(dearest + (pieces - 1), Cost(pieces)), Cost{1});
      Cost finish = 0;
      int sum = 0;
      CUTE_NO_UNROLL
      for (int run = lane; run < count; run += 32) {
        int const blocks = records_.blocks_of(memory_.order[run]);
        int const own = even_pieces(blocks, longest);
        Cost end = divide(blocks + (own - 1), own) * block_cost() + item_cost();
        if (own > 1) end += static_cast<Cost>(own * params_.merge_cost + params_.partial_cost);
        finish = max(finish, end);
        sum += own;
      }
      finish = warp_max(finish);
      if (warp_sum(sum) * heads_ > num_blocks) finish = never;
      if (lane == 0) finishes[pieces - 1] = finish;
    }
    sync_threads<kThreads>();
    Cost const low = lane < ways ? finishes[lane] : never;
    Cost const high = lane + 32 < ways ? finishes[lane + 32] : never;
    Cost const least = never - warp_max(never - min(low, high));
    unsigned const first = __ballot_sync(kAllLanes, low == least);
    unsigned const later = __ballot_sync(kAllLanes, high == least);
    int const best = first != 0 ? __ffs(first) : 32 + __ffs(later);
    Cost const longest = max(divide(dearest + (best - 1), Cost(best)), Cost{1});
    if (even_pieces(records_.most_blocks, longest) == 1) return false;

    // Where the pieces of each run begin; a thread for each run.
    int const run = threadIdx.x;
    unsigned own = 0;
    if (run < count) own = heads_ * even_pieces(records_.blocks_of(memory_.order[run]), longest);
    unsigned const until = warp_scan(own);
    publish(__shfl_sync(kAllLanes, until, 31), memory_.slots);
    sync_threads<kThreads>();
    unsigned const before = collect_sum(memory_.slots, warp) + until - own;
    int const num_pieces = collect_sum(memory_.slots, kThreads / 32);
    if (run < count) memory_.ends[run] = before;
    sync_threads<kThreads>();

    int const cut = threadIdx.x;
    way_ = Way{{count * heads_, 0, total_cost()}, count - 1};  // of a block without a piece
    if (cut >= num_pieces) return true;
    int const at_run = last_at_most([&](int run) { return memory_.ends[run]; }, count, cut);
    int const blocks = records_.blocks_of(memory_.order[at_run]);
    int const pieces = even_pieces(blocks, longest);
    int const in_run = cut - memory_.ends[at_run];
    int const local = in_run / pieces;
    int const piece = in_run - local * pieces;
    int const at = static_cast<int>(divide(int64_t{piece} * blocks, int64_t{pieces}));
    Cost cost = cost_begin(at_run) + local * tile_cost(blocks);
    if (piece > 0) cost += item_cost() + at * block_cost();
    way_ = Way{{at_run * heads_ + local, at, cost}, at_run};
    return true;
  }

  // The cheapest way so far: splits to the plan, cuts to shared memory.
  CUTE_DEVICE void keep(Way const& way) {
    num_splits_ = way.num_splits;
    num_slots_ = way.num_slots;
    int const cut = threadIdx.x;
    if (cut > plan_.num_blocks) return;
    int const slot = way.cut.block > 0 ? way.made - 1 : -1;
    memory_.cuts[cut] = {way.cut.tile, way.cut.block, way.run, slot, way.first_slot, way.pieces};
    auto* const splits = reinterpret_cast<int4*>(plan_.splits());
    if (way.leads) splits[way.split] = int4{way.cut.tile, way.run, way.first_slot, way.pieces};
    if (cut >= way.num_splits && cut < plan_.num_blocks) splits[cut] = int4{0, 0, 0, 0};
  }

  CUTE_DEVICE void keep_between() { keep({{between_tile_, 0, 0}, run_}); }

  CUTE_DEVICE void write_header() const {
    int const count = records_.count;
    int4* const part = plan_.header();
    part[0] = int4{count, count * heads_, 0, num_splits_};
    part[1] = int4{params_.window_left, params_.window_right, num_slots_, params_.tile_q};
    part[2] = int4{params_.tile_kv, params_.group, heads_, plan_.num_blocks};
    part[3] = int4{kUnbounded, 0, 0, 0};
  }

  Requests const& records_;
  Params const& params_;
  typename Requests::Memory& memory_;
  PlanWriter plan_;
  int heads_;
  bool splittable_ = false;  // a tile is long enough for two pieces
  // This thread's cut:
  int between_tile_ = 0;
  int run_ = 0;  // where it ideally lies
  Way way_;      // to be priced
  // Of the way that is kept:
  int64_t finish_ = 0;
  int num_splits_ = 0;
  int num_slots_ = 0;
};

}  // namespace cute_attn
