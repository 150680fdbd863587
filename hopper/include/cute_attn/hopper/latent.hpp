// Pieces of the latent kernel (multi-head latent attention): groups of panels of a block of keys,
// probabilities that warpgroups exchange, and the running reference of rows that both follow.
//
// A block of keys is (64, 576): nine panels of 64 columns. The first eight are its values as well.
// They land in five groups, each with a barrier of its own, in the order in which the warpgroup that
// owns the block multiplies them: the rotary panel, its own half of the values, the other half.
#pragma once

#include <cute_attn/hopper/items.hpp>
#include <cute_attn/hopper/latent_output.hpp>
#include <cute_attn/hopper/lazy_softmax.hpp>
#include <cute_attn/hopper/queries.hpp>
#include <cute_attn/hopper/ring.hpp>
#include <cute_attn/hopper/wgmma.hpp>
#include <cute_attn/named_barrier.hpp>

namespace cute_attn {

constexpr int kLatentGroups = 5;
constexpr int kRotaryPanel = 8;

// Barriers of both consumer warpgroups, before those of ring.hpp. The first two: + number of the
// warpgroup that owns the probabilities.
constexpr int kProbabilitiesReady = 1;
constexpr int kProbabilitiesTaken = 3;
constexpr int kSumsReady = 5;
constexpr int kRotaryTaken = 6;
constexpr int kBothWarpgroups = 256;  // threads

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
  unsigned const lane = threadIdx.x % 32;
  CUTE_UNROLL
  for (int half = 0; half < 2; ++half) {
    CUTE_UNROLL
    for (int piece = 0; piece < 8; ++piece) {
      Element* const to = tile + swizzled_offset<64, 64>(latent_row() + 8 * half, piece);
      *reinterpret_cast<uint32_t*>(to + 2 * (lane % 4)) = p[2 * piece + half];
    }
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
// the order of blocks, and the sum of the probabilities of the blocks that its warpgroup owns.
struct LatentRows {
  static constexpr float kRoom = 8.f;  // a probability is at most 2^8
  // Below all scores, but finite: hidden scores (-inf) stay -inf less it.
  static constexpr float kNoKey = -3.4028235e38f;

  float reference[2] = {kNoKey, kNoKey};
  float sum[2] = {0.f, 0.f};

  // Raises references to `next`; true if one of the warp was lower, and then the output must be
  // multiplied with rescale.
  CUTE_DEVICE bool raise(float const (&next)[2], float (&rescale)[2]) {
    bool const raised = next[0] > reference[0] || next[1] > reference[1];
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) {
      rescale[row] = exp2_approx(reference[row] - next[row]);
      sum[row] *= rescale[row];
      reference[row] = next[row];
    }
    return __any_sync(0xffffffffu, raised);
  }

  // What references become with these scores: a maximum that is out of range replaces the old one.
  template <int N>
  CUTE_DEVICE void follow(float const (&score)[N], float scale_log2, float (&next)[2]) const {
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) {
      float const top = quad_max(row_top(score, row)) * scale_log2;
      next[row] = top > reference[row] + kRoom ? top : reference[row];
    }
  }

  // Scores become probabilities.
  template <int N>
  CUTE_DEVICE void exponentiate(float (&score)[N], float scale_log2) {
    CUTE_UNROLL
    for (int i = 0; i < N; ++i) {
      int const row = i / 2 % 2;
      score[i] = exp2_approx(score[i] * scale_log2 - reference[row]);
      sum[row] += score[i];
    }
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
