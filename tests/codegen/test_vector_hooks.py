"""Vector hooks over swizzled tiles: the header and the generated structs, run on the host, do what
the traced program does; and what is in the generated text."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cute_attn.abi import Field, ParameterBlock
from cute_attn.codegen.attention_params import tensor_fields
from cute_attn.codegen.hooks import cpp_hooks, hook_headers
from cute_attn.codegen.params import cpp_struct
from cute_attn.codegen.smem_tile import SmemTile
from cute_attn.codegen.source import INCLUDE_DIR
from cute_attn.codegen.vector_hooks import is_heavy, turns_bytes, vector_hooks, vector_reasons
from cute_attn.variants import Tensor, Variant, YarnScaling, causal, qk_norm, rope, streaming_llm
from tests.codegen.host_block import COMPILER, CONFIG

# The kernels' 16-bit elements on the host: bfloat16, rounded to nearest even.
ELEMENTS = """
#pragma once
#include <cmath>
#include <cstring>
#include <cute/config.hpp>
struct float2 { float x, y; };
struct uint2 { unsigned x, y; };
inline void sincospif(float x, float* s, float* c) { *s = sin(M_PI * x); *c = cos(M_PI * x); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __int_as_float(unsigned x) { float y; std::memcpy(&y, &x, 4); return y; }
inline int __float_as_int(float x) { int y; std::memcpy(&y, &x, 4); return y; }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline long long __double2ll_rn(double x) { return x >= 0x1p63 ? INT64_MAX : std::llrint(x); }
namespace cute_attn {
struct bf16 { unsigned short bits; };
inline float to_float(unsigned bits) { float x; bits <<= 16; std::memcpy(&x, &bits, 4); return x; }
inline unsigned to_bits(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, 4);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
template <class Element> unsigned pack(float low, float high) {
  return to_bits(low) | to_bits(high) << 16;
}
template <class Element> float2 unpack(unsigned x) {
  return {to_float(x & 0xffff), to_float(x >> 16)};
}
}
"""
MAIN = """
#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>
template <int kRows, int kColumns>
struct Groups {
  static constexpr int kPanel = 64;
  static constexpr int kGroupBytes = kColumns / 64 * 1024;
  static constexpr int kPanelBytes = 1024;
};
template <int kRows>
struct NarrowPanels {
  static constexpr int kPanel = 32;
  static constexpr int kGroupBytes = 512;
  static constexpr int kPanelBytes = kRows * 64;
};
static std::atomic<int> outside{0};
extern "C" int reads_outside() { return outside; }
// Says when a turn is read that is not in the table.
template <class Hook>
struct Checked : Turns<Hook> {
  PairTurn const& of(int unit, int e) const {
    int const at = this->place(unit, e);
    outside += at < 0 || at >= this->kPairs;
    return this->pairs[std::min(std::max(at, 0), this->kPairs - 1)];
  }
};
static {{TURNS}} turns;
// Tiles behind each other, of positions that follow each other; last tile first.
extern "C" void run(Params const* params, void* memory, int tiles, int rows, int b, int h, int at) {
  {{FILL}}
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kHostThreads; ++i) {
    threads.emplace_back([=] {
      threadIdx.x = i;
      auto transform = row_transform<{{HOOK}}, {{LAYOUT}}, {{COLUMNS}}, kHostThreads, {{IN_WORK}},
                                     {{PLACE}}>(*params, turns, i);
      for (int t = tiles - 1; t >= 0; --t) {
        int const first = at + t * rows;
        transform.{{START}};
        transform.run(static_cast<bf16*>(memory) + t * {{ELEMENTS}}, {{ROWS}});
      }
    });
  }
  for (auto& thread : threads) thread.join();
}
"""
GROUP = 3  # query heads per KV head


def library(
    variant: Variant,
    role: str,
    tile: SmemTile,
    columns: int,
    threads: int,
    folder: Path,
    in_work: int = 1,
) -> tuple[ctypes.CDLL, ParameterBlock]:
    """The transform of tiles by `threads` threads, `in_work` rows of each at once, and the layout
    of its parameters."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    fields = tuple(Field(s.name, s.kind, s.comment) for s in variant.scalars)
    fields += tuple(f for t in variant.tensors for f in tensor_fields(t))
    block = ParameterBlock(fields or (Field("unused", "i32", ""),))
    hooks = vector_hooks(variant, columns, columns)
    name, turns = f"{role.capitalize()}Hook", hooks.turns[role]
    panels = "Panels" if tile.panel == 64 else "NarrowPanels"
    layout = f"{'Groups' if tile.by_groups else panels}<{tile.rows}"
    layout += f", {columns}>" if tile.by_groups else ">"
    values = {
        "TURNS": f"Checked<{name}>" if turns else "NoTurns",
        "FILL": f"turns.fill(*params, VectorShare<{columns}, {threads}>::kRows, 0, 1);"
        if turns
        else "",
        "HOOK": name,
        "LAYOUT": layout,
        "COLUMNS": str(columns),
        "IN_WORK": str(in_work),
        "PLACE": f"QueryPlaces<{GROUP}>" if role == "query" else "KeyPlaces",
        "START": f"start(QueryPlaces<{GROUP}>{{b, h, 5, first}}, rows)"
        if role == "query"
        else f"resume(KeyPlaces{{b, h, first}}, Rows<{tile.rows}>())",
        "ROWS": "rows" if role == "query" else f"Rows<{tile.rows}>()",
        "ELEMENTS": str(tile.rows * tile.columns),
    }
    warps = ", ".join("Barrier(32)" for _ in range(threads // 32))
    config = CONFIG.replace("= THREADS", f"= {threads}").replace("WARPS}", warps + "}")
    struct = "\n".join(x for x in cpp_struct(block).splitlines() if not x.startswith("#define AT"))
    struct = struct.replace("AT(", "offsetof(Params, ").replace("#undef AT", "")
    includes = "".join(f"#include <{header}>\n" for header in hook_headers(variant))
    text = f"#include <cstddef>\n#include <cute_attn/vector_hooks.hpp>\n{includes}"
    text += f"using namespace cute_attn;\n{struct}\n{cpp_hooks(variant)}\n{hooks.text}\n"
    text += re.sub(r"\{\{(\w+)\}\}", lambda m: values[m[1]], MAIN)
    for path, content in (
        ("cute/config.hpp", config),
        ("cute_attn/elements.hpp", ELEMENTS),
        ("rows.cpp", text),
    ):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(content)
    command = [COMPILER, "-std=c++17", "-O1", "-pthread", "-shared", "-fPIC"]
    command += ["-fno-strict-aliasing", f"-I{folder}", f"-I{INCLUDE_DIR}"]
    command += [str(folder / "rows.cpp"), "-o", str(folder / "rows.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(folder / "rows.so")), block


def to_bf16(x: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.uint32) << 16).view(np.float32)


def places(tile: SmemTile, columns: int) -> np.ndarray:
    return np.array([[tile.offset(r, c) for c in range(columns)] for r in range(tile.rows)])


def scaled_values(x: Any, b: Any, h: Any, pos: Any, *, scale: Any) -> Any:
    return x * scale[h, x.index] + pos


SCALED = Variant("scaled", value=scaled_values, params=[Tensor("scale", "f32", 2)])
CASES = [
    (rope(), "key", SmemTile(128, 128), 128, 128),
    (rope(), "key", SmemTile(128, 128, by_groups=True), 128, 128),
    (rope(), "key", SmemTile(16, 64), 64, 32),
    (rope(), "key", SmemTile(16, 256), 256, 32),
    (rope(), "query", SmemTile(64, 128), 128, 128),
    (rope(), "key", SmemTile(96, 128), 80, 128),
    (rope(layout="interleaved"), "key", SmemTile(48, 256), 192, 128),
    (rope(layout="interleaved", rotary_dim=32), "key", SmemTile(64, 64), 64, 128),
    (rope(rotary_dim=64, scaling=YarnScaling(8.0)), "query", SmemTile(16, 128), 128, 32),
    (qk_norm() & rope(), "key", SmemTile(64, 128), 128, 64),
    (rope(), "key", SmemTile(32, 96), 96, 128),
    (qk_norm() & rope(rotary_dim=32), "query", SmemTile(48, 96), 80, 128),
    (qk_norm() & rope(positions=True), "query", SmemTile(16, 128), 96, 32),
    (qk_norm(), "key", SmemTile(32, 128), 112, 32),
    (SCALED, "value", SmemTile(64, 128, by_groups=True), 128, 128),
]
LAST_ROWS = 3  # that a tile of queries lacks


@pytest.mark.parametrize("in_work", [0, 1, 2])
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0].name}-{c[1]}-{c[3]}-{c[4]}")
def test_the_tiles_are_what_the_program_says(
    case: tuple[Variant, str, SmemTile, int, int], in_work: int, tmp_path: Path
) -> None:
    """Three tiles of keys: the second goes on where the first has ended, the third begins anew."""
    variant, role, tile, columns, threads = case
    rng = np.random.default_rng(columns)
    made, block = library(variant, role, tile, columns, threads, tmp_path, in_work)
    first, b, h = 100_003, 1, 2
    tensors = {
        t.name: rng.integers(0, 1 << 17, (2, first + 400)).astype(np.int32)
        if t.kind == "i32"
        else rng.standard_normal((16, columns)[2 - t.dims :]).astype(np.float32)
        for t in variant.tensors
    }
    values = variant.values()
    fields: dict[str, Any] = {**values}
    for name, x in tensors.items():
        fields[name] = x.ctypes.data
        fields.update({f"{name}_stride_{i}": x.strides[i] // x.itemsize for i in range(x.ndim - 1)})
        fields.update({f"{name}_size_{i}": x.shape[i] for i in range(x.ndim)})
    params = block.structure(**fields)

    tiles = 1 if role == "query" else 3
    rows = tile.rows - LAST_ROWS if role == "query" else tile.rows
    at = places(tile, columns)[:rows]
    at = np.concatenate([at + t * tile.rows * tile.columns for t in range(tiles)])
    memory = to_bf16(rng.standard_normal(tiles * tile.rows * tile.columns))
    before = memory.copy()
    made.run(ctypes.byref(params), memory.ctypes.data_as(ctypes.c_void_p), tiles, rows, b, h, first)

    packed = np.arange(tiles * rows)
    head, pos = np.full(packed.size, h), first + packed
    if role == "query":
        head, pos = h * GROUP + (5 + packed) % GROUP, first + (5 + packed) // GROUP
    x = from_bf16(before[at]).astype(np.float64)
    expected = variant.vector_hooks[role](x, b, head, pos, **values, **tensors)
    got = from_bf16(memory[at])
    np.testing.assert_allclose(got, expected, rtol=2**-8, atol=2e-5)
    # Turns are right to far less than is rounded, or many were rounded to the other side.
    assert np.mean(memory[at] != to_bf16(expected)) < 3e-4
    assert made.reads_outside() == 0
    untouched = np.ones(memory.size, bool)
    untouched[at] = False
    assert np.array_equal(memory[untouched], before[untouched])


def test_one_struct_and_one_table_for_what_is_the_same() -> None:
    hooks = vector_hooks(causal() & rope(), 128, 128)
    assert "using QueryHook = KeyHook;" in hooks.text and hooks.tables == (
        ("KeyHook", "key_turns"),
    )
    assert set(hooks.turns.values()) == {"key_turns"} and not hooks.tensors
    assert (
        turns_bytes(rope(), 128, 128) == 64 * 16 and turns_bytes(rope(rotary_dim=32), 64, 64) == 256
    )
    normed = vector_hooks(qk_norm() & rope(), 128, 128)
    assert "struct QueryHook" in normed.text and normed.tables == (("KeyHook", "key_turns"),)
    assert "element_of" not in normed.text  # all elements are in pairs
    assert vector_hooks(qk_norm(), 128, 128).tables == () and turns_bytes(causal(), 128, 128) == 0
    assert not vector_hooks(causal(), 128, 128)


def test_frequencies_are_in_float64() -> None:
    text = vector_hooks(rope(), 128, 128).text
    assert "return exp2(-(double(pair) / double(head_dim >> 1)) * log2(rope_theta));" in text
    assert "double const rope_theta = params.rope_theta;" in text


def test_what_takes_more_registers() -> None:
    assert not is_heavy(rope(), 128, 128) and not is_heavy(qk_norm(), 128, 128)
    assert is_heavy(rope(rotary_dim=64), 128, 128) and not is_heavy(rope(rotary_dim=64), 64, 64)
    assert is_heavy(qk_norm() & rope(), 128, 128)
    # Decode tiles of sixteen rows that choose their KV blocks.
    assert is_heavy(streaming_llm(), 128, 128, 16) and not is_heavy(streaming_llm(), 128, 128, 8)
    assert not is_heavy(causal() & rope(), 128, 128, 16)


def test_reasons_name_the_argument() -> None:
    assert vector_reasons(rope(), 128, 128) == []
    (reason,) = vector_reasons(rope(rotary_dim=24), 128, 128)
    assert "rotary_dim" in reason and "multiples of 16" in reason
    (reason,) = vector_reasons(rope(rotary_dim=128), 64, 64)
    assert "up to head_dim, which is 64" in reason
