// The two matrix products of a warp that has few query rows: S^T = K Q^T and O^T += V^T P^T.
//
// m16n8k16 has 16 rows and 8 columns. With keys as rows, eight query rows fill it; with query rows
// as rows half of it would be padding, and scores, probabilities and output would take twice the
// instructions and registers.
//
// Scores of 16 keys and 8 query rows are float[4]: lane l holds, of keys l / 4 (0, 1) and l / 4 + 8
// (2, 3), query rows 2 (l % 4) and 2 (l % 4) + 1. Output of 16 columns and 8 query rows likewise,
// with columns in the place of keys.
#pragma once

#include <cute_attn/ampere/mma.hpp>
#include <cute_attn/ampere/smem_tile.hpp>

namespace cute_attn::ampere {

// Query rows of a tile of 8 kTiles rows as B operands.
template <int kTiles, int kHeadDim, class Element>
CUTE_DEVICE void read_queries(Element const* tile, uint32_t (&q)[kTiles][kHeadDim / 16][2]) {
  unsigned const lane = opaque(threadIdx.x) % 32;
  ChunkOffset const mine(lane % 8, lane / 8);
  CUTE_UNROLL
  for (int t = 0; t < kTiles; ++t) {
    CUTE_UNROLL
    for (int step = 0; step < kHeadDim / 16; step += 2) {
      int const offset = mine.template at<8 * kTiles>(8 * t, 16 * step / kChunk);
      cute::SM75_U32x4_LDSM_N::copy(chunk_at(tile, offset), q[t][step][0], q[t][step][1],
                                    q[t][step + 1][0], q[t][step + 1][1]);
    }
  }
}

// scores = K Q^T for the 16 keys of a tile. A product waits for the one before it in its sum; there
// are two sums side by side, of one tile of query rows or of two.
template <int kHeadDim, int kTiles, class Element>
CUTE_DEVICE void multiply_kq(Element const* k, uint32_t const (&q)[kTiles][kHeadDim / 16][2],
                             float (&scores)[kTiles][4]) {
  constexpr int kSums = kTiles == 1 ? 2 : 1;
  float sum[kSums][kTiles][4] = {};
  ChunkOffset const columns = by_columns();
  CUTE_UNROLL
  for (int step = 0; step < kHeadDim / 16; ++step) {
    uint32_t a[4];
    read_corner<16>(k, columns, 0, 16 * step, a);
    CUTE_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      mma<Element>(sum[step % kSums][t], a, q[t][step][0], q[t][step][1]);
    }
  }
  CUTE_UNROLL
  for (int t = 0; t < kTiles; ++t) {
    CUTE_UNROLL
    for (int i = 0; i < 4; ++i) {
      scores[t][i] = kSums == 1 ? sum[0][t][i] : sum[0][t][i] + sum[kSums - 1][t][i];
    }
  }
}

// out += V^T P^T for the 16 keys of a tile. As operands, probabilities have their keys where the
// fragment has its query rows: the 8 x 8 quarters are transposed.
template <int kHeadDim, int kTiles, class Element>
CUTE_DEVICE void multiply_vp(Element const* v, float const (&p)[kTiles][4],
                             float (&out)[kTiles][kHeadDim / 16][4]) {
  uint32_t b[kTiles][2];
  CUTE_UNROLL
  for (int t = 0; t < kTiles; ++t) {
    CUTE_UNROLL
    for (int half = 0; half < 2; ++half) {
      uint32_t const packed = pack<Element>(p[t][2 * half], p[t][2 * half + 1]);
      cute::SM75_U32x1_MOVM_T::copy(packed, b[t][half]);
    }
  }
  ChunkOffset const rows = by_rows();
  CUTE_UNROLL
  for (int i = 0; i < kHeadDim / 16; ++i) {
    uint32_t a[4];
    read_corner_transposed<16>(v, rows, 0, 16 * i, a);
    CUTE_UNROLL
    for (int t = 0; t < kTiles; ++t) mma<Element>(out[t][i], a, b[t][0], b[t][1]);
  }
}

}  // namespace cute_attn::ampere
