// The planner of decode steps on the device: writes what cute_attn.scheduler.plan_batch returns,
// to the bit, for requests of one query tile each. One thread block; see abi/plan.py for the layout
// of the plan and scheduler/{planner,cuts,pricing}.py for what is computed and why.
//
// Every request has one run of equal tiles, one per KV head. Runs are sorted by their KV blocks,
// laid on a line, and thread i finds cut i of the line: anywhere, between tiles or in even pieces,
// whatever ends sooner.
#pragma once

#include <cute/config.hpp>
#include <cute_attn/block.hpp>
#include <cute_attn/paging.hpp>
#include <cute_attn/work.hpp>

namespace cute_attn {

constexpr int kMostPieces = 64;      // of a tile that is cut evenly
constexpr int kUnbounded = 1 << 30;  // window without a limit; lengths stay below it

// What is wrong with a request's lengths; api/device_planner.py has the words.
enum Fault : int {
  kNoFault = 0,
  kIndptrFalls = 1,
  kPastCapacity = 2,
  kLastPage = 3,
  kSequence = 4,
  kTooLong = 5,
  kTooMany = 6,
};

// What is read of a request; requests' loads are issued before the first one is used.
struct RawLength {
  int begin;
  int end;  // or the length, where there are seq_lens
  int last;
};

template <class Params>
CUTE_DEVICE RawLength load_length(Params const& params, int request) {
  if (params.seq_lens != nullptr) return {0, params.seq_lens[request], 0};
  int const* const at = params.kv_indptr + request;
  bool const paged = params.kv_last_page_len != nullptr;
  return {at[0], at[1], paged ? params.kv_last_page_len[request] : 0};
}

struct KvLength {
  int start;  // first KV row, or first entry in the page table
  int len;    // keys
  Fault fault;
  int value;  // what is wrong
};

template <class Params>
CUTE_DEVICE KvLength kv_length(Params const& params, int request, RawLength const& raw) {
  if (params.seq_lens != nullptr) {
    if (raw.end < 0 || raw.end > params.capacity) return {0, 0, kSequence, raw.end};
    return {request * params.table_stride, raw.end, kNoFault, 0};
  }
  bool const paged = params.kv_last_page_len != nullptr;
  int const entries = raw.end - raw.begin;
  int64_t len = entries;
  bool right = raw.begin >= 0 && entries >= 0 && raw.end <= params.capacity;
  if (paged && entries > 0) {
    len = int64_t{entries - 1} * params.page_size + raw.last;
    right = right && 0 < raw.last && raw.last <= params.page_size;
  }
  if (right && len < kUnbounded) return {raw.begin, static_cast<int>(len), kNoFault, 0};
  if (raw.begin < 0 || raw.end < raw.begin) return {0, 0, kIndptrFalls, raw.end};
  if (raw.end > params.capacity) return {0, 0, kPastCapacity, raw.end};
  if (!right) return {0, 0, kLastPage, raw.last};
  return {0, 0, kTooLong, entries};
}

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

// KV blocks that a request's tile visits: `visible_blocks` for queries that end at the last key.
template <class Params>
CUTE_DEVICE int visible_blocks(Params const& params, int kv_len) {
  PageDivider const divider{params.tile_kv, params.tile_magic, params.tile_shift};
  int const end = divider.page_of(kv_len + params.tile_kv - 1);
  if (params.window_left == kUnbounded) return end;
  int const low = max(kv_len - params.q_len - params.window_left, 0);
  return kv_len > low ? end - divider.page_of(low) : 0;
}

template <int kThreads, int kMaxRequests>
struct PlannerMemory {
  static constexpr int kMostWarps = 32;

