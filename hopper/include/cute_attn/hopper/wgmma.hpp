// Warpgroup matrix products on swizzled shared-memory tiles.
//
// A tile of R rows x D columns (16-bit) lies in shared memory in units of 8 rows x 64 columns, 1024
// bytes, in which the 16-byte pieces of row r are permuted by XOR with r % 8 (the 128-byte swizzle
// of TMA and wgmma). The units of a panel of 64 columns follow each other, or those of a group of
// eight rows. Where panels of 32 columns pad less (head_dim 80, 96), units have 512 bytes and the
// 64-byte swizzle.
#pragma once

#include <cute/arch/mma_sm90_gmma.hpp>
#include <cute/arch/util.hpp>
#include <cute/numeric/integer_sequence.hpp>
#include <cute_attn/elements.hpp>
#include <cute_attn/hopper/panels.hpp>

namespace cute_attn {

// Tells the compiler that a value is the same in all lanes: descriptors that depend on it are then
// computed once per warp, in uniform registers. Or takes the value of one lane for all.
CUTE_DEVICE int warp_uniform(int value, int lane = 0) {
  return __shfl_sync(0xffffffffu, value, lane);
}

// Where the units of a (kRows, kColumns) tile lie (codegen.smem_tile.SmemTile).
template <int kRows, int kColumns>
struct ByPanels {
  static constexpr int kPanel = kPanelColumns<kColumns>;
  static constexpr int kGroupBytes = 16 * kPanel;         // from a group of eight rows to the next
  static constexpr int kPanelBytes = 2 * kPanel * kRows;  // from a panel to the next
};
template <int kRows, int kColumns>
struct ByGroups {
  static constexpr int kPanel = kPanelColumns<kColumns>;
  static constexpr int kGroupBytes = kPanels<kColumns> * 16 * kPanel;
  static constexpr int kPanelBytes = 16 * kPanel;
};

// A swizzled operand in shared memory: the low word of its descriptor (address / 16, and in the
// upper half the distance between panels, which is only read for MN-major operands). The high word
// is a constant: the distance between groups, and the swizzle (1: 128 bytes, 2: 64).
struct Operand {
  uint32_t low;

  Operand() = default;
  CUTE_DEVICE Operand(void const* tile, uint32_t leading_bytes)
      : low(warp_uniform(cute::cast_smem_ptr_to_uint(tile) >> 4 | (leading_bytes >> 4) << 16)) {}

