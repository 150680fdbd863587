// Plans the steps of a file with the planner of bundles; the plans go to another one. All int64 but
// for the buffers, which are int32. See test_planner.py.
#include <cstdio>
#include <cute_attn_bundle/planner.hpp>

namespace {

using cute_attn_planner::Numbers;

bool read(std::FILE* file, Numbers& values) {
  return std::fread(values.data(), 8, values.size(), file) == values.size();
}

void write(std::FILE* file, Numbers const& values) {
  std::fwrite(values.data(), 8, values.size(), file);
}

}  // namespace

int main(int, char** arguments) {
  std::FILE* const steps = std::fopen(arguments[1], "rb");
  std::FILE* const plans = std::fopen(arguments[2], "wb");
  if (steps == nullptr || plans == nullptr) return 1;
  Numbers head(19);
  while (read(steps, head)) {
    cute_attn_planner::PlanOptions options;
    options.split = head[1] != 0;
    options.min_piece = head[2];
    options.l2_budget = head[3];
    cute_attn_planner::Geometry const geometry{head[4], head[5], head[6],
                                               head[7], head[8], head[9]};
    cute_attn_planner::Costs const costs{head[10], head[11], head[12], head[13],
                                         head[14], head[15], head[16], head[17]};
    std::vector<cute_attn_planner::Request> requests;
    for (std::int64_t i = 0; i < head[18]; ++i) {
      Numbers row(7);
      if (!read(steps, row)) return 2;
      cute_attn_planner::Request request(row[0], row[1], row[2], row[3], row[6]);
      request.q_pos = row[4];
      request.kv_pos = row[5];
      requests.push_back(request);
    }
    auto const plan = cute_attn_planner::plan_batch(requests, geometry, head[0], costs, options);
    cute_attn_planner::WorkspaceSizes const sizes(head[0], geometry.tile_q, 128, 1 << 16, 256);
    write(plans,
          {static_cast<std::int64_t>(plan.buffer.size()), plan.num_tiles, plan.num_split_tiles,
           plan.num_slots, plan.merge_cost, cute_attn_planner::plan_capacity(head[0], head[18]),
           sizes.partial_out, sizes.partial_lse, sizes.total});
    write(plans, plan.block_costs);
    std::fwrite(plan.buffer.data(), 4, plan.buffer.size(), plans);
  }
  return std::fclose(plans) == 0 ? 0 : 3;
}