  union {
    struct {
      SortScratch<kThreads> sort;
      unsigned placed[kMaxRequests];  // by the sort; before it, the lengths of last pages
    };
    unsigned blocks_begin[kMaxRequests];  // KV blocks of a head before each run
  };
  int kv_len[kMaxRequests];            // in the caller's order
  int kv_start[kMaxRequests];          // in the caller's order
  unsigned short order[kMaxRequests];  // the request of each record
  int64_t between_cost[kThreads];      // of everything before each cut between tiles,
  int64_t inside_cost[kThreads];       // and of cuts anywhere; or int
  int cut_tile[kThreads];
  int cut_block[kThreads];
  int ends[kThreads];                // of each split tile: slots up to the second of its own
  int64_t even_finish[kMostPieces];  // of ways to cut evenly, by the pieces of the dearest tile
  alignas(8) Cut cuts[kThreads];     // as they will be in the plan
  int count;                         // requests that are planned
  // Per warp:
  int extremes[3][kMostWarps];  // writers read lengths too
  unsigned blocks[kMostWarps];
  int64_t costs[2][kThreads / 32];
  unsigned slots[kThreads / 32];  // or blocks
  int pieces[kThreads / 32];
};

// The sections of a plan, to be written.
struct PlanWriter {
  int* buffer;
  int num_blocks;

  CUTE_DEVICE int4* header() const { return reinterpret_cast<int4*>(buffer); }
  CUTE_DEVICE Start* starts() const { return reinterpret_cast<Start*>(buffer + 16); }
  CUTE_DEVICE Split* splits() const { return reinterpret_cast<Split*>(starts() + num_blocks); }
  CUTE_DEVICE Cut* cuts() const { return reinterpret_cast<Cut*>(splits() + num_blocks); }
  CUTE_DEVICE int* cuts_end() const { return reinterpret_cast<int*>(cuts() + num_blocks + 1); }
  CUTE_DEVICE Request* requests() const {
    int const offset = cuts_end() - buffer;
    return reinterpret_cast<Request*>(buffer + (offset + 7) / 8 * 8);
  }
};

// target[i] = vector_of(i) for the first `size` i, by kWriting threads, two on their way per
// thread.
template <int kWriting, class Vector, class VectorOf>
CUTE_DEVICE void write_vectors(Vector* target, int size, int thread, VectorOf const& vector_of) {
  CUTE_NO_UNROLL
  for (int i = thread; i < size; i += 2 * kWriting) {
    int const other = i + kWriting;
    Vector const first = vector_of(i);
    Vector const second = vector_of(min(other, size - 1));
    target[i] = first;
    if (other < size) target[other] = second;
  }
}

// A position on the line, before KV block `block` of `tile`.
template <class Cost>
struct Position {
  int tile;
  int block;
  Cost cost;  // of everything before it
};

// The requests of a step, sorted.
template <int kThreads, int kMaxRequests, class Params>
struct Records {
  using Memory = PlannerMemory<kThreads, kMaxRequests>;

  Params const& params;
  Memory& memory;
  int count = 0;  // requests that are planned
  int most_blocks = 0;
  int least_blocks = 0;
  unsigned num_blocks = 0;  // of one head of all requests

  static constexpr int kClean = 0x7FFFFFFF;

  CUTE_DEVICE int blocks_of(int request) const {
    return visible_blocks(params, memory.kv_len[request]);
  }

