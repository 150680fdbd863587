// Pieces of the latent kernel (multi-head latent attention): groups of panels of a block of keys,
// probabilities that warpgroups exchange, and the running reference of rows that both follow.
//
// A block of keys is (64, 576): nine panels of 64 columns. The first eight are its values as well.
// They land in five groups, each with a barrier of its own, in the order in which the warpgroup
// that owns the block multiplies them: the rotary panel, its own half of the values (two groups),
// the other half. Room for the other half comes late, when both warpgroups are through with the
// block, so that of a block is brought behind the rotary panel of the next.
#pragma once

#include <cute_attn/hopper/items.hpp>
#include <cute_attn/hopper/latent_output.hpp>
#include <cute_attn/hopper/lazy_softmax.hpp>
#include <cute_attn/hopper/queries.hpp>
#include <cute_attn/hopper/ring.hpp>
#include <cute_attn/hopper/wgmma.hpp>
#include <cute_attn/named_barrier.hpp>
#include <cute_attn/opaque.hpp>

namespace cute_attn {

constexpr int kLatentGroups = 5;
constexpr int kRotaryPanel = 8;

// Barriers of both consumer warpgroups, before those of ring.hpp. The first two: + number of the
// warpgroup that owns the probabilities.
constexpr int kProbabilitiesReady = 1;
constexpr int kProbabilitiesTaken = 3;
constexpr int kSumsReady = 5;
constexpr int kRotaryTaken = 6;
constexpr int kLatentTail = 14;       // of one warpgroup
constexpr int kBothWarpgroups = 256;  // threads

// Waits at barrier kFirst + owner, or comes there without waiting. The numbers are constants in the
// code: with computed ones the sanitizer takes every access behind a barrier for a race.
template <int kFirst, int kThreads = kBothWarpgroups>
CUTE_DEVICE void sync_of(int owner) {
  if (owner == 0) {
    asm volatile("bar.sync %0, %1;" ::"n"(kFirst), "n"(kThreads) : "memory");
  } else {
    asm volatile("bar.sync %0, %1;" ::"n"(kFirst + 1), "n"(kThreads) : "memory");
  }
}
template <int kFirst>
CUTE_DEVICE void arrive_of(int owner) {
  if (owner == 0) {
    asm volatile("bar.arrive %0, %1;" ::"n"(kFirst), "n"(kBothWarpgroups) : "memory");
  } else {
    asm volatile("bar.arrive %0, %1;" ::"n"(kFirst + 1), "n"(kBothWarpgroups) : "memory");
  }
}

// First panel of a group of a block that warpgroup `owner` owns, and how many there are.
CUTE_HOST_DEVICE constexpr int group_panel(int group, int owner) {
  return group == 0 ? kRotaryPanel : ((group - 1) / 2 ^ owner) * 4 + (group - 1) % 2 * 2;
}
CUTE_HOST_DEVICE constexpr int group_panels(int group) { return group == 0 ? 1 : 2; }

// Who releases a group: 0 the owner behind Q K^T, 1 the owner behind P V, 2 the other warpgroup.
CUTE_HOST_DEVICE constexpr int group_release(int group) { return (group + 1) / 2; }

// Position of a block in the two stages; warpgroup w owns the blocks in stage w.
struct LatentRing {
  unsigned count = 0;  // blocks so far

  CUTE_DEVICE int stage() const { return count % 2; }
  CUTE_DEVICE uint32_t parity() const { return count / 2 % 2; }
};

// Stores the probabilities of a warpgroup, packed as an A operand, as a (64, 64) tile of one panel.
template <class Element>
CUTE_DEVICE void share_probabilities(uint32_t const (&p)[16], Element* tile) {
  unsigned const thread = opaque(threadIdx.x);  // addresses are computed, not kept
  int const lane = thread % 32, row = thread / 32 % 4 * 16 + lane % 16;
  uint32_t const base = cute::cast_smem_ptr_to_uint(tile);
  CUTE_UNROLL
  for (int i = 0; i < 4; ++i) {
    uint32_t const to = base + 2 * swizzled_offset<64, 64>(row, 2 * i + lane / 16);
    asm volatile("stmatrix.sync.aligned.x4.m8n8.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(p[4 * i]), "r"(p[4 * i + 1]), "r"(p[4 * i + 2]), "r"(p[4 * i + 3])
                 : "memory");
  }
  cutlass::arch::fence_view_async_shared();  // generic writes -> wgmma
}

// out (64, 256) += P (64, 64) V (64, 256), both in shared memory, issued and committed.
template <class Mma, class LayoutP, class LayoutV, int N>
CUTE_DEVICE void issue_shared_pv(Operand p, Operand v, float (&out)[N]) {
  fence_fragment(out);
  cute::warpgroup_arrive();
  CUTE_UNROLL
  for (int i = 0; i < 4; ++i) {
    detail::fma_ss<Mma>(p.at<LayoutP>(k_major_step<LayoutP>(i)),
                        v.at<LayoutV>(mn_major_step<LayoutV>(i)), out,
                        cute::SM90::GMMA::ScaleOut::One, cute::make_int_sequence<N>{});
  }
  cute::warpgroup_commit_batch();
  fence_fragment(out);
}

// What this thread knows of its two rows: the reference exponent, which both warpgroups raise in
// the order of blocks, and the sum of the probabilities of the blocks that its warpgroup owns. As
// in LazySoftmax, the maximum of a block is only looked for when its probabilities came out too
// large; those of an item's first block always do.
struct LatentRows {
  // Below all scores, but finite: hidden scores (-inf) stay -inf less it.
  static constexpr float kNoKey = -3.4028235e38f;
  static constexpr float kLargest = 32768.f;  // no probability is larger: fp16 ends at 65504

