// The last step of a plan made on the device in which every KV head of a request has a record of
// its own (`heads_in_ids` in cute_attn/abi/plan.py): its query rows are those of the request.
#pragma once

#include <cute_attn/decode_records.hpp>

namespace cute_attn {

// By all kThreads threads of the block, behind the planner.
template <int kThreads, class Params>
CUTE_DEVICE void tell_heads(Params const& params) {
  __syncthreads();  // the plan is there
  PlanWriter const plan{params.plan, params.num_blocks};
  auto const tell = [&](Request& record) {
    record.q_start = record.batch() / params.heads_in_ids * params.q_len;
  };
  int const count = plan.buffer[0];
  for (int i = threadIdx.x; i < count; i += kThreads) tell(plan.requests()[i]);
  for (int i = threadIdx.x; i < plan.num_blocks; i += kThreads) tell(plan.starts()[i].record);
  if (threadIdx.x == 0) plan.buffer[15] = params.heads_in_ids;
}

}  // namespace cute_attn