  // kv_len, kv_start and order, and what the warp knows of them, for `collect`.
  template <int kAll>
  CUTE_DEVICE void read() {
    int const given = params.num_requests;
    int most = 0;
    int least = kUnbounded;
    unsigned sum = 0;
    int fault = kClean;  // request * 8 + what is wrong, of the first one
    if (threadIdx.x < kThreads) memory.sort.keys[threadIdx.x] = 0;
    constexpr int kTogether = 4;  // loads that do not wait for each other
    CUTE_NO_UNROLL
    for (int first = threadIdx.x; first < given; first += kTogether * kAll) {
      RawLength raw[kTogether];
      CUTE_UNROLL
      for (int r = 0; r < kTogether; ++r) {
        if (first + r * kAll < given) raw[r] = load_length(params, first + r * kAll);
      }
      CUTE_UNROLL
      for (int r = 0; r < kTogether; ++r) {
        int const i = first + r * kAll;
        if (i >= given) break;
        memory.kv_start[i] = raw[r].begin;
        memory.kv_len[i] = raw[r].end;
        memory.placed[i] = raw[r].last;
      }
    }
    CUTE_NO_UNROLL
    for (int i = threadIdx.x; i < given; i += kAll) {
      RawLength const raw{memory.kv_start[i], memory.kv_len[i], static_cast<int>(memory.placed[i])};
      KvLength const kv = kv_length(params, i, raw);
      if (kv.fault != kNoFault) fault = min(fault, i * 8 + kv.fault);
      int const blocks = visible_blocks(params, kv.len);
      memory.kv_len[i] = kv.len;
      memory.kv_start[i] = kv.start;
      memory.order[i] = i;
      if (i < kThreads) memory.sort.keys[i] = few_key(blocks, i);
      most = max(most, blocks);
      least = min(least, blocks);
      sum += blocks;
    }
    publish(warp_max(most), memory.extremes[0]);
    publish(warp_max(-least), memory.extremes[1]);
    publish(warp_max(-fault), memory.extremes[2]);
    publish(warp_sum(sum), memory.blocks);
  }

  // count (0 if a length is wrong), and what is known of the blocks, after a barrier of all.
  template <int kAll>
  CUTE_DEVICE void collect() {
    count = params.num_requests;
    most_blocks = collect_max<kAll>(memory.extremes[0]);
    least_blocks = -collect_max<kAll>(memory.extremes[1]);
    int first_fault = -collect_max<kAll>(memory.extremes[2]);
    num_blocks = collect_sum(memory.blocks, kAll / 32);
    bool const fit = most_blocks * int64_t{count} < int64_t{1} << 32;  // sums of blocks
    if (first_fault == kClean && !fit) first_fault = kTooMany;
    if (first_fault != kClean) count = num_blocks = 0;
    if (threadIdx.x == 0) {
      memory.count = count;
      if (first_fault != kClean) note(first_fault / 8, Fault(first_fault % 8));
    }
  }

  // The first fault stays until it is read.
  CUTE_DEVICE void note(int request, Fault fault) const {
    if (params.status[0] != 0) return;
    params.status[0] = fault;
    params.status[1] = request;
    params.status[2] = fault == kTooMany
                           ? most_blocks
                           : kv_length(params, request, load_length(params, request)).value;
  }

  // Most blocks first, ties by index.
  CUTE_DEVICE void sort() {
    if (most_blocks == least_blocks || count < 2) return;
    if (count <= kFew<kThreads> && most_blocks < kMostFewBlocks) {
      sort_few(count, memory.order, memory.sort);
      return;
    }
    auto const key = [&](int request) {
      return static_cast<unsigned>(most_blocks - blocks_of(request));
    };
    sort_by_digits<kThreads>(key, most_blocks - least_blocks, count, memory.order, memory.placed,
                             memory.sort);
  }

  static constexpr int kMostFewBlocks = 1 << 24;
  CUTE_DEVICE static unsigned few_key(int blocks, int request) {
    return static_cast<unsigned>(blocks) << 8 | (255 - request % 256);
  }

  // Half of record number `at`; the one behind the last is the sentinel. No branches, so that
  // several can be on their way.
  CUTE_DEVICE int4 half_record(int at, int half) const {
    bool const real = at < count;
    int const request = memory.order[real ? at : 0];
    int const kv_len = memory.kv_len[request];
    int const kv_start = memory.kv_start[request];
    int const q_len = params.q_len;
    int4 const first{request * q_len, q_len, kv_start, kv_len};
    int4 const second{kv_len - q_len, 0, 0, request | params.num_kv_heads << 24};
    int const keep = real ? -1 : 0;
    return {(half ? second.x : first.x) & keep, (half ? 0 : first.y) & keep,
            half ? at * params.num_kv_heads : first.z & keep, (half ? second.w : first.w) & keep};
  }

