// How far a key lies behind a query: q_idx - kv_idx.
#pragma once

#include <cute/config.hpp>

namespace cute_attn {

// The sum of what is the same for all scores of a thread and of what is a constant once loops over a
// fragment are unrolled: what depends on distances alone is computed once for all scores of a thread
// on the same diagonal.
class Lag {
 public:
  CUTE_DEVICE explicit Lag(int distance) : whole_(distance), real_(float(distance)), offset_(0) {}

  CUTE_DEVICE Lag operator+(int rows) const { return {whole_, real_, offset_ + rows}; }
  CUTE_DEVICE Lag operator-(int keys) const { return {whole_, real_, offset_ - keys}; }

  CUTE_DEVICE explicit operator int() const { return whole_ + offset_; }
  CUTE_DEVICE explicit operator float() const { return real_ + float(offset_); }

  // float(lag) * factor, where the factor is the same for the scores of a row.
  CUTE_DEVICE float times(float factor) const {
    return fmaf(factor, float(offset_), factor * real_);
  }

 private:
  CUTE_DEVICE Lag(int whole, float real, int offset)
      : whole_(whole), real_(real), offset_(offset) {}

  int whole_;
  float real_;
  int offset_;
};

// Of packed row `row` + 8 half, half 0 or 1. first: that of a row at the request's first query. Where
// the two rows are whole tokens apart, they have one sum.
template <int kGroup>
CUTE_DEVICE Lag row_lag(int first, int row, int half) {
  if constexpr (8 % kGroup == 0) return Lag(first + row / kGroup) + 8 / kGroup * half;
  return Lag(first + (row + 8 * half) / kGroup);
}

}  // namespace cute_attn
