// The planner of decode steps on the device: writes what cute_attn.scheduler.plan_batch returns,
// to the bit, for requests of one query tile each. One thread block; see abi/plan.py for the layout
// of the plan and scheduler/{planner,cuts,pricing}.py for what is computed and why.
//
// Every request has one run of equal tiles, one per KV head. Runs are sorted by their KV blocks,
// laid on a line, and thread i finds cut i of the line: anywhere, between tiles or in even pieces,
// whatever ends sooner.
#pragma once

#include <cute/config.hpp>
#include <cute_attn/decode_line.hpp>
#include <cute_attn/decode_records.hpp>
#include <cute_attn/named_barrier.hpp>

namespace cute_attn {

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
    __syncthreads();  // the cuts are there
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
