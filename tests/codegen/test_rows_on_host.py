"""`finished_row.hpp` and the merges of `merge_state.hpp`, compiled for the host."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest

from cute_attn.codegen.source import INCLUDE_DIR

COMPILER = next((path for name in ("g++", "clang++", "c++") if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++, clang++ or c++)")

# What CUDA and softmax.hpp provide.
CONFIG = """
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#define CUTE_DEVICE inline
#define CUTE_HOST_DEVICE inline
#define CUTE_UNROLL
using std::max;
using std::min;
struct Index3 { unsigned x; };
inline Index3 gridDim, blockIdx, threadIdx;
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float __log2f(float x) { return std::log2(x); }
"""
SOFTMAX = """
#pragma once
#include <cute/config.hpp>
namespace cute_attn {
inline float neg_infinity() { return -INFINITY; }
inline float exp2_approx(float x) { return std::exp2(x); }
}
"""
MAIN = """
#include <cute_attn/finished_row.hpp>
#include <cute_attn/merge_state.hpp>
#include <cstdio>
using namespace cute_attn;

struct Params { float sink; };
struct State {
  static constexpr bool kState = true, kOutput = false;
  static float row_state(Params const& params, float lse, RowPlace const&) {
    float const sink = params.sink, top = std::max(lse, sink);
    return std::isinf(top) ? top : top + std::log(std::exp(lse - top) + std::exp(sink - top));
  }
};
struct Output {
  static constexpr bool kState = false, kOutput = true;
  static float output(Params const&, float out, RowPlace const& at, int d) {
    return out + 100000 * at.b + 10000 * at.h + 1000 * at.q_idx + d;
  }
};

int main() {
  for (float lse : {-INFINITY, -3.f, 0.f, 20.f}) {
    for (float sink : {-INFINITY, -50.f, 1.f, 1e30f, INFINITY}) {
      float lse2 = lse * 1.44269504f;
      float const factor = finish_state<State>(Params{sink}, RowPlace{}, lse2);
      std::printf("%.9g %.9g %.9g %.9g\\n", lse, sink, factor, lse2 * 0.69314718f);
    }
  }
  std::puts("fragment");
  for (unsigned lane = 0; lane < 4; ++lane) {
    threadIdx.x = lane;
    float out[16] = {};  // two rows of 32 columns, over four lanes
    for (float& x : out) x = 0.5f;
    finish_fragment<Output>(Params{}, RowPlace{1, 2, 3}, 1, 2.f, out);
    for (int j = 0; j < 16; ++j) std::printf("%u %d %.9g\\n", lane, j, out[j]);
  }
  std::puts("place");
  Request request{};
  request.q_pos = 7, request.meta = 5;
  RowPlace const at = RowPlace::of<4>(request, 3, 9);
  std::printf("%d %d %d\\n", at.b, at.h, at.q_idx);
  std::puts("merge");
  float const lse2[3] = {-INFINITY, 1.f, 3.f};
  float4 const value[3][1] = {{{0, 0, 0, 0}}, {{1, 2, 3, 4}}, {{10, 20, 30, 40}}};
  MergeState<1> state;
  MergeSum<1> sum;
  state.add(lse2, value);
  sum.add(lse2, value);
  float4 const a = state.normalised(0), b = sum.normalised(0);
  std::printf("%.9g %.9g\\n%.9g %.9g\\n", a.x, a.w, b.x, b.w);
}
"""


@pytest.fixture(scope="module")
def sections(tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """What the program prints, section by section."""
    folder = tmp_path_factory.mktemp("rows")
    for name, text in (
        ("include/cute/config.hpp", CONFIG),
        ("include/cute_attn/softmax.hpp", SOFTMAX),
        ("rows.cpp", MAIN),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for header in ("finished_row", "merge_state", "work"):
        shutil.copy(INCLUDE_DIR / "cute_attn" / f"{header}.hpp", folder / "include" / "cute_attn")
    assert COMPILER is not None
    subprocess.run(
        [COMPILER, "-std=c++17", "-O1", "-w", "-Iinclude", "rows.cpp", "-o", "rows"],
        cwd=folder,
        check=True,
    )
    printed = subprocess.run([folder / "rows"], capture_output=True, text=True, check=True).stdout
    blocks: list[list[str]] = [[]]
    for line in printed.splitlines():
        if line.isalpha():
            blocks.append([])
        else:
            blocks[-1].append(line)
    return [np.array([line.split() for line in block], float) for block in blocks]


def test_states(sections: list[np.ndarray]) -> None:
    """The output is scaled by exp(old - new), by 0 without keys, never by NaN."""
    for lse, sink, factor, new in sections[0]:
        expected = np.logaddexp(lse, sink)
        assert new == pytest.approx(expected, rel=1e-6, abs=1e-6), (lse, sink)
        wanted = 0.0 if np.isneginf(lse) else np.exp(lse - expected)
        assert factor == pytest.approx(wanted, rel=1e-5), (lse, sink)


def test_fragments(sections: list[np.ndarray]) -> None:
    """Register 4 j + 2 row + e of lane l is column 8 j + 2 (l % 4) + e; the other row stays."""
    columns = []
    for lane, register, value in sections[1].astype(np.float64):
        j, row, e = int(register) // 4, int(register) // 2 % 2, int(register) % 2
        if row == 0:
            assert value == 0.5
            continue
        columns.append(8 * j + 2 * int(lane) + e)
        assert value == 1 + 100000 + 20000 + 3000 + columns[-1]
    assert sorted(columns) == list(range(32))


def test_places_and_merges(sections: list[np.ndarray]) -> None:
    assert sections[2].tolist() == [[5, 13, 9]]
    weighted = (2 * 1 + 8 * 10) / 10, (2 * 4 + 8 * 40) / 10
    np.testing.assert_allclose(sections[3], [weighted, (11, 44)], rtol=1e-6)
