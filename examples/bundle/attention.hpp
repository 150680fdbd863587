// Attention over paged KV with kernels of a bundle: choose, plan, fill in the parameters, launch.
#pragma once

#include <bundle.h>

#include <cute_attn_bundle/planner.hpp>
#include <map>
#include <string>
#include <vector>

#include "driver.hpp"
#include "step.hpp"

namespace example {

// A kernel in the driver.
struct Function {
  void* handle = nullptr;

  Function(Driver const& driver, std::string const& bundle, cute_attn_kernel const& kernel) {
    std::vector<char> const cubin = read_file(bundle + "/" + kernel.cubin);
    if (cubin.size() != kernel.cubin_bytes) {
      throw std::runtime_error(std::string(kernel.cubin) + " is not the file that was exported");
    }
    void* module = nullptr;
    driver.call<void**, void const*>("cuModuleLoadData", &module, cubin.data());
    driver.call<void**, void*, char const*>("cuModuleGetFunction", &handle, module, kernel.name);
    constexpr int kMaxDynamicSharedBytes = 8;
    driver.call<void*, int, int>("cuFuncSetAttribute", handle, kMaxDynamicSharedBytes,
                                 static_cast<int>(kernel.smem_bytes));
  }
};

// The struct that a kernel takes by value, and writers of its fields by name.
class Parameters {
 public:
  explicit Parameters(cute_attn_kernel const& kernel)
      : kernel_(kernel), memory_(kernel.parameter_bytes / sizeof(Line) + 1) {}

  void* address() { return memory_.data(); }
  bool has(char const* name) const { return cute_attn_find_field(&kernel_, name) != nullptr; }

  template <class T>
  void set(char const* name, T value) {
    if (!cute_attn_put(&kernel_, address(), name, &value, sizeof value)) {
      throw std::runtime_error(std::string(kernel_.name) + " has no parameter " + name);
    }
  }
  // If the kernel has it.
  template <class T>
  void offer(char const* name, T value) {
    if (has(name)) set(name, value);
  }

 private:
  struct alignas(64) Line {  // as tensor maps want it
    char bytes[64];
  };
  cute_attn_kernel const& kernel_;
  std::vector<Line> memory_;  // zeros
};

class Attention {
 public:
  // What came of a step.
  struct Result {
    std::vector<std::uint16_t> out;  // (tokens, qo_heads, head_dim_vo), bits of the elements
    std::vector<float> lse;          // (tokens, qo_heads)
    std::vector<std::int32_t> arrivals;
    std::string about;
  };

  Attention(Driver const& driver, std::string const& bundle) : driver_(driver), bundle_(bundle) {
    if (driver.version() < cute_attn_this_bundle.required_cuda) {
      throw std::runtime_error("the bundle needs a driver for CUDA " +
                               std::to_string(cute_attn_this_bundle.required_cuda / 1000));
    }
  }

