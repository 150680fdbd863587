"""The walk over an item's visible blocks, run on the host as a warp of threads."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cute_attn.codegen.hooks import cpp_hooks
from cute_attn.codegen.source import INCLUDE_DIR
from cute_attn.variants import EMPTY, FULL, Variant, causal, chunked_local, prefix_lm
from tests.codegen.host_block import COMPILER, CONFIG
from tests.variants.test_programs import floor_functions

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++, clang++ or c++)")

TILE_Q, TILE_KV, GROUP = 64, 16, 2

SINKS = Variant("sinks", mask=lambda b, h, q, k, *, n=4, w=20: (k <= q) & ((k < n) | (k > q - w)))
NEVER = Variant("never", mask=lambda b, h, q, k: (k <= q) & (k > q + 5))
CASES = [
    (prefix_lm(), {"prefix_length": 300}),
    (causal() & chunked_local(), {"chunk_size": 200}),
    (SINKS, {"n": 40, "w": 90}),
    (NEVER, {}),
]

# Reads items (record, kv_head, row_begin, num_rows, block_begin, block_end); prints what all lanes
# agree on: blocks and whether they are full, then how `next_visible` ends the item.
PROGRAM = """
#include <cstdio>
#include <thread>
#include <vector>
namespace cute_attn {
struct OneItem {
  Item item;
  bool given = false;
  bool next(Item& to) { to = item; return !given && (given = true); }
};
inline int agreed[32][8192];

inline void walk(Params const& params, Item item, int lane) {
  threadIdx.x = lane + 64;  // of the third warp
  int* out = agreed[lane];
  VisibleBlocks<Params, TILE_KV, GROUP> blocks(params, item, item.block_begin, item.block_end);
  for (int block = blocks.next(); block >= 0; block = blocks.next()) {
    *out++ = block;
    *out++ = blocks.full;
  }
  *out++ = -1;
  OneItem work{item};
  *out++ = next_visible<VisibleBlocks<Params, TILE_KV, GROUP>>(work, params, item);
  *out++ = item.block_begin;
  *out++ = item.block_end;
  *out = next_visible<VisibleBlocks<Params, TILE_KV, GROUP>>(work, params, item);
}
}  // namespace cute_attn

int main(int, char** arguments) {
  using namespace cute_attn;
  std::FILE* file = std::fopen(arguments[1], "rb");
  Params params;
  if (std::fread(&params, sizeof(params), 1, file) != 1) return 1;
  Item item;
  while (std::fread(&item.request, sizeof(Request), 1, file) == 1) {
    int rest[5];
    if (std::fread(rest, 4, 5, file) != 5) return 1;
    item.kv_head = rest[0], item.row_begin = rest[1], item.num_rows = rest[2];
    item.block_begin = rest[3], item.block_end = rest[4];
    std::vector<std::thread> lanes;
    for (int i = 0; i < 32; ++i) lanes.emplace_back(walk, std::cref(params), item, i);
    for (auto& lane : lanes) lane.join();
    int* out = agreed[0];
    int count = 0;
    while (out[count] != -1) count += 2;
    for (int lane = 1; lane < 32; ++lane) {
      for (int i = 0; i < count + 5; ++i) if (agreed[lane][i] != out[i]) return 2;
    }
    for (int i = 0; i < count + 5; ++i) std::printf("%d ", out[i]);
    std::printf("\\n");
  }
}
"""


def items(rng: np.random.Generator) -> list[list[int]]:
    """Records and ranges: of prefill and append, with empty ranges, up to several windows of 32."""
    rows = []
    for i in range(80):
        q_len, kv_len = int(rng.integers(1, 400)), int(rng.integers(1, 2000))
        if i >= 60:  # with gaps of many windows
            kv_len = int(rng.integers(1, 60_000))
        kv_pos = int(rng.choice([0, 0, 50]))
        q_pos = kv_len - q_len + kv_pos
        tile = int(rng.integers(0, -(-q_len * GROUP // TILE_Q)))
        row = tile * TILE_Q
        ends = np.sort(rng.integers(0, -(-kv_len // TILE_KV) + 1, 2))
        if rng.random() < 0.6:
            ends = np.array([0, -(-kv_len // TILE_KV)])
        record = [0, q_len, 0, kv_len, q_pos, kv_pos, 0, 3]
        rows.append([*record, 1, row, min(TILE_Q, q_len * GROUP - row), *ends.tolist()])
    return rows


def build(variant: Variant, folder: Path) -> Path:
    (folder / "cute").mkdir()
    config = CONFIG.replace("= THREADS", "= 96").replace(
        "WARPS}", "Barrier(32), Barrier(32), Barrier(32)}"
    )
    (folder / "cute" / "config.hpp").write_text(config)
    fields = "".join(f"int {s.name};" for s in variant.scalars) or "int none;"
    text = [
        "#include <cmath>",
        "#include <cute_attn/lag.hpp>",
        "#include <cute_attn/visible_blocks.hpp>",
        "namespace cute_attn {",
        floor_functions().replace("#define CUTE_DEVICE static", ""),
        f"struct Params {{ {fields} }};",
        cpp_hooks(variant),
        "}",
        PROGRAM.replace("TILE_KV", str(TILE_KV)).replace("GROUP", str(GROUP)),
    ]
    (folder / "walk.cpp").write_text("\n".join(text))
    assert COMPILER is not None
    command = [COMPILER, "-std=c++17", "-O1", "-pthread", f"-I{folder}", f"-I{INCLUDE_DIR}"]
    command += [str(folder / "walk.cpp"), "-o", str(folder / "walk")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return folder / "walk"


@pytest.mark.parametrize(("variant", "scalars"), CASES, ids=lambda x: getattr(x, "name", ""))
def test_all_lanes_walk_the_visible_blocks(
    variant: Variant, scalars: dict[str, Any], tmp_path: Path
) -> None:
    rows = items(np.random.default_rng(3))
    program = build(variant, tmp_path)
    params = np.array([scalars[s.name] for s in variant.scalars] or [0], np.int32)
    (tmp_path / "items").write_bytes(params.tobytes() + np.array(rows, np.int32).tobytes())
    result = subprocess.run(
        [program, tmp_path / "items"], capture_output=True, text=True, check=True
    )
    lines = result.stdout.splitlines()
    assert len(lines) == len(rows)
    seen = set()
    for line, row in zip(lines, rows, strict=True):
        _, _, _, kv_len, q_pos, kv_pos, _, batch, _, begin_row, num_rows, begin, end = row
        block = np.arange(begin, end)[::-1]
        q = (q_pos + begin_row // GROUP, q_pos + (begin_row + num_rows - 1) // GROUP)
        last = np.minimum((block + 1) * TILE_KV, kv_len) - 1
        kind = variant.classify(
            q, (kv_pos + block * TILE_KV, kv_pos + last), scalars, b=(batch, batch), h=(2, 3)
        )
        visible = kind != EMPTY
        full = (kind == FULL) & (last == block * TILE_KV + TILE_KV - 1)  # all its keys are there
        pairs = np.stack([block[visible], full[visible]], 1).reshape(-1).tolist()
        # The item that is left: from its first to its last visible block.
        left = (pairs[-2], pairs[0] + 1) if pairs else (begin, begin)
        assert list(map(int, line.split())) == [*pairs, -1, 1, *left, 0]
        seen |= set(kind.tolist())
    assert EMPTY in seen and (variant is NEVER or FULL in seen)
