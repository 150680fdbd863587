// What the first kThreads threads of a block compute together: sums, maxima and stable sorts in
// shared memory. All of them have to call; `scratch` may be used again once they met at another
// barrier.
#pragma once

#include <cute/config.hpp>
#include <cute_attn/named_barrier.hpp>

namespace cute_attn {

constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// Where the threads meet.
template <int kThreads>
CUTE_DEVICE void sync_threads() {
  barrier_sync(1, kThreads);
}

// The sum of this lane's value and those of the lanes before it.
template <class T>
CUTE_DEVICE T warp_scan(T value) {
  int const lane = threadIdx.x % 32;
  CUTE_UNROLL
  for (int step = 1; step < 32; step *= 2) {
    T const other = __shfl_up_sync(kAllLanes, value, step);
    if (lane >= step) value += other;
  }
  return value;
}

CUTE_DEVICE int warp_max(int value) { return __reduce_max_sync(kAllLanes, value); }

// Of values that are not negative.
CUTE_DEVICE int64_t warp_max(int64_t value) {
  unsigned const high = static_cast<unsigned>(value >> 32);
  unsigned const top = __reduce_max_sync(kAllLanes, high);
  unsigned const low = high == top ? static_cast<unsigned>(value) : 0;
  return int64_t{top} << 32 | __reduce_max_sync(kAllLanes, low);
}

CUTE_DEVICE unsigned warp_sum(unsigned value) { return __reduce_add_sync(kAllLanes, value); }

// Of values that are not negative, and whose sum fits.
CUTE_DEVICE int warp_sum(int value) { return warp_sum(static_cast<unsigned>(value)); }

// By pieces whose sums fit in 32 bits.
CUTE_DEVICE int64_t warp_sum(int64_t value) {
  constexpr int kPiece = 24;
  unsigned const mask = (1u << kPiece) - 1;
  int64_t const low = warp_sum(static_cast<unsigned>(value) & mask);
  int64_t const middle = warp_sum(static_cast<unsigned>(value >> kPiece) & mask);
  int64_t const high = warp_sum(static_cast<unsigned>(value >> (2 * kPiece)));
  return low + (middle << kPiece) + (high << (2 * kPiece));
}

// Results of a whole block come in two steps, so that several need one barrier: every warp
// publishes its own, all threads meet at the barrier, and collect.

template <class T>
CUTE_DEVICE void publish(T of_warp, T* scratch /* (warps) */) {
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = of_warp;
}

// The sum of what the warps before warp number `warp` have published.
template <class T>
CUTE_DEVICE T collect_sum(T const* scratch /* (warps) */, int warp) {
  int const lane = threadIdx.x % 32;
  return warp_sum(lane < warp ? scratch[lane] : T{0});
}

// The largest of what all warps have published.
template <int kThreads, class T>
CUTE_DEVICE T collect_max(T const* scratch /* (kThreads / 32) */) {
  int const lane = threadIdx.x % 32;
  return warp_max(scratch[lane < kThreads / 32 ? lane : 0]);
}

template <int kThreads>
struct SortScratch {
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kDigitBits = 8;
  static constexpr int kDigits = 1 << kDigitBits;
  static constexpr int kRow = kWarps + 2;  // padded: neighbouring digits are in different banks
  union {
    unsigned short counters[kDigits * kRow];  // (digits, warps):(kRow, 1)
    unsigned pairs[kDigits * kRow / 2];
    struct {
      alignas(16) unsigned keys[kThreads];
      unsigned ranks[kThreads];
    };
  };
  unsigned sums[kWarps];

