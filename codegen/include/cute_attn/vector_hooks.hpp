// Rows of a swizzled shared-memory tile through a variant's hook, in place.
//
// The generated hook is made of functions of a pair of elements, or of an element in no pair
// (vector_places.hpp). A thread takes of a row two pieces of 8 bytes, a *unit* (vector_unit.hpp),
// and keeps its unit from row to row.
#pragma once

#include <cute_attn/opaque.hpp>
#include <cute_attn/vector_places.hpp>
#include <cute_attn/vector_turns.hpp>
#include <cute_attn/vector_unit.hpp>

namespace cute_attn {

// A tile of kRows rows in panels of 64 columns; see codegen.smem_tile.SmemTile.
template <int kRows>
struct Panels {
  static constexpr int kPanel = 64;
  static constexpr int kGroupBytes = 1024;         // from a group of eight rows to the next
  static constexpr int kPanelBytes = kRows * 128;  // from a panel to the next
};

// How kThreads threads share rows of kColumns elements.
template <int kColumns, int kThreads>
struct VectorShare {
  static constexpr int kUnits = kColumns / 8;
  static constexpr int kLanes = kUnits <= 8 ? 8 : kUnits <= 16 ? 16 : 32;  // of a row; some idle
  static constexpr int kRows = kThreads / kLanes;                          // at a time
  static_assert(kColumns % 16 == 0 && kUnits <= kLanes && kRows >= 1);
};

// A number of rows that is known when it is compiled.
template <int kCount>
struct Rows {
  CUTE_DEVICE constexpr operator int() const { return kCount; }
};

// Passes rows of a tile of kColumns columns through a hook, by kThreads threads, whole warps, last
// rows first. Where positions of rows that follow each other do so too, a row's turns come from
// those of the thread's rows before. A thread has kInWork rows in work, 1 or 2, and as many on
// their way; 0: one and none, for registers that are scarce.
template <class Hook, class Layout, int kColumns, int kThreads, int kInWork, class Place,
          class Params, class TurnsOf>
class RowTransform {
  using Share = VectorShare<kColumns, kThreads>;
  static constexpr int kRows = Share::kRows;
  static constexpr bool kCompact = kInWork == 0;
  static constexpr int kHeld = kCompact ? 1 : kInWork;
  static constexpr int kStep =
      (kCompact ? 1 : 2 * kInWork) * kRows;  // of all threads, with those on their way
  static constexpr bool kFalling = Place::kConsecutive && Hook::kTurns && Hook::kFollows;
  static_assert(kRows % 8 == 0 || 8 % kRows == 0);

  static constexpr int kNowhere = -0x7fffffff - 1;  // no position

  using Pieces = uint2[kHeld][2];

  Params const& params;
  TurnsOf const& turns;
  Place place;
  VectorUnit<Hook, kColumns> own;
  int first_row;
  RowTurns<kFalling, kCompact> ahead;
  int below = kNowhere;  // position at which `ahead` may go on

 public:
  // thread: which of the kThreads this is.
  CUTE_DEVICE RowTransform(Params const& params, TurnsOf const& turns, unsigned thread)
      : params(params),
        turns(turns),
        own(static_cast<int>(thread % Share::kLanes)),
        first_row(static_cast<int>(thread / Share::kLanes)) {}

  // What can be done before rows [0, rows) of a tile are there. at(row): the row's VectorPlace.
  template <class Count>
  CUTE_DEVICE void start(Place at, Count rows) {
    place = at;
    if constexpr (kFalling) {
      int const position = Hook::position_of(params, place(last_row(rows)));
      if (own.paired) ahead.start(turns, own.unit, position);
      below = position - rows;
    }
  }

  // The same where tiles may lie below each other: of two, one starts.
  template <int kCount>
  CUTE_DEVICE void resume(Place at, Rows<kCount> rows) {
    if constexpr (kFalling && !kCompact && kCount % kStep == 0) {
      place = at;
      if (Hook::position_of(params, place(last_row(rows))) == below) {
        ahead.advance();
        below = kNowhere;
        return;
      }
    }
    start(at, rows);
  }