  Result run(Step const& step) {
    int const page_size = step.integer("page_size");
    char const* const schedule = step.schedule.empty() ? nullptr : step.schedule.c_str();
    cute_attn_problem const* const problem = cute_attn_find_problem(
        &cute_attn_this_bundle, driver_.major(), driver_.minor(), page_size, schedule);
    if (problem == nullptr) {
      throw std::runtime_error(
          "the bundle has no code for compute capability " + std::to_string(driver_.major()) + "." +
          std::to_string(driver_.minor()) + " and pages of " + std::to_string(page_size));
    }
    cute_attn_derived derived;
    problem->derive(step.number("sm_scale"), step.list("scalars").data(), &derived);

    // Choose and plan.
    std::vector<std::int32_t> const qo_indptr = step.integers("qo_indptr");
    std::vector<std::int32_t> const kv_indptr = step.integers("kv_indptr");
    std::vector<std::int32_t> const kv_last_page_len = step.integers("kv_last_page_len");
    int const num_requests = static_cast<int>(kv_last_page_len.size());
    std::vector<cute_attn_planner::Request> const requests = cute_attn_planner::requests_of(
        num_requests, qo_indptr.data(),
        cute_attn_planner::KvLengths::paged(kv_indptr.data(), kv_last_page_len.data(), page_size,
                                            kv_indptr.back()));
    std::vector<std::int32_t> q_len, kv_len;
    for (cute_attn_planner::Request const& request : requests) {
      q_len.push_back(static_cast<std::int32_t>(request.q_len));
      kv_len.push_back(static_cast<std::int32_t>(request.kv_len));
    }
    std::int64_t const tokens = qo_indptr.back();
    int const num_kv_heads = step.integer("num_kv_heads");
    cute_attn_kernel const* const kernel =
        cute_attn_choose(problem, num_requests, q_len.data(), kv_len.data(), num_kv_heads,
                         driver_.num_sms(), derived.window_left, derived.window_right);
    if (kernel == nullptr) throw std::runtime_error("the bundle has no kernel for the step");
    std::int64_t const num_blocks = std::int64_t{driver_.num_sms()} * kernel->blocks_per_sm;
    cute_attn_planner::Geometry const geometry{kernel->tile_q,      kernel->tile_kv,
                                               kernel->group,       num_kv_heads,
                                               derived.window_left, derived.window_right};
    cute_attn_planner::Plan const plan = cute_attn_planner::plan_batch(
        requests, geometry, num_blocks, cute_attn_planner::costs_of(*kernel));

    // Memory. What must be written is full of NaN.
    std::int64_t const heads = std::int64_t{num_kv_heads} * kernel->group;
    std::int64_t const dim = kernel->head_dim_qk, dim_vo = kernel->head_dim_vo;
    cute_attn_planner::WorkspaceSizes const sizes(num_blocks, kernel->tile_q, dim_vo,
                                                  cute_attn_this_bundle.arrivals_bytes,
                                                  cute_attn_this_bundle.workspace_alignment);
    Memory const q(driver_, step.array<std::uint16_t>("q"));
    Memory const k(driver_, step.array<std::uint16_t>("k"));
    Memory const v(driver_, step.array<std::uint16_t>("v"));
    Memory const page_table(driver_, step.array<std::int32_t>("page_table"));
    Memory const plan_memory(driver_, plan.buffer);
    Memory const out(driver_, tokens * heads * dim_vo * 2, 0xFF);
    Memory const lse(driver_, tokens * heads * 4, 0xFF);
    Memory const arrivals(driver_, sizes.arrivals_bytes, 0);
    Memory const partials(driver_, sizes.total - sizes.arrivals_bytes, 0xFF);

    // Parameters.
    Parameters parameters(*kernel);
    DevicePointer const partial_out = partials.address();
    DevicePointer const partial_lse = partial_out + (sizes.partial_lse - sizes.partial_out);
    auto const set_rows = [&](Parameters& target) {
      target.set("out", out.address());
      target.set("lse", lse.address());
      target.set("plan", plan_memory.address());
      target.set("partial_out", partial_out);
      target.set("partial_lse", partial_lse);
      target.set("out_token_stride", std::int64_t{heads * dim_vo});
      target.set("out_head_stride", std::int64_t{dim_vo});
      target.set("num_kv_heads", std::int32_t{num_kv_heads});
      for (int i = 0; i < problem->num_scalars; ++i) {
        cute_attn_scalar const& scalar = problem->scalars[i];
        double const value = step.list("scalars").at(i);
        if (scalar.kind == CUTE_ATTN_F32) target.offer(scalar.name, static_cast<float>(value));
        if (scalar.kind == CUTE_ATTN_I32)
          target.offer(scalar.name, static_cast<std::int32_t>(value));
      }
    };
    set_rows(parameters);
    parameters.offer("arrivals", arrivals.address());
    parameters.set("sm_scale", derived.sm_scale);
    parameters.set("scale_log2", derived.scale_log2);
    parameters.offer("beside", std::int32_t{0});
    std::uint32_t magic;
    std::int32_t shift;
    cute_attn_page_division(page_size, &magic, &shift);
    parameters.set("page_table", page_table.address());
    parameters.set("num_pages", std::int32_t{step.integer("num_pages")});
    parameters.set("page_size", std::int32_t{page_size});
    parameters.set("page_magic", magic);
    parameters.set("page_shift", shift);
    // (pages, page_size, kv_heads, head_dim), contiguous
    auto const pages_of = [&](std::int64_t width) {
      return cute_attn_kv{
          step.integer("num_pages"), page_size, num_kv_heads, page_size * num_kv_heads * width,
          num_kv_heads * width,      width};
    };
    cute_attn_q const q_shape{tokens, heads, heads * dim, dim};
    cute_attn_kv const k_shape = pages_of(dim), v_shape = pages_of(dim_vo);
    set_tensors(parameters, *kernel, {q_shape, q.address()}, {k_shape, k.address()},
                {v_shape, v.address()});

    // Launch.
    auto const grid = static_cast<unsigned>(num_blocks);
    launch(*kernel, parameters, grid);
    if (kernel->merge != nullptr && plan.num_split_tiles > 0) {
      Parameters of_merge(*kernel->merge);
      set_rows(of_merge);
      launch(*kernel->merge, of_merge, grid);
    }
    driver_.synchronize();
    std::string about = kernel->name;
    about += ": " + std::to_string(plan.num_tiles) + " tiles, " +
             std::to_string(plan.num_split_tiles) + " split, " +
             (kernel->num_tensor_maps > 0 ? "tensor maps, " : "no tensor maps, ") +
             (kernel->merge == nullptr ? "merges itself" : "merge kernel");
    return {out.read<std::uint16_t>(tokens * heads * dim_vo), lse.read<float>(tokens * heads),
            arrivals.read<std::int32_t>(sizes.arrivals_bytes / 4), about};
  }

