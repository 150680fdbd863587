"""`work.hpp`, `fixed_pieces.hpp` and `head_walker.hpp`, compiled for the host, find the same items
as `cute_attn.abi.work`, to the bit."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cute_attn.abi import UNBOUNDED, WorkWalker
from cute_attn.codegen.source import INCLUDE_DIR
from cute_attn.scheduler import Geometry, Plan, RequestBatch, plan_batch, plan_fixed_pieces

COMPILER = next((path for name in ("g++", "clang++", "c++") if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++, clang++ or c++)")

# (tile_q, tile_kv, group) are template arguments; each case below is instantiated.
SHAPES = ((16, 64, 4), (8, 64, 8), (64, 32, 1), (128, 128, 8), (128, 64, 7), (64, 16, 3))

# What the CUDA headers provide and work.hpp uses.
CONFIG = """
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#define CUTE_DEVICE
#define CUTE_HOST_DEVICE
using std::max;
using std::min;
struct Index3 { unsigned x; };
inline Index3 gridDim, blockIdx;
"""

PROGRAM = """
#include <cstdio>
#include <vector>
#include <cute_attn/fixed_pieces.hpp>
#include <cute_attn/head_walker.hpp>

template <int kTileQ, int kTileKV, int kGroup>
void print_pieces(int const* plan, int num_kv_heads) {
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
    cute_attn::PieceWalker<kTileQ, kTileKV, kGroup> walker(plan, num_kv_heads);
    cute_attn::FixedPiece item;
    while (walker.next(item)) {
      auto const& r = item.request;
      std::printf("%u %d %d %d %d %d %d", blockIdx.x, r.batch(), item.kv_head, item.row_begin,
                  item.block_begin, item.block_end, item.slot);
      if (item.slot >= 0) std::printf(" of %d from %d", item.num_slots, item.first_slot);
      std::printf("\\n");
    }
  }
}

template <class Walker>
void print_items(int const* plan, int num_kv_heads) {
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
    Walker walker(plan, num_kv_heads);
    cute_attn::Item item;
    while (walker.next(item)) {
      auto const& r = item.request;
      std::printf("%u %d %d %d %d %d %d %d %d %d %d %d %d\\n", blockIdx.x, r.batch(),
                  r.section_heads(), r.q_start, r.kv_start, r.kv_len, r.tile_begin, item.kv_head,
                  item.row_begin, item.num_rows, item.block_begin, item.block_end, item.slot);
    }
  }
  cute_attn::Plan view{plan, static_cast<int>(gridDim.x)};
  for (int i = 0; i < view.header().num_split_tiles; ++i) {
    auto s = view.split(i);
    std::printf("split %d %d %d %d\\n", s.tile, s.request, s.first_slot, s.num_slots);
  }
}