  // Rows [0, rows), in place, behind start or resume. No thread may still write the tile, and none
  // read it before all are done: that is the caller's to see to.
  template <class Element, class Count>
  CUTE_DEVICE void run(Element* tile, Count rows) {
    char* const bytes = reinterpret_cast<char*>(tile);
    if constexpr (kCompact) {
      run_compact<Element>(bytes, rows);
    } else {
      run_ahead<Element>(bytes, rows);
    }
  }

 private:
  template <class Element, class Count>
  CUTE_DEVICE void run_compact(char* bytes, Count rows) {
    CUTE_NO_UNROLL
    for (int begin = whole_steps(rows) - kStep; begin >= 0; begin -= kStep) {
      own.unit = static_cast<int>(opaque(static_cast<unsigned>(own.unit)));
      Pieces pieces = {};
      load<0>(bytes, begin, rows, pieces);
      pass<0, 0, Element>(bytes, begin, rows, pieces);
      if constexpr (kFalling) {
        if (own.paired) ahead.advance(turns, own.unit);
      }
    }
  }

  template <class Element, class Count>
  CUTE_DEVICE void run_ahead(char* bytes, Count rows) {
    constexpr int kUpper = kStep - kRows, kLower = kStep / 2 - kRows;  // last of both halves
    Pieces upper, lower;
    int begin = whole_steps(rows) - kStep;
    load<kUpper>(bytes, begin, rows, upper);
    CUTE_NO_UNROLL
    for (; begin >= 0; begin -= kStep) {
      load<kLower>(bytes, begin, rows, lower);
      pass<kUpper, 0, Element>(bytes, begin, rows, upper);
      if constexpr (kFalling && kInWork == 2) ahead.advance();
      if (begin > 0) load<kUpper>(bytes, begin - kStep, rows, upper);
      pass<kLower, 2 - kInWork, Element>(bytes, begin, rows, lower);
      if constexpr (kFalling) {
        if (begin > 0) ahead.advance();
      }
    }
  }

  CUTE_DEVICE static constexpr int whole_steps(int rows) {
    return (rows + kStep - 1) / kStep * kStep;
  }

  // The thread's last row in whole steps.
  CUTE_DEVICE int last_row(int rows) const { return whole_steps(rows) - kRows + first_row; }

  // Whether this thread has a unit of row first_row + begin, which may be before the first row.
  template <class Count>
  CUTE_DEVICE bool has(int begin, Count rows) const {
    bool const has_unit = Share::kUnits == Share::kLanes || own.unit < Share::kUnits;
    return has_unit && (is_whole(rows) ||
                        static_cast<unsigned>(begin + first_row) < static_cast<unsigned>(rows));
  }
  CUTE_DEVICE static constexpr bool is_whole(int) { return false; }
  template <int kCount>
  CUTE_DEVICE static constexpr bool is_whole(Rows<kCount>) {
    return kCount % kStep == 0;
  }

  // Where a piece of row first_row + kRow + begin is; begin is a multiple of kStep, kRow of kRows.
  // Rows of eight differ in the swizzle, groups of eight do not.
  template <int kRow>
  CUTE_DEVICE int offset(int second, int begin) const {
    constexpr int kPieces = Layout::kPanel / 8;  // of 16 bytes, in a row of a panel
    int const number = own.piece(second), piece = number / 2;
    int const first = piece / kPieces * Layout::kPanelBytes + first_row / 8 * Layout::kGroupBytes +
                      first_row % 8 * kPieces * 16 +
                      ((piece ^ first_row % 8 * kPieces / 8) % kPieces) * 16 + number % 2 * 8;
    int const in_group = kStep % 8 == 0 ? kRow % 8 : (begin + kRow) & 7;
    int const groups = (begin + kRow - in_group) * (Layout::kGroupBytes / 8);
    return (first ^ in_group * kPieces / 8 * 16) + groups + in_group * kPieces * 16;
  }

