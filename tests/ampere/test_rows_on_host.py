"""Where the Ampere kernels look for keys in pages: their header, run on the host."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from cute_attn.ampere import emit
from cute_attn.codegen.attention_params import page_division
from cute_attn.codegen.source import INCLUDE_DIR

COMPILER = next((path for name in ("g++", "clang++", "c++") if (path := shutil.which(name))), None)
AMPERE_INCLUDE = Path(emit.__code__.co_filename).parent / "include"

CONFIG = """
#pragma once
#include <algorithm>
#include <cstdint>
#define CUTE_DEVICE inline
#define CUTE_UNROLL
using std::min;
inline struct { unsigned x; } threadIdx;
inline unsigned __umulhi(unsigned a, unsigned b) { return uint64_t{a} * b >> 32; }
inline int __ldg(int const* p) { return *p; }
namespace cute { struct uint128_t { uint64_t low, high; }; }
"""
LDMATRIX = """
#pragma once
#include <cute/config.hpp>
namespace cute {
struct SM75_U32x4_LDSM_N { template <class... T> static void copy(T const&...) {} };
struct SM75_U16x8_LDSM_T { template <class... T> static void copy(T const&...) {} };
}
"""
CP_ASYNC = """
#pragma once
#include <cstdio>
#include <cute/config.hpp>
inline uint16_t tile[1 << 16];
namespace cute {
template <class T>
struct SM80_CP_ASYNC_CACHEGLOBAL_ZFILL {
  static void copy(T const& from, T& to, bool exists) {
    auto const place = reinterpret_cast<uint16_t*>(&to) - tile;
    std::printf("%lld %lld %d\\n", static_cast<long long>(reinterpret_cast<intptr_t>(&from) / 2),
                static_cast<long long>(place), exists);
  }
};
}
"""
MAIN = """
#include <cute_attn/ampere/paged_rows.hpp>
#include <vector>
using namespace cute_attn::ampere;
int main() {
  int first_key, kv_len, page_size, shift, entries;
  unsigned magic;
  long long page_stride, token_stride;
  std::scanf("%d %d %d %u %d %lld %lld %d", &first_key, &kv_len, &page_size, &magic, &shift,
             &page_stride, &token_stride, &entries);
  std::vector<int> table(entries);
  for (int& page : table) std::scanf("%d", &page);
  for (unsigned thread = 0; thread < 32; ++thread) {
    threadIdx.x = thread;
    PAGES<16, 32> pages;
    pages.locate({page_size, magic, shift}, first_key, kv_len, thread);
    pages.load(table.data());
    auto const* head = static_cast<uint16_t const*>(nullptr) + first_column();
    pages.copy<TAIL, 128>(head, page_stride, token_stride, first_key, kv_len, thread, tile);
  }
}
"""


@pytest.fixture(scope="module", params=["BlockPages", "CompactBlockPages"])
def programs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[bool, Path]:
    """With and without keys past the end."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    made = {}
    for tail in (False, True):
        folder = tmp_path_factory.mktemp("rows")
        (folder / "cute" / "arch").mkdir(parents=True)
        (folder / "cute" / "config.hpp").write_text(CONFIG)
        (folder / "cute" / "arch" / "copy_sm75.hpp").write_text(LDMATRIX)
        (folder / "cute" / "arch" / "copy_sm80.hpp").write_text(CP_ASYNC)
        text = MAIN.replace("PAGES", request.param).replace("TAIL", str(tail).lower())
        (folder / "main.cpp").write_text(text)
        made[tail] = folder / "main"
        command = [COMPILER, "-std=c++17", "-O1", str(folder / "main.cpp"), "-o", str(made[tail])]
        command += [f"-I{path}" for path in (folder, AMPERE_INCLUDE, INCLUDE_DIR)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return made


@pytest.mark.parametrize("page_size", [1, 3, 16, 64])
def test_every_key_of_sixteen_is_copied_from_its_page(
    page_size: int, programs: dict[bool, Path]
) -> None:
    rng = np.random.default_rng(page_size)
    magic, shift = page_division(page_size)
    strides = (page_size * 2048 * 5, 1024)
    for tail, first_key, kv_len in ((False, 320, 1000), (True, 992, 1000), (True, 0, 1)):
        table = rng.integers(0, 1 << 20, -(-kv_len // page_size))
        numbers = [first_key, kv_len, page_size, magic, shift, *strides, table.size, *table]
        given = " ".join(map(str, numbers))
        done = subprocess.run(
            [programs[tail]], input=given, capture_output=True, text=True, check=True
        )
        copies = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
        got = {place: (source, exists) for source, place, exists in copies}
        assert len(copies) == len(got) == 16 * 128 // 8
        for row in range(16):
            key = first_key + row
            for chunk in range(16):
                place = chunk // 8 * 16 * 64 + row * 64 + ((chunk ^ row) & 7) * 8
                source, exists = got[place]
                assert bool(exists) == (key < kv_len)
                if exists:
                    page, in_page = divmod(key, page_size)
                    at = table[page] * strides[0] + in_page * strides[1] + 8 * chunk
                    assert source == at
