// The variant's hooks on the scores of a consumer warpgroup. The generated file defines RowValues,
// row_values, variant_logits and variant_mask (codegen/hooks.py).
//
// In a flat block the elements of tensors that hooks read at the keys' positions are one number for
// each row: FlatValues, and functions that begin with flat_ (codegen/flat_hooks.py).
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

// The keys of one of the thread's two rows in a block, counted from the thread's first one: those
// of the request end at `end`, and the query's own position is at `own`.
template <int kTileKV, int kGroup>
struct KeysOfRow {
  RowOfThread<kGroup> row;
  int end, own;

  CUTE_DEVICE KeysOfRow(Item const& item, int block, int half) : row(item, half) {
    int const key = block * kTileKV + 2 * (threadIdx.x % 4);
    end = item.request.kv_len - key;
    own = row.q_idx - item.request.kv_pos - key;
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
        s = variant_logits(params, values[half], s * params.sm_scale, item.request.batch(),
                           row.head, row.q_idx, item.request.kv_pos + key, lag);
      });
}

// Which blocks of an item are flat, of kernels that mask by the band. All lanes of a warp ask
// together, from the last block to the first: each looks at one of 32 blocks, and they vote.
template <class Params, int kTileKV, int kGroup>
class FlatBlocks {
 public:
  CUTE_DEVICE FlatBlocks(Params const& params, Item const& item, int end)
      : params_(params), item_(item), base_(end) {}

  CUTE_DEVICE bool flat(int block) {
    if (block < base_) {
      base_ = block - 31;
      int const own = base_ + static_cast<int>(threadIdx.x % 32);
      flat_ = __ballot_sync(0xffffffffu, are_one(own, own));
      joined_ = __ballot_sync(0xffffffffu, are_one(own, own + 1));
    }
    return flat_ >> (block - base_) & 1;
  }

  // Whether what hooks read is the same in a flat block and the one behind it.
  CUTE_DEVICE bool joined(int block) const { return joined_ >> (block - base_) & 1; }

 private:
  // Whether blocks [first, last] are flat, all with the same elements.
  CUTE_DEVICE bool are_one(int first, int last) const {
    Request const& request = item_.request;
    int const head = item_.kv_head * kGroup;
    int const row = item_.row_begin, last_row = row + item_.num_rows - 1;
    return variant_flat(params_, request.batch(), head, head + kGroup - 1,
                        request.q_pos + row / kGroup, request.q_pos + last_row / kGroup,
                        request.kv_pos + first * kTileKV,
                        request.kv_pos + (last + 1) * kTileKV - 1);
  }

  Params const& params_;
  Item const& item_;
  int base_;  // of blocks from here on is known:
  unsigned flat_ = 0;
  unsigned joined_ = 0;
};

// What hooks want to know of a flat block, at its first key. Of another block nobody looks at it.
template <int kTileKV, int kGroup, class Params, class FlatValues>
CUTE_DEVICE void look_up_flat(Params const& params, Item const& item, int block,
                              FlatValues (&flat)[2]) {
  CUTE_UNROLL
  for (int half = 0; half < 2; ++half) {
    RowOfThread<kGroup> const row(item, half);
    flat[half] = flat_values(params, item.request.batch(), row.head, row.q_idx,
                             item.request.kv_pos + block * kTileKV);
  }
}

// The logits hook on a flat block where it only adds to all scores of a row.
template <int kGroup, class Params, class RowValues, class FlatValues, int N>
CUTE_DEVICE void shift_rows(Params const& params, Item const& item, RowValues const (&values)[2],
                            FlatValues const (&flat)[2], float (&score)[N]) {
  CUTE_UNROLL
  for (int half = 0; half < 2; ++half) {
    RowOfThread<kGroup> const row(item, half);
    float const shift =
        flat_shift(params, values[half], flat[half], item.request.batch(), row.head, row.q_idx);
    for_each_score(score, half, [&](float& s, int) { s = s * params.sm_scale + shift; });
  }
}

// The logits hook on a flat block.
template <int kTileKV, int kGroup, class Params, class RowValues, class FlatValues, int N>
CUTE_DEVICE void transform_flat(Params const& params, Item const& item,
                                RowValues const (&values)[2], FlatValues const (&flat)[2],
                                int block, float (&score)[N]) {
  using Row = RowOfThread<kGroup>;
  for_each_position<kTileKV, kGroup>(
      item, block, score, [&](float& s, int half, Row const& row, int key, Lag lag) {
        s = flat_logits(params, values[half], flat[half], s * params.sm_scale, item.request.batch(),
                        row.head, row.q_idx, item.request.kv_pos + key, lag);
      });
}

// Hides what the mask does not let through of one KV block, and keys past the end of the request.
template <int kTileKV, int kGroup, class Params, class RowValues, int N>
CUTE_DEVICE void mask_scores(Params const& params, Item const& item, RowValues const (&values)[2],
                             int block, float hidden, float (&score)[N]) {
  using Row = RowOfThread<kGroup>;
  for_each_position<kTileKV, kGroup>(
      item, block, score, [&](float& s, int half, Row const& row, int key, Lag lag) {
        bool const seen = variant_mask(params, values[half], item.request.batch(), row.head,
                                       row.q_idx, item.request.kv_pos + key, lag);
        bool const keep = seen & (key < item.request.kv_len);  // no branch around the mask
        s = keep ? s : hidden;
      });
}

// The same of a flat block.
template <int kTileKV, int kGroup, class Params, class RowValues, class FlatValues, int N>
CUTE_DEVICE void mask_flat(Params const& params, Item const& item, RowValues const (&values)[2],
                           FlatValues const (&flat)[2], int block, float hidden,
                           float (&score)[N]) {
  using Row = RowOfThread<kGroup>;
  for_each_position<kTileKV, kGroup>(
      item, block, score, [&](float& s, int half, Row const& row, int key, Lag lag) {
        bool const seen = flat_mask(params, values[half], flat[half], item.request.batch(),
                                    row.head, row.q_idx, item.request.kv_pos + key, lag);
        bool const keep = seen & (key < item.request.kv_len);  // no branch around the mask
        s = keep ? s : hidden;
      });
}

}  // namespace cute_attn
