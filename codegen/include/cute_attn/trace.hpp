// Time stamps of a block's items, in kernels that are traced (`KernelSpec.trace`).
//
// The C++ twin of cute_attn/abi/trace.py, where the layout of the buffer is explained.
#pragma once

#include <cute_attn/work.hpp>

namespace cute_attn {

enum TraceBlockWord {
  kTraceSm,
  kTraceBeginNs,
  kTraceBeginClock,
  kTraceEndNs,
  kTraceEndClock,
  kTraceItemCount,
  kTraceMergeBegin,
  kTraceMergeEnd,
  kTraceBlockWords
};

enum TraceItemWord {
  kTracePlace,
  kTraceRows,
  kTraceKeyBlocks,
  kTraceBegin,
  kTraceKeys,
  kTraceProducts,
  kTraceWritten,
  kTraceMerged,
  kTraceItemWords
};

// Thread kThread of a block writes; nothing waits for it, and code around is not branched over.
template <int kThread>
struct TraceWriter {
  // The block has begun.
  template <class Params>
  CUTE_DEVICE static void begin(Params const& params) {
    uint64_t* const to = block(params);
    store(to + kTraceSm, sm());
    store(to + kTraceBeginNs, ns());
    store(to + kTraceBeginClock, clock());
  }

  // The block has no more items than `count`.
  template <class Params>
  CUTE_DEVICE static void end(Params const& params, unsigned count) {
    uint64_t* const to = block(params);
    store(to + kTraceItemCount, count);
    store(to + kTraceEndNs, ns());
    store(to + kTraceEndClock, clock());
  }

  template <class Params>
  CUTE_DEVICE static void stamp_block(Params const& params, TraceBlockWord word) {
    store(block(params) + word, clock());
  }

  // An event of the block's item number `index`, if it is `wanted`.
  template <class Params>
  CUTE_DEVICE static void stamp(Params const& params, unsigned index, TraceItemWord word,
                                bool wanted = true) {
    bool const fits = index < static_cast<unsigned>(params.trace_items);
    store(item_words(params, index) + word, clock(), wanted && fits);
  }

  // What the item is.
  template <class Params>
  CUTE_DEVICE static void name(Params const& params, unsigned index, Item const& item) {
    bool const fits = index < static_cast<unsigned>(params.trace_items);
    uint64_t* const to = item_words(params, index);
    store(to + kTracePlace, pair(item.request.batch(), item.kv_head | item.num_rows << 16), fits);
    store(to + kTraceRows, pair(item.row_begin, item.slot), fits);
    store(to + kTraceKeyBlocks, pair(item.block_begin, item.block_end), fits);
  }

 private:
  template <class Params>
  CUTE_DEVICE static uint64_t* block(Params const& params) {
    int const words = kTraceBlockWords + params.trace_items * kTraceItemWords;
    return params.trace_words + int64_t(blockIdx.x) * words;
  }
  template <class Params>
  CUTE_DEVICE static uint64_t* item_words(Params const& params, unsigned index) {
    return block(params) + kTraceBlockWords + uint64_t(index) * kTraceItemWords;
  }
  CUTE_DEVICE static uint64_t pair(unsigned low, unsigned high) {
    return low | uint64_t(high) << 32;
  }
  CUTE_DEVICE static uint64_t clock() {
    uint64_t value;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(value));
    return value;
  }
  CUTE_DEVICE static uint64_t ns() {
    uint64_t value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
    return value;
  }
  CUTE_DEVICE static unsigned sm() {
    unsigned value;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(value));
    return value;
  }
  CUTE_DEVICE static void store(uint64_t* to, uint64_t value, bool wanted = true) {
    asm volatile(
        "{ .reg .pred writes; setp.ne.u32 writes, %2, 0; @writes st.global.u64 [%0], %1; }" ::"l"(
            to),
        "l"(value), "r"(unsigned(wanted && threadIdx.x == kThread)));
  }
};

}  // namespace cute_attn
