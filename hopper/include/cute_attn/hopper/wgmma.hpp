// Warpgroup matrix products on swizzled shared-memory tiles.
//
// A tile of R rows x D columns (16-bit) lies in shared memory as D / 64 chunks of R rows x 128
// bytes; inside a chunk the 16-byte pieces of row r are permuted by XOR with r % 8 (the 128-byte
// swizzle of TMA and wgmma). Chunks begin at multiples of 1024 bytes.
#pragma once

#include <cute/arch/mma_sm90_gmma.hpp>
#include <cute/arch/util.hpp>
#include <cute/numeric/integer_sequence.hpp>

namespace cute_attn {

// Tells the compiler that a value is the same in all lanes: descriptors that depend on it are then
// computed once per warp, in uniform registers.
CUTE_DEVICE int warp_uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

// Descriptor of a 128-byte swizzled operand. `leading` is the distance in bytes between 64-column
// chunks (only read for MN-major operands); groups of eight rows are 1024 bytes apart.
CUTE_DEVICE uint64_t swizzled_descriptor(void const* tile, uint32_t leading) {
  constexpr uint64_t kSwizzle128B = 1ull << 62;
  constexpr uint64_t kStride = uint64_t(1024 >> 4) << 32;
  uint64_t const start = (cute::cast_smem_ptr_to_uint(tile) & 0x3FFFF) >> 4;
  return start | uint64_t(leading >> 4) << 16 | kStride | kSwizzle128B;
}

// Element offset of k-step i (16 of the summed index) in a tile of kRows rows: along the columns
// for K-major operands, along the rows for MN-major ones (codegen.smem_tile.SmemTile.wgmma_k_step).
template <int kRows>
CUTE_DEVICE constexpr int k_major_step(int i) {
  return (i / 4) * kRows * 64 + (i % 4) * 16;
}
CUTE_DEVICE constexpr int mn_major_step(int i) { return i * 16 * 64; }

namespace detail {
template <class Mma, int N, int... I>
CUTE_DEVICE void fma_ss(uint64_t a, uint64_t b, float (&d)[N], cute::SM90::GMMA::ScaleOut scale,
                        cute::int_sequence<I...>) {
  Mma::fma(a, b, d[I]..., scale);
}
template <class Mma, int N, int... I>
CUTE_DEVICE void fma_rs(uint32_t const* a, uint64_t b, float (&d)[N], cute::int_sequence<I...>) {
  Mma::fma(a[0], a[1], a[2], a[3], b, d[I]..., cute::SM90::GMMA::ScaleOut::One);
}
}  // namespace detail

// Tells the compiler that the fragment's registers belong to the asynchronous product.
template <int N>
CUTE_DEVICE void fence_fragment(float (&fragment)[N]) {
  CUTE_UNROLL
  for (int i = 0; i < N; ++i) cute::warpgroup_fence_operand(fragment[i]);
}

// score (64, kTileKV) = Q (64, kHeadDim) K (kTileKV, kHeadDim)^T, issued and committed, not waited
// for. q points at this warpgroup's first row in the Q tile of kTileQ rows.
template <class Mma, int kTileQ, int kTileKV, int kHeadDim, class Element, int N>
CUTE_DEVICE void issue_qk(Element const* q, Element const* k, float (&score)[N]) {
  using cute::SM90::GMMA::ScaleOut;
  static_assert(N == kTileKV / 2);
  fence_fragment(score);
  cute::warpgroup_arrive();
  CUTE_UNROLL
  for (int i = 0; i < kHeadDim / 16; ++i) {
    uint64_t const a = swizzled_descriptor(q + k_major_step<kTileQ>(i), 0);
    uint64_t const b = swizzled_descriptor(k + k_major_step<kTileKV>(i), 0);
    detail::fma_ss<Mma>(a, b, score, i > 0 ? ScaleOut::One : ScaleOut::Zero,
                        cute::make_int_sequence<N>{});
  }
  cute::warpgroup_commit_batch();
  fence_fragment(score);
}

// out (64, kHeadDim) += P (64, kTileKV) V (kTileKV, kHeadDim), issued and committed. P is in
// registers: packed pairs of the score fragment are already an A operand.
template <class Mma, int kTileKV, class Element, int P, int N>
CUTE_DEVICE void issue_pv(uint32_t const (&p)[P], Element const* v, float (&out)[N]) {
  static_assert(P == kTileKV / 4);
  fence_fragment(out);
  cute::warpgroup_arrive();
  CUTE_UNROLL
  for (int i = 0; i < kTileKV / 16; ++i) {
    uint64_t const b = swizzled_descriptor(v + mn_major_step(i), kTileKV * 128);
    detail::fma_rs<Mma>(p + 4 * i, b, out, cute::make_int_sequence<N>{});
  }
  cute::warpgroup_commit_batch();
  fence_fragment(out);
}

}  // namespace cute_attn