  float reference[2] = {kNoKey, kNoKey};
  float sum[2] = {0.f, 0.f};
  bool exists[2];  // others hold anything, and nobody looks at them

  CUTE_DEVICE explicit LatentRows(int num_rows)
      : exists{latent_row() < num_rows, latent_row() + 8 < num_rows} {}

  // Raises references to `next`, none of which is lower; the output must be multiplied with
  // rescale.
  CUTE_DEVICE void raise(float const (&next)[2], float (&rescale)[2]) {
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) {
      rescale[row] = exp2_approx(reference[row] - next[row]);
      sum[row] *= rescale[row];
      reference[row] = next[row];
    }
  }

  // Probabilities, packed for P V, and their sums.
  template <class Element, int N>
  CUTE_DEVICE void exponentiate(float const (&score)[N], float scale_log2, uint32_t (&p)[N / 2],
                                float (&block_sum)[2]) const {
    CUTE_UNROLL
    for (int i = 0; i < N / 2; ++i) {
      float const reference = this->reference[i % 2];
      float const low = exp2_approx(score[2 * i] * scale_log2 - reference);
      float const high = exp2_approx(score[2 * i + 1] * scale_log2 - reference);
      block_sum[i % 2] += low + high;
      p[i] = pack<Element>(low, high);
    }
  }

  // Adds the sums of a block, unless one of the warp's is too large.
  CUTE_DEVICE bool add(float const (&block_sum)[2]) {
    bool const fits =
        (block_sum[0] <= kLargest || !exists[0]) && (block_sum[1] <= kLargest || !exists[1]);
    if (__any_sync(0xffffffffu, !fits)) return false;
    sum[0] += block_sum[0];
    sum[1] += block_sum[1];
    return true;
  }

  // What references become with these scores: where the sum is too large, the maximum, each row for
  // itself, whatever the others hold.
  template <int N>
  CUTE_DEVICE void follow(float const (&score)[N], float scale_log2, float const (&block_sum)[2],
                          float (&next)[2]) const {
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) {
      bool const grows = quad_max(block_sum[row] <= kLargest ? 0.f : 1.f) > 0.f;
      float const top = fmaxf(quad_max(row_top(score, row) * scale_log2), reference[row]);
      next[row] = grows ? top : reference[row];
    }
  }

  // Leaves the references beside the probabilities of a block, and whether they rose with it. A
  // warp says so for itself, all of the other warpgroup look at all four: its products want all
  // warps at the same instruction.
  CUTE_DEVICE void leave(bool raised, float (&references)[64], int (&raises)[4]) const {
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) {
      if (threadIdx.x % 4 == 0) references[latent_row() + 8 * row] = reference[row];
    }
    if (threadIdx.x % 32 == 0) raises[threadIdx.x / 32 % 4] = raised;
  }

  // Of all keys of the item, after both warpgroups have put their sums in `sums`.
  CUTE_DEVICE void publish(float (&sums)[64]) const {
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) {
      float const own = quad_sum(sum[row]);
      if (threadIdx.x % 4 == 0) sums[latent_row() + 8 * row] = own;
    }
  }
  CUTE_DEVICE void finish(float const (&sums)[2][64], Finished& finished) const {
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) {
      int const at = latent_row() + 8 * row;
      float const total = sums[0][at] + sums[1][at];
      bool const empty = total == 0.f;
      finished.inverse[row] = empty ? 0.f : 1.f / total;
      finished.lse2[row] = empty ? neg_infinity() : reference[row] + __log2f(total);
    }
  }
};

}  // namespace cute_attn
