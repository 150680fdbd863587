// The variant's hooks on the scores of a consumer warpgroup. The generated file defines RowValues,
// row_values, variant_logits and variant_mask (codegen/hooks.py).
#pragma once

#include <cute_attn/hopper/lazy_softmax.hpp>
#include <cute_attn/lag.hpp>
#include <cute_attn/work.hpp>

namespace cute_attn {

// The query of one of the thread's two rows.
template <int kGroup>
struct RowOfThread {
  int head, q_idx;

  CUTE_DEVICE RowOfThread(Item const& item, int half) {
    int const packed = item.row_begin + thread_row() + 8 * half;
    head = item.kv_head * kGroup + packed % kGroup;
    q_idx = item.request.q_pos + packed / kGroup;
  }
};

// What the hooks want to know of the thread's rows: once per item.
template <int kGroup, class Params, class RowValues>
CUTE_DEVICE void look_up_rows(Params const& params, Item const& item, RowValues (&values)[2]) {
  CUTE_UNROLL
  for (int half = 0; half < 2; ++half) {
    RowOfThread<kGroup> const row(item, half);
    values[half] = row_values(params, item.request.batch(), row.head, row.q_idx);
  }
}

// Calls f(score, half, row, key, lag) for the thread's scores of one KV block; key: index in the
// request; lag: q_idx less the key's position.
template <int kTileKV, int kGroup, int N, class F>
CUTE_DEVICE void for_each_position(Item const& item, int block, float (&score)[N], F f) {
  int const key = block * kTileKV + 2 * (threadIdx.x % 4);
  int const first = item.request.q_pos - item.request.kv_pos - key;
  CUTE_UNROLL
  for (int half = 0; half < 2; ++half) {
    RowOfThread<kGroup> const row(item, half);
    Lag const lag = row_lag<kGroup>(first, item.row_begin + thread_row(), half);
    for_each_score(score, half,
                   [&](float& s, int column) { f(s, half, row, key + column, lag - column); });
  }
}

// Passes the scores of one KV block through the logits hook.
template <int kTileKV, int kGroup, class Params, class RowValues, int N>
CUTE_DEVICE void transform_scores(Params const& params, Item const& item,
                                  RowValues const (&values)[2], int block, float (&score)[N]) {
  using Row = RowOfThread<kGroup>;
  for_each_position<kTileKV, kGroup>(
      item, block, score, [&](float& s, int half, Row const& row, int key, Lag lag) {
        s = variant_logits(params, values[half], s * params.sm_scale, item.request.batch(), row.head,
                           row.q_idx, item.request.kv_pos + key, lag);
      });
}

// Hides what the mask does not let through of one KV block, and keys past the end of the request.
template <int kTileKV, int kGroup, class Params, class RowValues, int N>
CUTE_DEVICE void mask_scores(Params const& params, Item const& item, RowValues const (&values)[2],
                             int block, float hidden, float (&score)[N]) {
  using Row = RowOfThread<kGroup>;
  for_each_position<kTileKV, kGroup>(
      item, block, score, [&](float& s, int half, Row const& row, int key, Lag lag) {
        bool const keep = key < item.request.kv_len &&
                          variant_mask(params, values[half], item.request.batch(), row.head,
                                       row.q_idx, item.request.kv_pos + key, lag);
        s = keep ? s : hidden;
      });
}

}  // namespace cute_attn
