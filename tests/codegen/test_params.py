"""The parameter block: host packing and C++ struct agree, whatever the fields."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from cute_attn.abi import Field, ParameterBlock
from cute_attn.codegen.attention_params import attention_params, merge_params, page_division
from cute_attn.codegen.params import cpp_struct
from cute_attn.runtime import CompileRequest, compile_source
from cute_attn.variants import causal, full, sliding_window, soft_cap

KINDS = ("tensor_map", "pointer", "i64", "i32", "u32", "f32")


def random_block(seed: int) -> ParameterBlock:
    kinds = random.Random(seed).choices(KINDS, k=12)
    return ParameterBlock(tuple(Field(f"f{i}", kind, "") for i, kind in enumerate(kinds)))


def test_the_compiler_agrees() -> None:
    """The struct's static_asserts hold, for blocks of random fields and for the real ones."""
    blocks = [random_block(seed) for seed in range(8)]
    blocks += [
        attention_params(tma=tma, paged=paged, variant=soft_cap() & sliding_window(), q_tma=q_tma)
        for tma, paged, q_tma in itertools.product((False, True), repeat=3)
    ]
    blocks.append(merge_params())
    structs = "\n".join(cpp_struct(block, f"P{i}") for i, block in enumerate(blocks))
    source = f"""
namespace cute {{ struct alignas(64) TmaDescriptor {{ char bytes[128]; }}; }}
using Element = unsigned short;
using int32_t = int; using uint32_t = unsigned; using int64_t = long long;
{structs}
extern "C" __global__ void k(const __grid_constant__ P0 p) {{}}
"""
    compile_source(CompileRequest(source, "k", "sm_90a"))


def test_fields_of_the_attention_kernels() -> None:
    names = {
        (tma, paged): [
            f.name for f in attention_params(tma=tma, paged=paged, variant=full()).fields
        ]
        for tma, paged in itertools.product((False, True), repeat=2)
    }
    assert names[True, False][:2] == ["k_map", "v_map"]  # aligned to 64 at the start
    assert "box_rows" in names[True, True] and "box_rows" not in names[False, True]
    for (tma, paged), fields in names.items():
        assert ("k" in fields) == (not tma) and ("page_table" in fields) == paged
    scalars = attention_params(tma=True, paged=True, variant=causal() & sliding_window()).fields
    assert scalars[-1].name == "window_left"


def test_struct_shows_shapes_and_asserts_every_field() -> None:
    block = attention_params(tma=False, paged=True, variant=causal())
    text = cpp_struct(block)
    assert "Element const* q;" in text and "// (q_tokens, qo_heads, head_dim_qk)" in text
    asserted = re.findall(r"AT\((\w+)\) == (\d+)", text)
    assert asserted == [(f.name, str(block.offsets[f.name])) for f in block.fields]
    assert f"static_assert(sizeof(Params) == {block.size} &&" in text


@pytest.mark.parametrize("page_size", [1, 2, 3, 5, 7, 16, 17, 48, 64, 100, 1000, 4096, 65535])
def test_page_division_is_exact(page_size: int) -> None:
    magic, shift = page_division(page_size)
    rng = random.Random(page_size)
    tokens = [0, 1, 2**31 - 1, *(rng.randrange(2**31) for _ in range(500))]
    tokens += [
        k * page_size + d for k in rng.sample(range(1, 2**30 // page_size), 100) for d in (-1, 0)
    ]
    for token in tokens:
        high = (token * magic) >> 32 if magic else token
        assert high >> shift == token // page_size
    assert 0 <= magic < 2**32
