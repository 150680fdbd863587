// Products of e4m3 tiles, and the transpose that one of them asks for.
//
// A row of D e4m3 numbers is a row of D / 2 words of 16 bits: copies, layouts and operands that are
// K-major do not see the difference. `wgmma` takes 8-bit operands K-major only, so V (keys,
// head_dim) is turned into V^T (head_dim, keys) on its way from the copies to the consumers.
#pragma once

#include <cute_attn/hopper/tile_copy.hpp>
#include <cute_attn/hopper/wgmma.hpp>

namespace cute_attn {

// Four values rounded to e4m3, the first in the lowest byte; beyond 448 they saturate.
CUTE_DEVICE uint32_t pack_e4m3(float a, float b, float c, float d) {
  uint32_t packed;
  asm("{ .reg .b16 low, high;\n"
      "  cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "  cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "  mov.b32 %0, {low, high}; }"
      : "=r"(packed)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return packed;
}

// The order of keys in an operand of 32: an A register holds four neighbours of a row, and a thread
// has two of every eight columns of S. So neighbours are columns 2t, 2t + 1 of one eight and of the
// next, t = lane % 4: no lane gives anything away. V^T has its keys in the same order.

// Where the scores of row `row` (0 or 1 of the thread) lie that make a word, and the word's place
// among the operands; i counts a row's words: sixteen columns each.
CUTE_DEVICE constexpr int first_of_word(int i, int row) { return 8 * i + 2 * row; }
CUTE_DEVICE constexpr int place_of_word(int i, int row) { return 4 * (i / 2) + 2 * (i % 2) + row; }

// The first N scores, already exponentiated, as operands.
template <int N, int M>
CUTE_DEVICE void pack_probabilities_e4m3(float const (&score)[N], uint32_t (&p)[M]) {
  static_assert(N % 8 == 0);
  CUTE_UNROLL
  for (int i = 0; i < N / 8; ++i) {
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) {
      float const* const s = score + first_of_word(i, row);
      p[place_of_word(i, row)] = pack_e4m3(s[0], s[1], s[4], s[5]);
    }
  }
}

// The two products of a kernel, on stages of its rings. kWordsQK: of a row of K. LayoutVT: of V^T,
// (head_dim_vo, tile_kv / 2) words.
template <class QkMma, class PvMma, class LayoutK, class LayoutVT, int kTileKV, int kWordsQK>
struct TransposedProducts {
  // score = Q K^T
  template <class Smem, class Queries, class Ring>
  CUTE_DEVICE static void issue_scores(Smem& smem, Queries const& q, Ring ring,
                                       float (&score)[kTileKV / 2]) {
    issue_qk<QkMma, LayoutK, kTileKV, kWordsQK>(q, Operand(smem.k[ring.stage], 0), score);
  }

  // out += P V
  template <class Smem, class Ring, int N>
  CUTE_DEVICE static void issue_output(Smem& smem, uint32_t const (&p)[kTileKV / 8], Ring ring,
                                       float (&out)[N]) {
    Operand const v(smem.vt[ring.stage], 0);
    fence_fragment(out);
    cute::warpgroup_arrive();
    CUTE_UNROLL
    for (int i = 0; i < kTileKV / 32; ++i) {
      detail::fma_rs<PvMma>(p + 4 * i, v.at<LayoutVT>(k_major_step<LayoutVT>(i)), out,
                            cute::SM90::GMMA::ScaleOut::One, cute::make_int_sequence<N>{});
    }
    cute::warpgroup_commit_batch();
    fence_fragment(out);
  }
};

// Byte offset of the first 16-byte piece of row `row` of a tile, and from there of piece `piece`:
// the swizzle is an XOR of the bits that the row leaves free.
template <class Layout>
CUTE_DEVICE constexpr uint32_t row_offset(int row) {
  constexpr int kPieces = Layout::kPanel / 8;  // of a row of a panel
  return row / 8 * Layout::kGroupBytes + row % 8 * kPieces * 16 + row * kPieces / 8 % kPieces * 16;
}
template <class Layout>
CUTE_DEVICE constexpr uint32_t piece_of(uint32_t row, int piece) {
  constexpr int kPieces = Layout::kPanel / 8;
  return (row ^ piece % kPieces * 16) + piece / kPieces * Layout::kPanelBytes;
}

// V^T (kHeadDim, kTileKV) of V (kTileKV, kHeadDim) by kWarps warps, which take 32 keys in turn, 16
// columns of them at a time. In these two keys of a thread, and two of the next eight, become
// neighbours (see above).
template <class LayoutV, class LayoutVT, int kTileKV, int kHeadDim, int kWarps>
struct Transpose {
  static constexpr int kTurns = kTileKV / 32 / kWarps;
  static constexpr int kBlocks = kTurns * kHeadDim / 16;
  static constexpr int kAtOnce = 4;  // blocks that are read while as many are written
  static_assert(kTileKV % (32 * kWarps) == 0 && kBlocks % kAtOnce == 0);
  using Words = uint32_t[kAtOnce][4];

