// Lengths as engines have them (indptr and pages, or block tables) to the requests of a step. What
// a length is and what can be wrong with it, the planner on the device takes from the same header.
#pragma once

#include <cute_attn/plan_lengths.hpp>
#include <cute_attn_bundle/plan_types.hpp>

namespace cute_attn_planner {

// Where the keys of requests are; one of these.
struct KvLengths {
  int const* kv_indptr = nullptr;         // (num_requests + 1) pages, or rows of ragged KV
  int const* kv_last_page_len = nullptr;  // (num_requests) tokens; null: ragged KV
  int const* seq_lens = nullptr;          // (num_requests) keys, with block tables
  int page_size = 1;                      // tokens
  int table_stride = 0;                   // entries from a request's block table to the next
  int capacity = 0;  // most pages or rows of kv_indptr; of seq_lens: keys that a table has room for

  // Pages of all requests in one list of `num_pages` entries.
  static KvLengths paged(int const* kv_indptr, int const* kv_last_page_len, int page_size,
                         int num_pages) {
    KvLengths lengths;
    lengths.kv_indptr = kv_indptr;
    lengths.kv_last_page_len = kv_last_page_len;
    lengths.page_size = page_size;
    lengths.capacity = num_pages;
    return lengths;
  }
  // Contiguous rows.
  static KvLengths ragged(int const* kv_indptr, int num_rows) {
    KvLengths lengths;
    lengths.kv_indptr = kv_indptr;
    lengths.capacity = num_rows;
    return lengths;
  }
  // (num_requests, max_pages) page numbers, rows `table_stride` apart.
  static KvLengths block_tables(int const* seq_lens, int page_size, int max_pages,
                                int table_stride) {
    KvLengths lengths;
    lengths.seq_lens = seq_lens;
    lengths.page_size = page_size;
    lengths.table_stride = table_stride;
    lengths.capacity = static_cast<int>(
        std::min(std::int64_t{max_pages} * page_size, std::int64_t{cute_attn::kUnbounded - 1}));
    return lengths;
  }
};

// A fault in words.
inline std::string described(KvLengths const& lengths, int request, cute_attn::KvLength const& kv) {
  std::string const at = "[" + std::to_string(request) + "] is ";
  std::string const next = "[" + std::to_string(request + 1) + "] is ";
  std::string const value = std::to_string(kv.value);
  switch (kv.fault) {
    case cute_attn::kIndptrFalls:
      return "kv_indptr" + next + value + ": kv_indptr must not decrease, nor be negative";
    case cute_attn::kPastCapacity:
      return "kv_indptr" + next + value + ", but there are " + std::to_string(lengths.capacity);
    case cute_attn::kLastPage:
      return "kv_last_page_len" + at + value + "; it takes 1 .. " +
             std::to_string(lengths.page_size);
    case cute_attn::kSequence:
      return "seq_lens" + at + value + "; block tables have room for 0 .. " +
             std::to_string(lengths.capacity);
    default:
      return "request " + std::to_string(request) + " has 2^30 keys or more";
  }
}

// The requests of a step whose query rows follow each other.
//
//   qo_indptr   (num_requests + 1) query rows
//
// Throws std::invalid_argument, naming the number that is wrong.
inline std::vector<Request> requests_of(int num_requests, int const* qo_indptr,
                                        KvLengths const& lengths) {
  std::vector<Request> requests;
  for (int i = 0; i < num_requests; ++i) {
    if (qo_indptr[i] < 0 || qo_indptr[i + 1] < qo_indptr[i]) {
      throw std::invalid_argument("qo_indptr[" + std::to_string(i + 1) + "] is " +
                                  std::to_string(qo_indptr[i + 1]) +
                                  ": qo_indptr must not decrease, nor be negative");
    }
    auto const kv = cute_attn::kv_length(lengths, i, cute_attn::load_length(lengths, i));
    if (kv.fault != cute_attn::kNoFault) {
      throw std::invalid_argument(described(lengths, i, kv));
    }
    requests.emplace_back(qo_indptr[i], qo_indptr[i + 1] - qo_indptr[i], kv.start, kv.len, i);
  }
  return requests;
}

}  // namespace cute_attn_planner
