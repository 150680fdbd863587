// What the planner is asked, and what it answers: the host's view of a plan.
//
// The C++ text of cute_attn/scheduler (batch.py, cost.py) and cute_attn/abi/plan.py, where all
// terms are explained. C++17, the standard library alone.
#pragma once

#include <cute_attn_bundle/bundle.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace cute_attn_planner {

using Numbers = std::vector<std::int64_t>;

constexpr std::int64_t kUnbounded = std::int64_t{1} << 30;  // a window without a limit
constexpr std::int64_t kMostInt32 = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t kMaxBatch = std::int64_t{1} << 20;  // requests, and their ids
constexpr std::int64_t kMaxSectionHeads = 127;
constexpr std::int64_t kMaxListedRounds = 16;

// Sections of the plan buffer; rows in int32.
constexpr std::int64_t kHeaderInts = 16;
constexpr std::int64_t kStartInts = 16;
constexpr std::int64_t kSplitInts = 4;
constexpr std::int64_t kCutInts = 6;
constexpr std::int64_t kRequestInts = 8;

// a / b, towards minus infinity; b > 0.
inline std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  std::int64_t const quotient = a / b;
  return quotient - (a % b < 0);
}

// a / b, towards plus infinity; a >= 0, b > 0.
inline std::int64_t ceil_divide(std::int64_t a, std::int64_t b) { return (a + (b - 1)) / b; }

// One request of a step. Positions: by default the last query stands at the last key.
struct Request {
  std::int64_t q_start;  // first query row in q and out
  std::int64_t q_len;    // query tokens
  std::int64_t
      kv_start;         // ragged: first KV row; paged: offset of its first entry in the page table
  std::int64_t kv_len;  // keys
  std::int64_t q_pos;   // position of the first query; may be negative
  std::int64_t kv_pos;  // position of the first key
  std::int64_t id;      // what kernels call it: its place in the caller's order

  Request(std::int64_t q_start, std::int64_t q_len, std::int64_t kv_start, std::int64_t kv_len,
          std::int64_t id)
      : q_start(q_start),
        q_len(q_len),
        kv_start(kv_start),
        kv_len(kv_len),
        q_pos(kv_len - q_len),
        kv_pos(0),
        id(id) {}
};

// The tile shape of a kernel, and the band of visible keys: key j is visible to position i if
// i - window_left <= j <= i + window_right.
struct Geometry {
  std::int64_t tile_q;   // packed query rows per tile
  std::int64_t tile_kv;  // keys per KV block
  std::int64_t group;    // query heads per KV head
  std::int64_t num_kv_heads;
  std::int64_t window_left = kUnbounded;
  std::int64_t window_right = kUnbounded;
};

// The cost model; what its numbers mean is explained in the manifest's schema.
struct Costs {
  std::int64_t tile_ns;
  std::int64_t row_key_ps;
  std::int64_t key_ps;
  std::int64_t partial_row_ps;
  std::int64_t merge_ns;
  std::int64_t key_bytes;
  std::int64_t masked_ns;
  std::int64_t merge_row_ps;

  // Nanoseconds of an item beside its KV blocks.
  std::int64_t item(Geometry const& geometry) const {
    int const ends = (geometry.window_right != kUnbounded) + (geometry.window_left != kUnbounded);
    return tile_ns + ends * masked_ns;
  }
  // Tensor-core nanoseconds of a KV block.
  std::int64_t compute_block(Geometry const& geometry) const {
    return geometry.tile_q * geometry.tile_kv * row_key_ps / 1000;
  }
  // Nanoseconds to read a KV block from HBM, at a fair share of the bandwidth.
  std::int64_t read_block(Geometry const& geometry) const {
    return geometry.tile_kv * key_ps / 1000;
  }
  // The same on average over a step that reads `loaded` blocks and leaves the share of `computed`.
  std::int64_t read_block_in_step(Geometry const& geometry, std::int64_t loaded,
                                  std::int64_t computed) const {
    __extension__ using Wide = __int128;
    std::int64_t const read = read_block(geometry);
    Wide const total = Wide{loaded} * read;
    if (total == 0) return read;
    Wide const left = total - Wide{computed} * compute_block(geometry);
    return left > 0 ? static_cast<std::int64_t>(read * left / total) : 0;
  }
  // Cost of a KV block for requests of `q_tiles` query tiles per head.
  std::int64_t block(Geometry const& geometry, std::int64_t q_tiles, std::int64_t read) const {
    std::int64_t const one = 1;
    return std::max(read / std::max(q_tiles, one), std::max(compute_block(geometry), one));
  }
};

// Those of a kernel of a bundle.
inline Costs costs_of(cute_attn_kernel const& kernel) {
  cute_attn_costs const& c = kernel.costs;
  return {c.tile_ns,  c.row_key_ps, c.key_ps,    c.partial_row_ps,
          c.merge_ns, c.key_bytes,  c.masked_ns, c.merge_row_ps};
}

// How a step is planned.
struct PlanOptions {
  bool split = true;           // tiles may be split
  std::int64_t min_piece = 0;  // KV blocks of the shortest piece; 0: by the costs
  std::int64_t l2_budget = std::int64_t{4} << 20;  // bytes of K and V that running tiles share
};

// A plan: `buffer` goes to the device.
struct Plan {
  std::vector<std::int32_t> buffer;
  std::int64_t num_tiles = 0;
  std::int64_t num_split_tiles = 0;
  std::int64_t num_slots = 0;  // partial results
  Numbers block_costs;         // (num_blocks) ns, by the cost model
  std::int64_t merge_cost = 0;
};

// Offset of the request records, in int32.
inline std::int64_t requests_offset(std::int64_t num_blocks) {
  std::int64_t const cuts = kHeaderInts + (kStartInts + kSplitInts) * num_blocks;
  return ceil_divide(cuts + kCutInts * (num_blocks + 1), kRequestInts) * kRequestInts;
}

// int32 of the largest plan for so many thread blocks and requests.
inline std::int64_t plan_capacity(std::int64_t num_blocks, std::int64_t max_requests) {
  return requests_offset(num_blocks) + kRequestInts * (max_requests + 1) +
         (kMaxListedRounds * num_blocks + 1) / 2;
}

// Bytes of device memory for the partial results of any plan, in one piece; arrivals come first,
// are int32 and 0 before the first launch.
struct WorkspaceSizes {
  std::int64_t arrivals_bytes;
  std::int64_t partial_out;  // offset
  std::int64_t partial_lse;  // offset
  std::int64_t total;

  WorkspaceSizes(std::int64_t num_blocks, std::int64_t tile_q, std::int64_t head_dim_vo,
                 std::int64_t arrivals_bytes, std::int64_t alignment)
      : arrivals_bytes(arrivals_bytes) {
    std::int64_t const rows = 2 * (num_blocks - 1) * tile_q;
    partial_out = arrivals_bytes;
    partial_lse = partial_out + ceil_divide(4 * rows * head_dim_vo, alignment) * alignment;
    total = partial_lse + ceil_divide(4 * rows, alignment) * alignment;
  }
};

}  // namespace cute_attn_planner