  // The descriptor of what begins `bytes` behind: an addition, because shared-memory addresses
  // never carry out of their field.
  template <class Layout>
  CUTE_DEVICE uint64_t at(uint32_t bytes) const {
    constexpr uint32_t kSwizzle = 64 / Layout::kPanel;
    constexpr uint64_t kHigh = uint64_t(Layout::kGroupBytes >> 4 | kSwizzle << 30) << 32;
    return kHigh | (low + (bytes >> 4));
  }
};

// Bytes from a tile to its k-step i (16 of the summed index): along the columns for K-major
// operands, along the rows for MN-major ones (codegen.smem_tile.SmemTile.wgmma_k_step).
template <class Layout>
CUTE_DEVICE constexpr uint32_t k_major_step(int i) {
  constexpr int kSteps = Layout::kPanel / 16;
  return (i / kSteps) * Layout::kPanelBytes + (i % kSteps) * 32;
}
template <class Layout>
CUTE_DEVICE constexpr uint32_t mn_major_step(int i) {
  return i * 2 * Layout::kGroupBytes;
}

namespace detail {
template <class Mma, int N, int... I>
CUTE_DEVICE void fma_ss(uint64_t a, uint64_t b, float (&d)[N], cute::SM90::GMMA::ScaleOut scale,
                        cute::int_sequence<I...>) {
  Mma::fma(a, b, d[I]..., scale);
}
template <class Mma, int N, int... I>
CUTE_DEVICE void fma_rs(uint32_t const* a, uint64_t b, float (&d)[N],
                        cute::SM90::GMMA::ScaleOut scale, cute::int_sequence<I...>) {
  Mma::fma(a[0], a[1], a[2], a[3], b, d[I]..., scale);
}
}  // namespace detail

// Number of this consumer warpgroup; they follow the producer warpgroup.
CUTE_DEVICE int consumer() { return threadIdx.x / 128 - 1; }

// The first of this thread's two rows of a fragment, counted over the consumer warpgroups, 64 rows
// each; the other is eight rows below. Columns: see softmax.hpp.
CUTE_DEVICE int thread_row() { return (threadIdx.x / 32 - 4) * 16 + threadIdx.x % 32 / 4; }

// Probabilities as the A operand of P V (no movement between lanes, see softmax.hpp).
template <class Element, int N, int M>
CUTE_DEVICE void pack_probabilities(float const (&score)[N], uint32_t (&p)[M]) {
  CUTE_UNROLL
  for (int i = 0; i < N / 2; ++i) p[i] = pack<Element>(score[2 * i], score[2 * i + 1]);
}

// Tells the compiler that the fragment's registers belong to the asynchronous product.
template <int N>
CUTE_DEVICE void fence_fragment(float (&fragment)[N]) {
  CUTE_UNROLL
  for (int i = 0; i < N; ++i) cute::warpgroup_fence_operand(fragment[i]);
}

// Waits until at most kInFlight of the products issued last go on; `fragment` is of another one.
template <int kInFlight, int N>
CUTE_DEVICE void await_products(float (&fragment)[N]) {
  cute::warpgroup_wait<kInFlight>();
  fence_fragment(fragment);
}

template <int N>
CUTE_DEVICE void clear_fragment(float (&fragment)[N]) {
  CUTE_UNROLL
  for (int i = 0; i < N; ++i) fragment[i] = 0.f;
}

// score (64, kTileKV) = Q (64, kHeadDim) K (kTileKV, kHeadDim)^T, issued and committed, not waited
// for. Queries: see queries.hpp.
template <class Mma, class LayoutK, int kTileKV, int kHeadDim, class Queries, int N>
CUTE_DEVICE void issue_qk(Queries const& q, Operand k, float (&score)[N]) {
  static_assert(N == kTileKV / 2);
  fence_fragment(score);
  cute::warpgroup_arrive();
  CUTE_UNROLL
  for (int i = 0; i < kHeadDim / 16; ++i) {
    q.template multiply<Mma>(i, k.at<LayoutK>(k_major_step<LayoutK>(i)), score);
  }
  cute::warpgroup_commit_batch();
  fence_fragment(score);
}

// out (64, kHeadDim) += P (64, kTileKV) V (kTileKV, kHeadDim), issued and committed. P is in
// registers: packed pairs of the score fragment are already an A operand.
template <class Mma, class LayoutV, int kTileKV, int P, int N>
CUTE_DEVICE void issue_pv(uint32_t const (&p)[P], Operand v, float (&out)[N]) {
  static_assert(P == kTileKV / 4);
  fence_fragment(out);
  cute::warpgroup_arrive();
  CUTE_UNROLL
  for (int i = 0; i < kTileKV / 16; ++i) {
    detail::fma_rs<Mma>(p + 4 * i, v.at<LayoutV>(mn_major_step<LayoutV>(i)), out,
                        cute::SM90::GMMA::ScaleOut::One, cute::make_int_sequence<N>{});
  }
  cute::warpgroup_commit_batch();
  fence_fragment(out);
}

// The two products of a kernel, on stages of its rings.
template <class QkMma, class PvMma, class LayoutK, class LayoutV, int kTileKV, int kHeadDimQK>
struct TileProducts {
  // score = Q K^T
  template <class Smem, class Queries, class Ring>
  CUTE_DEVICE static void issue_scores(Smem& smem, Queries const& q, Ring ring,
                                       float (&score)[kTileKV / 2]) {
    issue_qk<QkMma, LayoutK, kTileKV, kHeadDimQK>(q, Operand(smem.k[ring.stage], 0), score);
  }

  // out += P V
  template <class Smem, class Ring, int N>
  CUTE_DEVICE static void issue_output(Smem& smem, uint32_t const (&p)[kTileKV / 4], Ring ring,
                                       float (&out)[N]) {
    Operand const v(smem.v[ring.stage], LayoutV::kPanelBytes);
    issue_pv<PvMma, LayoutV, kTileKV>(p, v, out);
  }
};

}  // namespace cute_attn
