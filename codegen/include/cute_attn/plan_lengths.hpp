// Lengths of requests, as callers have them, and what can be wrong with them. The device planner
// (decode_records.hpp) and the planner of exported bundles include this header; a host needs no
// other.
#pragma once

#ifdef CUTE_DEVICE  // cute/config.hpp comes first in kernels
#define CUTE_ATTN_LENGTHS CUTE_DEVICE
#else
#include <cstdint>
#define CUTE_ATTN_LENGTHS inline
#endif

namespace cute_attn {

constexpr int kUnbounded = 1 << 30;  // window without a limit; lengths stay below it

// What is wrong with a request's lengths; api/device_planner.py has the words.
enum Fault : int {
  kNoFault = 0,
  kIndptrFalls = 1,
  kPastCapacity = 2,
  kLastPage = 3,
  kSequence = 4,
  kTooLong = 5,
  kTooMany = 6,
};

// What is read of a request; requests' loads are issued before the first one is used.
struct RawLength {
  int begin;
  int end;  // or the length, where there are seq_lens
  int last;
};

template <class Params>
CUTE_ATTN_LENGTHS RawLength load_length(Params const& params, int request) {
  if (params.seq_lens != nullptr) return {0, params.seq_lens[request], 0};
  int const* const at = params.kv_indptr + request;
  bool const paged = params.kv_last_page_len != nullptr;
  return {at[0], at[1], paged ? params.kv_last_page_len[request] : 0};
}

struct KvLength {
  int start;  // first KV row, or first entry in the page table
  int len;    // keys
  Fault fault;
  int value;  // what is wrong
};

template <class Params>
CUTE_ATTN_LENGTHS KvLength kv_length(Params const& params, int request, RawLength const& raw) {
  if (params.seq_lens != nullptr) {
    if (raw.end < 0 || raw.end > params.capacity) return {0, 0, kSequence, raw.end};
    return {request * params.table_stride, raw.end, kNoFault, 0};
  }
  bool const paged = params.kv_last_page_len != nullptr;
  int const entries = raw.end - raw.begin;
  int64_t len = entries;
  bool right = raw.begin >= 0 && entries >= 0 && raw.end <= params.capacity;
  if (paged && entries > 0) {
    len = int64_t{entries - 1} * params.page_size + raw.last;
    right = right && 0 < raw.last && raw.last <= params.page_size;
  }
  if (right && len < kUnbounded) return {raw.begin, static_cast<int>(len), kNoFault, 0};
  if (raw.begin < 0 || raw.end < raw.begin) return {0, 0, kIndptrFalls, raw.end};
  if (raw.end > params.capacity) return {0, 0, kPastCapacity, raw.end};
  if (!right) return {0, 0, kLastPage, raw.last};
  return {0, 0, kTooLong, entries};
}

}  // namespace cute_attn

#undef CUTE_ATTN_LENGTHS