  // Keys from `valid_keys` on become zeros.
  CUTE_DEVICE static void run(void* from, void* to, int valid_keys, int warp, int lane) {
    if (valid_keys < kTileKV) {
      for (int key = warp * 32; key < kTileKV; key += kWarps * 32) {
        zero(static_cast<char*>(from), max(key, valid_keys), key + 32, lane);
      }
      __syncwarp();
    }
    uint32_t const v = cute::cast_smem_ptr_to_uint(from) + row_offset<LayoutV>(warp * 32 + lane);
    // Rows of V^T: the even columns, then the odd ones; of each sixteen keys, then the other
    // sixteen.
    uint32_t const row = row_offset<LayoutVT>(lane % 8 * 2 + lane / 16);
    uint32_t const vt =
        cute::cast_smem_ptr_to_uint(to) + piece_of<LayoutVT>(row, warp * 2 + lane / 8 % 2);
    Words words[2];
    read(0, v, words[0]);
    CUTE_UNROLL
    for (int first = 0; first < kBlocks; first += kAtOnce) {
      int const now = first / kAtOnce % 2;
      if (first + kAtOnce < kBlocks) read(first + kAtOnce, v, words[1 - now]);
      write(first, vt, words[now]);
    }
  }

 private:
  CUTE_DEVICE static void zero(char* tile, int first_row, int last_row, int lane) {
    constexpr int kPieces = kHeadDim / 16;  // of a row
    for (int i = first_row * kPieces + lane; i < last_row * kPieces; i += 32) {
      uint32_t const at = piece_of<LayoutV>(row_offset<LayoutV>(i / kPieces), i % kPieces);
      *reinterpret_cast<uint4*>(tile + at) = make_uint4(0, 0, 0, 0);
    }
  }

  CUTE_DEVICE static void read(int first, uint32_t v, Words& words) {
    CUTE_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      int const keys = (first + i) % kTurns * 32 * kWarps, columns = (first + i) / kTurns;
      auto& w = words[i];
      asm volatile("ldmatrix.sync.aligned.x4.trans.m8n8.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                   : "r"(piece_of<LayoutV>(v, columns) + keys / 8 * LayoutV::kGroupBytes)
                   : "memory");
    }
  }

  CUTE_DEVICE static void write(int first, uint32_t vt, Words const& words) {
    CUTE_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      int const keys = (first + i) % kTurns * 2 * kWarps, columns = (first + i) / kTurns * 16;
      auto const& w = words[i];
      asm volatile("stmatrix.sync.aligned.x4.m8n8.shared.b16 [%0], {%1, %2, %3, %4};"
                   :
                   : "r"(piece_of<LayoutVT>(vt, keys) + columns / 8 * LayoutVT::kGroupBytes),
                     "r"(__byte_perm(w[0], w[1], 0x6420)), "r"(__byte_perm(w[2], w[3], 0x6420)),
                     "r"(__byte_perm(w[0], w[1], 0x7531)), "r"(__byte_perm(w[2], w[3], 0x7531))
                   : "memory");
    }
  }
};

}  // namespace cute_attn