  // This thread's eight counters, two by two: i = 0 .. 3.
  CUTE_DEVICE unsigned& pair(int i) {
    int const at = 4 * threadIdx.x + i;
    return pairs[at + 2 * at / kWarps];
  }
};

// Sorts the numbers in `order` by their keys, rising and stable: radix sort, up to 8 bits per pass.
//
//   key_of   number -> key, not above `largest`; called for numbers in `order`
//   order    (count), shared memory; numbers are below 65536
//   placed   (count), shared memory
//
// Every thread has met a barrier after the last write to order.
template <int kThreads, class KeyOf>
CUTE_DEVICE void sort_by_digits(KeyOf const& key_of, unsigned largest, int count,
                                unsigned short* order, unsigned* placed,
                                SortScratch<kThreads>& scratch) {
  using Scratch = SortScratch<kThreads>;
  int const warp = threadIdx.x / 32;
  int const lane = threadIdx.x % 32;
  unsigned const lanes_below = (1u << lane) - 1;
  // A warp has so many times 32 neighbours.
  int const rounds = (count + kThreads - 1) / kThreads;
  int const first = warp * rounds * 32;
  int const end = min(first + rounds * 32, count);
  int const all_bits = 32 - __clz(largest | 1);
  int const passes = (all_bits + Scratch::kDigitBits - 1) / Scratch::kDigitBits;
  int const bits = (all_bits + passes - 1) / passes;

  CUTE_NO_UNROLL
  for (int shift = 0; shift < all_bits; shift += bits) {
    auto const digit_of = [&](int number) {
      return (key_of(number) >> shift) & ((1u << bits) - 1);
    };
    unsigned short* const counters = scratch.counters + warp;  // (digits):(kRow)
    CUTE_UNROLL
    for (int i = 0; i < 4; ++i) scratch.pair(i) = 0;
    sync_threads<kThreads>();
    // How many of a digit the warp met before is the counter. (Code that runs once waits for its
    // instructions: loops are short here.)
    CUTE_NO_UNROLL
    for (int begin = first; begin < end; begin += 32) {
      int const at = begin + lane;
      bool const valid = at < end;
      int const number = order[valid ? at : first];
      unsigned const digit = digit_of(number);
      unsigned short& counter = counters[digit * Scratch::kRow];
      unsigned const met = counter;
      unsigned peers = __ballot_sync(kAllLanes, valid);
      CUTE_UNROLL
      for (int bit = 0; bit < Scratch::kDigitBits; ++bit) {
        bool const one = (digit >> bit) & 1;
        unsigned const ones = __ballot_sync(kAllLanes, one);
        peers &= one ? ones : ~ones;
      }
      unsigned const peers_below = __popc(peers & lanes_below);
      __syncwarp();
      if (valid && peers_below == 0) counter = met + __popc(peers);
      __syncwarp();
      if (valid) placed[at] = number | (met + peers_below) << 16;
    }
    sync_threads<kThreads>();

    // Counters become the places where their numbers begin.
    unsigned pairs[4];
    unsigned sum = 0;
    CUTE_UNROLL
    for (int i = 0; i < 4; ++i) {
      pairs[i] = scratch.pair(i);
      sum += (pairs[i] & 0xFFFF) + (pairs[i] >> 16);
    }
    unsigned const until = warp_scan(sum);
    if (lane == 31) scratch.sums[warp] = until;
    sync_threads<kThreads>();
    unsigned begin = collect_sum(scratch.sums, warp) + until - sum;
    CUTE_UNROLL
    for (int i = 0; i < 4; ++i) {
      unsigned const low = pairs[i] & 0xFFFF;
      unsigned const high = pairs[i] >> 16;
      scratch.pair(i) = begin | (begin + low) << 16;
      begin += low + high;
    }
    sync_threads<kThreads>();
    CUTE_NO_UNROLL
    for (int at = first + lane; at < end; at += 32) {
      int const number = placed[at] & 0xFFFF;
      order[counters[digit_of(number) * Scratch::kRow] + (placed[at] >> 16)] = number;
    }
    sync_threads<kThreads>();
  }
}

// So few numbers that it pays to compare all with all.
template <int kThreads>
constexpr int kFew = kThreads < 128 ? kThreads / 2 : 64;

// Sorts the numbers 0 .. count - 1 by their keys, falling; keys differ. count <= kFew<kThreads>.
//
//   order         to be written
//   scratch.keys  (kThreads), 0 from number `count` on; every thread has met a barrier since they
//                 were written
template <int kThreads>
CUTE_DEVICE void sort_few(int count, unsigned short* order, SortScratch<kThreads>& scratch) {
  // A number is compared by several threads, each with a part of the others.
  int const bits = count <= 32 ? 5 : 32 - __clz(count - 1);
  int const number = threadIdx.x & ((1 << bits) - 1);
  int const part = threadIdx.x >> bits;
  constexpr int kParts = kThreads / kFew<kThreads> < 4 ? 2 : 4;
  int const length = (count + 4 * kParts - 1) / (4 * kParts) * 4;
  unsigned const own = scratch.keys[number];
  unsigned rank = 0;
  uint4 const* const others = reinterpret_cast<uint4 const*>(scratch.keys);
  if (part < kParts) {
    for (int i = 0; i < length; i += 4) {
      uint4 const keys = others[(part * length + i) / 4];
      rank += (keys.x > own) + (keys.y > own) + (keys.z > own) + (keys.w > own);
    }
    scratch.ranks[threadIdx.x] = rank;
  }
  sync_threads<kThreads>();
  if (threadIdx.x < count) {
    CUTE_UNROLL
    for (int i = 1; i < kParts; ++i) rank += scratch.ranks[(i << bits) + threadIdx.x];
    order[rank] = threadIdx.x;
  }
  sync_threads<kThreads>();
}

}  // namespace cute_attn