  // Rows in work: the thread's row from kRow + begin on, and those before it.
  template <int kRow, class Count>
  CUTE_DEVICE void load(char const* tile, int begin, Count rows, Pieces& pieces) const {
    load_row<kRow>(tile, begin, rows, pieces[0]);
    if constexpr (kInWork == 2) load_row<kRow - kRows>(tile, begin, rows, pieces[1]);
  }
  template <int kRow, class Count>
  CUTE_DEVICE void load_row(char const* tile, int begin, Count rows, uint2 (&pieces)[2]) const {
    if (!has(kRow + begin, rows)) return;
    CUTE_UNROLL
    for (int k = 0; k < 2; ++k) {
      pieces[k] = *reinterpret_cast<uint2 const*>(tile + offset<kRow>(k, begin));
    }
  }

  template <int kRow, class Element, class Count>
  CUTE_DEVICE void store_row(char* tile, int begin, Count rows, float const (&x)[8]) const {
    if (!has(kRow + begin, rows)) return;
    CUTE_UNROLL
    for (int k = 0; k < 2; ++k) {
      *reinterpret_cast<uint2*>(tile + offset<kRow>(k, begin)) = pack_piece<Element>(x + 4 * k);
    }
  }

  // The hook itself, on the rows in work. kFirst: of which turns the first one's are.
  template <int kRow, int kFirst, class Element, class Count>
  CUTE_DEVICE void pass(char* tile, int begin, Count rows, Pieces const& pieces) {
    constexpr int kSums = Hook::kSums > 0 ? Hook::kSums : 1;
    float x[kHeld][8], sums[kHeld][kSums] = {};
    float2 looked_up[kHeld][4];
    CUTE_UNROLL
    for (int i = 0; i < kHeld; ++i) {
      int const row = kRow - i * kRows + begin;
      if (!has(row, rows)) continue;
      VectorPlace const at = place(row + first_row);
      unpack_piece<Element>(pieces[i][0], x[i]);
      unpack_piece<Element>(pieces[i][1], x[i] + 4);
      if constexpr (Hook::kTurns && !kFalling) {
        CUTE_UNROLL
        for (int e = 0; e < 4; ++e) {
          if (!own.paired) continue;
          int const position = turn_position<Hook>(params, at, 4 * own.unit + e);
          looked_up[i][e] = turns.of(own.unit, e).at(position);
        }
      }
      if constexpr (Hook::kSums > 0) {
        own.add_sums(params, at, turn<kFirst>(i, looked_up), x[i], sums[i]);
      }
    }
    CUTE_UNROLL
    for (int lane = 1; lane < Share::kLanes && Hook::kSums > 0; lane *= 2) {
      CUTE_UNROLL
      for (int i = 0; i < kHeld; ++i) {
        CUTE_UNROLL
        for (int k = 0; k < kSums; ++k) {
          sums[i][k] += __shfl_xor_sync(0xffffffffu, sums[i][k], lane);
        }
      }
    }
    CUTE_UNROLL
    for (int i = 0; i < kHeld; ++i) {
      int const row = kRow - i * kRows + begin;
      if (!has(row, rows)) continue;
      own.apply(params, place(row + first_row), turn<kFirst>(i, looked_up), sums[i], x[i]);
    }
    store_row<kRow, Element>(tile, begin, rows, x[0]);
    if constexpr (kInWork == 2) store_row<kRow - kRows, Element>(tile, begin, rows, x[1]);
  }

  // Turns of row i of those in work.
  template <int kFirst>
  CUTE_DEVICE float2 const (&turn(int i, float2 const (&looked_up)[kHeld][4]) const)[4] {
    if constexpr (kFalling) {
      return ahead.row[kFirst + i];
    } else {
      return looked_up[i];
    }
  }
};

// See RowTransform.
template <class Hook, class Layout, int kColumns, int kThreads, int kInWork, class Place,
          class Params, class TurnsOf>
CUTE_DEVICE auto row_transform(Params const& params, TurnsOf const& turns, unsigned thread) {
  return RowTransform<Hook, Layout, kColumns, kThreads, kInWork, Place, Params, TurnsOf>(
      params, turns, opaque(thread));
}

}  // namespace cute_attn