 private:
  template <class Shape>
  struct Tensor {
    Shape shape;
    DevicePointer address;
  };

  // q, k and v: as tensor maps where the kernel takes such, else by pointers and strides.
  void set_tensors(Parameters& parameters, cute_attn_kernel const& kernel,
                   Tensor<cute_attn_q> const& q, Tensor<cute_attn_kv> const& k,
                   Tensor<cute_attn_kv> const& v) const {
    if (parameters.has("q")) {
      parameters.set("q", q.address);
      parameters.set("q_token_stride", q.shape.token_stride);
      parameters.set("q_head_stride", q.shape.head_stride);
    }
    if (parameters.has("k")) {
      parameters.set("k", k.address);
      parameters.set("k_page_stride", k.shape.page_stride);
      parameters.set("k_token_stride", k.shape.row_stride);
      parameters.set("k_head_stride", k.shape.head_stride);
      parameters.set("v", v.address);
      parameters.set("v_page_stride", v.shape.page_stride);
      parameters.set("v_token_stride", v.shape.row_stride);
      parameters.set("v_head_stride", v.shape.head_stride);
    }
    std::int64_t const box_rows = cute_attn_box_rows(&kernel, &k.shape, &v.shape);
    parameters.offer("box_rows", static_cast<std::int32_t>(box_rows));
    auto const groups = [](cute_attn_kv const& shape) {
      return static_cast<std::int32_t>(cute_attn_page_groups(&shape));
    };
    parameters.offer("k_page_groups", groups(k.shape));
    parameters.offer("v_page_groups", groups(v.shape));
    for (int i = 0; i < kernel.num_tensor_maps; ++i) {
      cute_attn_tensor_map const& map = kernel.tensor_maps[i];
      cute_attn_map_arguments arguments;
      DevicePointer address = q.address;
      if (map.tensor == 'q') {
        cute_attn_q_arguments(&map, &q.shape, &arguments);
      } else {
        Tensor<cute_attn_kv> const& tensor = map.tensor == 'k' ? k : v;
        if (!cute_attn_takes_map(&map, &tensor.shape)) continue;
        cute_attn_kv_arguments(&map, &tensor.shape, box_rows, &arguments);
        address = tensor.address;
      }
      char* const target = static_cast<char*>(parameters.address()) +
                           cute_attn_find_field(&kernel, map.field)->offset;
      driver_.call<void*, int, std::uint32_t, DevicePointer, std::uint64_t const*,
                   std::uint64_t const*, std::uint32_t const*, std::uint32_t const*, int, int, int,
                   int>("cuTensorMapEncodeTiled", target, arguments.data_type, arguments.rank,
                        address, arguments.sizes, arguments.strides, arguments.box,
                        arguments.element_strides, 0, arguments.swizzle, arguments.l2_promotion, 0);
    }
  }

  void launch(cute_attn_kernel const& kernel, Parameters& parameters, unsigned grid) {
    auto found = functions_.find(kernel.name);
    if (found == functions_.end()) {
      found = functions_.emplace(kernel.name, Function(driver_, bundle_, kernel)).first;
    }
    void* arguments[] = {parameters.address()};
    driver_.call<void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                 void**, void**>("cuLaunchKernel", found->second.handle, grid, kernel.grid_y, 1,
                                 kernel.block, 1, 1, kernel.smem_bytes, nullptr, arguments,
                                 nullptr);
  }

  Driver const& driver_;
  std::string bundle_;
  std::map<std::string, Function> functions_;
};

}  // namespace example