int main(int, char** arguments) {
  std::FILE* file = std::fopen(arguments[1], "rb");
  int size;
  while (std::fread(&size, 4, 1, file) == 1) {
    std::vector<int> plan(size);
    if (std::fread(plan.data(), 4, size, file) != static_cast<size_t>(size)) return 1;
    int tile_q = plan[7], tile_kv = plan[8], group = plan[9], heads = plan[10];
    gridDim.x = plan[11];
    std::printf("plan\\n");
    CASES
    return 2;
  }
}
"""
CASE = """
    if (tile_q == {0} && tile_kv == {1} && group == {2}) {{
      if (plan[14]) print_pieces<{0}, {1}, {2}>(plan.data(), heads);
      else if (plan[15]) print_items<cute_attn::HeadWalker<{0}, {1}, {2}>>(plan.data(), plan[15]);
      else print_items<cute_attn::WorkWalker<{0}, {1}, {2}>>(plan.data(), heads);
      continue;
    }}"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The host program; items of every plan in a file, as text."""
    folder = tmp_path_factory.mktemp("twin")
    (folder / "cute").mkdir()
    (folder / "cute" / "config.hpp").write_text(CONFIG)
    cases = "".join(CASE.format(*shape) for shape in SHAPES)
    source = folder / "twin.cpp"
    source.write_text(PROGRAM.replace("CASES", cases))
    assert COMPILER is not None
    command = [COMPILER, "-std=c++17", "-O1", "-fsanitize=undefined"]
    command += ["-fsanitize-undefined-trap-on-error"]  # needs no run-time library
    command += [f"-I{folder}", f"-I{INCLUDE_DIR}", str(source), "-o", str(folder / "twin")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return folder / "twin"


def random_step(rng: np.random.Generator) -> tuple[RequestBatch, Geometry, int]:
    tile_q, tile_kv, group = SHAPES[rng.integers(len(SHAPES))]
    geometry = Geometry(
        tile_q,
        tile_kv,
        group=group,
        num_kv_heads=int(rng.choice([1, 2, 5, 8])),
        window_left=int(rng.choice([UNBOUNDED, 0, 100])),
        window_right=int(rng.choice([UNBOUNDED, 0, 20])),
    )
    count = int(rng.integers(0, 20))
    q_len = rng.choice([0, 1, 1, 2, 17, 300], count)
    if rng.random() < 0.4:
        q_len = np.minimum(q_len, 1)
    kv_len = rng.choice([0, 1, 16, 97, 1024, 5000, 200_000], count)
    first = RequestBatch.from_lengths(q_len, kv_len)
    positions = first.q_pos + rng.integers(-50, 50, count)
    requests = RequestBatch(first.q_start, q_len, first.kv_start, kv_len, q_pos=positions)
    blocks = int(rng.choice([1, 2, 7, 132]))
    return requests, geometry, blocks


def random_plan(rng: np.random.Generator) -> Plan:
    return plan_batch(*random_step(rng), min_piece=int(rng.integers(1, 4)), l2_budget=1 << 20)


def expected_text(plan: Plan) -> list[str]:
    walker = WorkWalker(plan.view)
    lines = []
    for block in range(walker.num_blocks):
        for item in walker.items(block):
            r = plan.view.request(item.request)
            request = walker.callers_request(item.request)
            record = (request, r.section_heads, r.q_start, r.kv_start, r.kv_len, r.tile_begin)
            lines.append(" ".join(str(x) for x in (block, *record, item.kv_head, *item[3:])))
    splits = plan.view.splits[: plan.num_split_tiles].tolist()
    return lines + [f"split {' '.join(map(str, split))}" for split in splits]


def run(program: Path, folder: Path, plans: list[Plan]) -> list[list[str]]:
    """What the C++ text prints of each plan."""
    data = b"".join(np.int32(p.buffer.size).tobytes() + p.buffer.tobytes() for p in plans)
    (folder / "plans").write_bytes(data)
    command = [program, folder / "plans"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    printed = result.stdout.split("plan\n")[1:]
    assert len(printed) == len(plans)
    return [text.splitlines() for text in printed]


def test_both_texts_find_the_same_items(program: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    plans = [random_plan(rng) for _ in range(150)]
    assert any(plan.num_split_tiles for plan in plans)
    assert any(plan.num_whole_tiles for plan in plans)
    assert any(plan.view.get("places") for plan in plans)
    for lines, plan in zip(run(program, tmp_path, plans), plans, strict=True):
        assert lines == expected_text(plan)


def test_both_texts_find_the_same_items_of_each_kv_head(program: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(13)
    plans = []
    for _ in range(80):
        requests, geometry, blocks = random_step(rng)
        heads = int(rng.choice([1, 2, 3, 8]))
        geometry = replace(geometry, num_kv_heads=1, heads_in_ids=heads)
        ids = rng.permutation(3 * requests.num_requests)[: requests.num_requests]
        named = RequestBatch(*requests.table, ids)
        plans.append(plan_batch(named, geometry, blocks, min_piece=int(rng.integers(1, 4))))
    assert sum(plan.num_split_tiles > 0 for plan in plans) >= 8
    for lines, plan in zip(run(program, tmp_path, plans), plans, strict=True):
        assert lines == expected_text(plan)
    walkers = [WorkWalker(plan.view) for plan in plans]
    items = [item for w in walkers for block in range(w.num_blocks) for item in w.items(block)]
    assert {item.kv_head for item in items} == set(range(8))


def expected_pieces(plan: Plan) -> list[str]:
    walker = WorkWalker(plan.view)
    slots = {tile: f" of {size} from {first}" for tile, _, first, size in walker.split_tiles()}
    lines = []
    for block in range(walker.num_blocks):
        for item in walker.items(block):
            batch = plan.view.request(item.request).batch
            numbers = (block, batch, item.kv_head, item.row_begin, *item[5:])
            lines.append(" ".join(map(str, numbers)) + slots.get(item.tile, ""))
    return lines


def test_both_texts_find_the_same_fixed_pieces(program: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(12)
    plans = [plan_fixed_pieces(*random_step(rng), in_kernel=True) for _ in range(150)]
    assert sum(plan.num_split_tiles > 0 for plan in plans) > 40
    for lines, plan in zip(run(program, tmp_path, plans), plans, strict=True):
        assert lines == expected_pieces(plan)