  // A quarter of what thread block `block` needs first.
  CUTE_DEVICE int4 quarter_start(int block, int quarter) const {
    Cut const& cut = memory.cuts[block];
    int const record =
        min(cut.request + (cut.tile >= (cut.request + 1) * params.num_kv_heads), count);
    int4 const half = half_record(record, quarter - 1);
    if (quarter == 0) return {cut.tile, record, params.window_left, params.window_right};
    if (quarter == 3) return {0, count, kUnbounded, 0};
    return half;
  }

  // Of kWriting threads, neighbours write neighbouring vectors: whole sectors at once.
  template <int kWriting>
  CUTE_DEVICE void write_records(PlanWriter const& plan, int thread) const {
    auto* const halves = reinterpret_cast<int4*>(plan.requests());
    write_vectors<kWriting>(halves, 2 * (count + 1), thread,
                            [&](int i) { return half_record(i / 2, i % 2); });
    // Nobody reads the gap before them, but equal plans have equal bits.
    int* const gap = plan.cuts_end() + thread;
    if (gap < reinterpret_cast<int*>(halves)) *gap = 0;
  }

  // The same for cuts and starts.
  template <int kWriting>
  CUTE_DEVICE void write_cuts(PlanWriter const& plan, int thread) const {
    write_vectors<kWriting>(reinterpret_cast<int4*>(plan.starts()), 4 * plan.num_blocks, thread,
                            [&](int i) { return quarter_start(i / 4, i % 4); });
    auto const* const rows = reinterpret_cast<int2 const*>(memory.cuts);
    write_vectors<kWriting>(reinterpret_cast<int2*>(plan.cuts()), 3 * (plan.num_blocks + 1), thread,
                            [&](int i) { return rows[i]; });
  }
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

// The threads of a block: kThreads planners, of which each finds a cut, and then kWriters that only
// write. Every phase of the planners is a chain of latencies, which hide what writers do.
template <int kThreads, int kWriters, int kMaxRequests, class Params>
class DecodePlanner {
  using Requests = Records<kThreads, kMaxRequests, Params>;

 public:
  static constexpr int kAll = kThreads + kWriters;
  static_assert(kMaxRequests < 1 << 16);
  static constexpr int kRead = 2;  // barriers
  static constexpr int kSorted = 3;
  static constexpr int kCut = 4;

  Requests records;
  PlanWriter plan;

  CUTE_DEVICE DecodePlanner(Params const& params, typename Requests::Memory& memory)
      : records{params, memory}, plan{params.plan, params.num_blocks} {}

  CUTE_DEVICE void run() {
    records.template read<kAll>();
    if (threadIdx.x >= kThreads) {
      barrier_arrive(kRead, kAll);
      barrier_sync(kSorted, kAll);
      records.count = records.memory.count;
      records.template write_records<kWriters>(plan, threadIdx.x - kThreads);
    } else {
      barrier_sync(kRead, kAll);
      records.template collect<kAll>();
      records.sort();
      if (kWriters > 0) {
        barrier_arrive(kSorted, kAll);
      } else {
        records.template write_records<kThreads>(plan, threadIdx.x);
      }
      if (is_cheap()) {
        Line<int, kThreads, kMaxRequests, Params>(records, plan).run();
      } else {
        Line<int64_t, kThreads, kMaxRequests, Params>(records, plan).run();
      }
    }
    barrier_sync(kCut, kAll);
    records.template write_cuts<kAll>(plan, threadIdx.x);
  }

 private:
  // Whether int holds all costs: none is more than all tiles, an item, two partial results and
  // their merge.
  CUTE_DEVICE bool is_cheap() const {
    Params const& params = records.params;
    int64_t const items = (records.count + 1) * params.item_cost;
    int64_t const blocks = (int64_t{records.num_blocks} + params.min_piece) * params.block_cost;
    int64_t const merge = 2 * params.partial_cost + kMostPieces * params.merge_cost;
    return params.num_kv_heads * (items + blocks) + merge < 1 << 30;
  }
};

}  // namespace cute_attn
