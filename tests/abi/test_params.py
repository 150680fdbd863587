"""The parameter block follows the C++ layout rules."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cute_attn.abi import Field, ParameterBlock

NATIVE = {
    "pointer": ctypes.c_void_p,
    "i64": ctypes.c_int64,
    "i32": ctypes.c_int32,
    "u32": ctypes.c_uint32,
    "f32": ctypes.c_float,
}


@given(st.lists(st.sampled_from(sorted(NATIVE)), min_size=1, max_size=20))
def test_offsets_are_the_compilers(kinds: list[str]) -> None:
    block = ParameterBlock(tuple(Field(f"f{i}", kind, "") for i, kind in enumerate(kinds)))
    members = [(f"f{i}", NATIVE[kind]) for i, kind in enumerate(kinds)]
    native = type("Native", (ctypes.Structure,), {"_fields_": members})
    assert block.size == ctypes.sizeof(native) == ctypes.sizeof(block.structure)
    for name, offset in block.offsets.items():
        assert offset == getattr(native, name).offset == getattr(block.structure, name).offset


def test_tensor_maps_are_aligned() -> None:
    fields = (Field("n", "i32", ""), Field("map", "tensor_map", ""), Field("x", "f32", ""))
    block = ParameterBlock(fields)
    assert block.alignment == 64
    assert block.offsets == {"n": 0, "map": 64, "x": 192}
    assert block.size == ctypes.sizeof(block.structure) == 256


def test_values_reach_the_buffer() -> None:
    block = ParameterBlock(
        (Field("n", "i32", ""), Field("p", "pointer", ""), Field("s", "f32", ""))
    )
    memory = bytearray(block.size)
    params = block.structure.from_buffer(memory)
    params.n, params.p, params.s = -5, 1 << 40, 0.5
    assert int.from_bytes(memory[0:4], "little", signed=True) == -5
    assert int.from_bytes(memory[8:16], "little") == 1 << 40


def test_bad_blocks() -> None:
    with pytest.raises(ValueError, match="'x' is 'f16'"):
        Field("x", "f16", "")
    with pytest.raises(ValueError, match="field twice"):
        ParameterBlock((Field("a", "i32", ""), Field("a", "i64", "")))
    with pytest.raises(ValueError, match="at least one"):
        ParameterBlock(())


def test_cpp_types() -> None:
    assert Field("a", "pointer", "", "float const").cpp_type == "float const*"
    assert Field("a", "i64", "").cpp_type == "int64_t"
    assert Field("a", "f32", "").cpp_type == "float"
