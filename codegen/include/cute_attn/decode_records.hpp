// The first half of the device planner (plan_decode.hpp): lengths are read, checked and sorted, and
// become the records of the plan; `PlannerMemory` is the shared memory of both halves.
#pragma once

#include <cute/config.hpp>
#include <cute_attn/block.hpp>
#include <cute_attn/paging.hpp>
#include <cute_attn/plan_lengths.hpp>
#include <cute_attn/work.hpp>

namespace cute_attn {

constexpr int kMostPieces = 64;  // of a tile that is cut evenly

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

}  // namespace cute_attn
