// The two matrix products of one warp, on operands in swizzled shared memory.
//
// The loops are unrolled into one basic block, in which the assembler moves the ldmatrix reads
// ahead of the MMAs as far as registers allow.
#pragma once

#include <cute_attn/ampere/mma.hpp>
#include <cute_attn/ampere/smem_tile.hpp>

namespace cute_attn::ampere {

// scores = Q K^T for 16 kRowTiles query rows, beginning at `row` of a tile of kTileQ rows, and all
// kKeys rows of a K tile. kUnroll columns at a time: the end of an iteration bounds how far ahead
// operands are read, which takes registers.
template <int kTileQ, int kKeys, int kHeadDim, int kUnroll, int kRowTiles, class Element>
CUTE_DEVICE void multiply_qk(Element const* q, int row, Element const* k,
                             float (&scores)[kRowTiles][kKeys / 2]) {
  CUTE_UNROLL
  for (int r = 0; r < kRowTiles; ++r) {
    CUTE_UNROLL
    for (int i = 0; i < kKeys / 2; ++i) scores[r][i] = 0.f;
  }

  ChunkOffset const columns = by_columns(), rows = by_rows();
  CUTE_NO_UNROLL
  for (int first = 0; first < kHeadDim; first += kUnroll) {
    CUTE_UNROLL
    for (int column = first; column < first + kUnroll; column += 16) {
      uint32_t a[kRowTiles][4];
      CUTE_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        read_corner<kTileQ>(q + row * kPanel, columns, 16 * r, column, a[r]);
      }
      CUTE_UNROLL
      for (int pair = 0; pair < kKeys / 16; ++pair) {
        uint32_t b[4];
        read_corner<kKeys>(k, rows, 16 * pair, column, b);
        CUTE_UNROLL
        for (int r = 0; r < kRowTiles; ++r) {
          mma<Element>(&scores[r][8 * pair], a[r], b[0], b[1]);
          mma<Element>(&scores[r][8 * pair + 4], a[r], b[2], b[3]);
        }
      }
    }
  }
}

// out += P V, P being probabilities in accumulator fragments of 16 kRowTiles rows.
template <int kKeys, int kHeadDim, int kRowTiles, class Element>
CUTE_DEVICE void multiply_pv(float const (&p)[kRowTiles][kKeys / 2], Element const* v,
                             float (&out)[kRowTiles][kHeadDim / 2]) {
  ChunkOffset const columns = by_columns();
  CUTE_UNROLL
  for (int step = 0; step < kKeys / 16; ++step) {
    uint32_t a[kRowTiles][4];
    CUTE_UNROLL
    for (int r = 0; r < kRowTiles; ++r) to_operand<Element>(p[r], step, a[r]);
    CUTE_UNROLL
    for (int pair = 0; pair < kHeadDim / 16; ++pair) {
      uint32_t b[4];
      read_corner_transposed<kKeys>(v, columns, 16 * step, 16 * pair, b);
      CUTE_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        mma<Element>(&out[r][8 * pair], a[r], b[0], b[1]);
        mma<Element>(&out[r][8 * pair + 4], a[r], b[2], b[3]);
      }
    }
  }
}

}  // namespace cute_attn::ampere
