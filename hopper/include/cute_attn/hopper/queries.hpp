// The queries of a consumer warpgroup, 64 rows of an item's Q tile, as the A operand of Q K^T.
#pragma once

#include <cute_attn/hopper/tile_copy.hpp>
#include <cute_attn/hopper/wgmma.hpp>
#include <cute_attn/opaque.hpp>

namespace cute_attn {

// They stay where they are: the Q tile is occupied until the item's last Q K^T has been waited for.
template <class Layout, int kHeadDim>
struct SharedQueries {
  static constexpr bool kInRegisters = false;
  static constexpr int kPanel = Layout::kPanel;
  Operand rows;

  // tile: where the warpgroup's rows begin.
  CUTE_DEVICE void take(void const* tile) { rows = Operand(tile, 0); }

  // score = (i > 0 ? score : 0) + columns [16 i, 16 i + 16) times k.
  template <class Mma, int N>
  CUTE_DEVICE void multiply(int i, uint64_t k, float (&score)[N]) const {
    using cute::SM90::GMMA::ScaleOut;
    detail::fma_ss<Mma>(rows.at<Layout>(k_major_step<Layout>(i)), k, score,
                        i > 0 ? ScaleOut::One : ScaleOut::Zero, cute::make_int_sequence<N>{});
  }
};

// They are read once: the Q tile is free at once, so there need not be a second one, and what that
// takes of shared memory holds another stage of K and V.
template <class Layout, int kHeadDim>
struct RegisterQueries {
  static constexpr bool kInRegisters = true;
  static constexpr int kPanel = Layout::kPanel;
  uint32_t rows[kHeadDim / 4];  // (64, head_dim), 16-bit: four registers per 16 columns

  CUTE_DEVICE void take(void const* tile) {
    unsigned const thread = opaque(threadIdx.x);  // addresses are computed, not kept
    int const lane = thread % 32;
    int const row = thread / 32 % 4 * 16 + lane % 16;
    uint32_t const base = cute::cast_smem_ptr_to_uint(tile);
    CUTE_UNROLL
    for (int i = 0; i < kHeadDim / 16; ++i) {
      int const from =
          swizzled_offset<Layout::kPanelBytes / (2 * kPanel), kPanel>(row, 2 * i + lane / 16);
      uint32_t (&to)[4] = reinterpret_cast<uint32_t (&)[4]>(rows[4 * i]);
      asm volatile("ldmatrix.sync.aligned.x4.m8n8.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                   : "r"(base + from * 2)
                   : "memory");
    }
  }

  template <class Mma, int N>
  CUTE_DEVICE void multiply(int i, uint64_t k, float (&score)[N]) const {
    using cute::SM90::GMMA::ScaleOut;
    detail::fma_rs<Mma>(rows + 4 * i, k, score, i > 0 ? ScaleOut::One : ScaleOut::Zero,
                        cute::make_int_sequence<N>{});
  }
};

}  // namespace cute_attn
