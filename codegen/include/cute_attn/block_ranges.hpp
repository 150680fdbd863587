// Tables of ranges: the least and the most element of a tensor over windows of 1, 2, 4 ... entries.
// They are made before each run of an attention kernel whose mask reads tensors, and tell it which
// KV blocks the mask empties or fills. See cute_attn/variants/ranges.py.
#pragma once

#include <cute/config.hpp>

namespace cute_attn {

constexpr int kRangeLevels = 8;  // windows of up to 128 entries
constexpr int kRangeRows = 16;   // rows of a table that are looked at for one block

struct alignas(8) Range {
  int least;
  int most;
};

CUTE_DEVICE Range join(Range a, Range b) { return {min(a.least, b.least), max(a.most, b.most)}; }

CUTE_DEVICE Range one_element(int x) { return {x, x}; }
CUTE_DEVICE Range no_elements() { return {2147483647, -2147483647 - 1}; }
CUTE_DEVICE Range any_elements() { return {-2147483647 - 1, 2147483647}; }

// Whether [first, last] lies in a dimension of `size` and meets no more entries than `most`.
template <int kPool>
CUTE_DEVICE bool has_ranges(int first, int last, int size, int most) {
  return 0 <= first && first <= last && last < size && last / kPool - first / kPool < most;
}

// Of elements first to last of one row of a table (rows, kRangeLevels, entries), whose entries
// stand for kPool elements each of `size`: two windows cover them. any_elements() where nothing is
// known: outside the tensor, and of more than both windows.
template <int kPool>
CUTE_DEVICE Range range_over(Range const* table, int64_t row, int size, int first, int last) {
  bool const known = has_ranges<kPool>(first, last, size, 1 << kRangeLevels);
  int const begin = known ? first / kPool : 0, count = known ? last / kPool - begin + 1 : 1;
  int const level = min(31 - __clz(count), kRangeLevels - 1);
  int const entries = (size - 1) / kPool + 1;
  Range const* const windows = table + (row * kRangeLevels + level) * entries + begin;
  Range const found = join(windows[0], windows[count - (1 << level)]);
  return known ? found : any_elements();
}

// One block's part of a table: kOutputs entries of one row, from kEntries of the lowest level.
// element(i) gives what the row has at index i of the main dimension, of `size`.
template <int kThreads, int kPool>
struct RangeRow {
  static constexpr int kOutputs = 128;
  static constexpr int kEntries = kOutputs + (1 << (kRangeLevels - 1));
  using Memory = Range[2][kEntries];

  template <class Element>
  CUTE_DEVICE static void make(Memory& memory, Range* table, int64_t row, int chunk, int size,
                               Element const& element) {
    int const entries = (size - 1) / kPool + 1, begin = chunk * kOutputs;
    int const count = min(entries - begin, kEntries);
    if constexpr (kPool == 1) {
      for (int i = threadIdx.x; i < count; i += kThreads) memory[0][i] = element(begin + i);
    } else {
      // A warp per entry; what lies behind the end repeats the last element.
      constexpr int kInFlight = kEntries * 32 / kThreads;
      int const lane = threadIdx.x % 32, warp = threadIdx.x / 32;
      Range own[kInFlight];
      CUTE_UNROLL
      for (int i = 0; i < kInFlight; ++i) {
        int const entry = begin + min(warp + i * (kThreads / 32), count - 1);
        own[i] = element(entry * kPool + min(lane % kPool, size - 1 - entry * kPool));
      }
      CUTE_UNROLL
      for (int i = 0; i < kInFlight; ++i) {
        int const entry = warp + i * (kThreads / 32);
        Range const all = {__reduce_min_sync(0xffffffffu, own[i].least),
                           __reduce_max_sync(0xffffffffu, own[i].most)};
        if (lane == 0 && entry < count) memory[0][entry] = all;
      }
    }
    __syncthreads();
    Range* const out = table + row * kRangeLevels * entries + begin;
    CUTE_UNROLL
    for (int level = 0; level < kRangeLevels; ++level) {
      Range const(&from)[kEntries] = memory[level % 2];
      Range(&to)[kEntries] = memory[(level + 1) % 2];
      for (int i = threadIdx.x; i < count; i += kThreads) {
        if (i < kOutputs) out[int64_t(level) * entries + i] = from[i];
        to[i] = join(from[i], from[min(i + (1 << level), count - 1)]);
      }
      __syncthreads();
    }
  }
};

}  // namespace cute_attn
