"""Tensor maps: the rules, and what reaches the driver."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from cute_attn.runtime import (
    DriverError,
    ParamsBlock,
    TensorMapEncoder,
    TensorMapSpec,
    replace_address,
)

GOOD: dict[str, Any] = {
    "dtype": "bfloat16",
    "dims": (128, 1000, 8),
    "strides_bytes": (2048, 256),
    "box": (64, 128, 1),
}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"dtype": "complex64"}, "dtype='complex64'"),
        ({"dims": ()}, "dims="),
        ({"dims": (16,) * 6, "strides_bytes": (32,) * 5, "box": (16,) * 6}, "1 to 5 dimensions"),
        ({"dims": (128, 0, 8)}, r"dims\[1\]=0"),
        ({"dims": (128, 2**32 + 1, 8)}, r"dims\[1\]=4294967297"),
        ({"strides_bytes": (2048,)}, "takes 2 strides"),
        ({"strides_bytes": (2040, 256)}, r"strides_bytes\[0\]=2040"),
        ({"strides_bytes": (2048, 2**40)}, r"strides_bytes\[1\]="),
        ({"strides_bytes": (-16, 256)}, r"strides_bytes\[0\]=-16"),
        ({"box": (64, 128)}, "takes 3 sizes"),
        ({"box": (64, 257, 1)}, r"box\[1\]=257"),
        ({"box": (64, 0, 1)}, r"box\[1\]=0"),
        ({"box": (12, 128, 1)}, r"box\[0\]=12: 24 bytes are no multiple of 16"),
        ({"box": (128, 128, 1)}, "256 bytes exceed the swizzle span of 128"),
        ({"swizzle": 64}, "128 bytes exceed the swizzle span of 64"),
        ({"swizzle": 16}, "swizzle=16"),
        ({"l2_promotion": 32}, "l2_promotion=32"),
    ],
)
def test_a_broken_rule_names_its_field(change: dict[str, Any], text: str) -> None:
    TensorMapSpec(**GOOD)
    with pytest.raises(ValueError, match=text):
        TensorMapSpec(**{**GOOD, **change})


def test_the_limits_themselves_are_fine() -> None:
    TensorMapSpec("bfloat16", (2**32, 1), (2**40 - 16,), (64, 256))
    TensorMapSpec("float16", (256,), (), (256,), swizzle=0)
    TensorMapSpec("bfloat16", (16,) * 5, (32, 32, 32, 32), (16, 1, 1, 1, 1), swizzle=32)


def test_box_bytes_count_the_whole_box() -> None:
    assert TensorMapSpec(**GOOD).box_bytes == 64 * 128 * 2
    assert TensorMapSpec("float8_e4m3", (128, 50), (128,), (128, 64)).box_bytes == 128 * 64


def test_the_driver_gets_every_field_in_its_order(fake_cuda: Any) -> None:
    spec = TensorMapSpec(**GOOD, l2_promotion=256)
    block = ParamsBlock(512)
    block.view[:] = bytes(512)
    TensorMapEncoder(spec).write(block.address + 128, 0x7F00_0000_0010)
    assert fake_cuda.log() == [
        "encode type 9 rank 3 dims 128 1000 8 strides 2048 256 box 64 128 1 steps 1 1 1 "
        "interleave 0 swizzle 3 promotion 3 fill 0 aligned 1"
    ]
    encoded = bytes(block.view[128:256])
    assert int.from_bytes(encoded[:8], "little") == 0x7F00_0000_0010
    assert set(encoded[8:]) == {0xA5}
    assert not any(block.view[:128]) and not any(block.view[256:])


def test_known_addresses_are_not_encoded_again(fake_cuda: Any) -> None:
    encoder = TensorMapEncoder(TensorMapSpec(**GOOD), capacity=4)
    block = ParamsBlock(128)
    for pointer in (0x1000, 0x2000, 0x1000, 0x2000):
        encoder.write(block.address, pointer)
        assert int.from_bytes(block.view[:8], "little") == pointer
    assert [line.split()[0] for line in fake_cuda.log()] == ["encode", "replace"]
    for pointer in range(0x10000, 0x10000 + 16 * 50, 16):
        encoder.write(block.address, pointer)
        assert block.view[8:].tobytes() == b"\xa5" * 120
    assert fake_cuda.log() == ["replace"] * 50 and len(encoder._known) <= 4


def test_replace_address_patches_in_place(fake_cuda: Any) -> None:
    block = ParamsBlock(128)
    TensorMapEncoder(TensorMapSpec(**GOOD)).write(block.address, 0x1000)
    replace_address(block.address, 0x2000)
    assert ctypes.c_uint64.from_address(block.address).value == 0x2000
    assert fake_cuda.log()[-1] == "replace"
    with pytest.raises(ValueError, match="target="):
        replace_address(block.address + 16, 0x2000)
    with pytest.raises(ValueError, match="address=0x2008"):
        replace_address(block.address, 0x2008)


@pytest.mark.parametrize("pointer", [0, 8, 0x1004, -16])
def test_misaligned_addresses_are_refused(pointer: int) -> None:
    with pytest.raises(ValueError, match="aligned to 16 bytes"):
        TensorMapEncoder(TensorMapSpec(**GOOD)).write(ParamsBlock(128).address, pointer)


@pytest.mark.usefixtures("no_cuda")
def test_without_a_driver_encoding_is_a_clear_error() -> None:
    with pytest.raises(DriverError, match="no CUDA driver"):
        TensorMapEncoder(TensorMapSpec(**GOOD)).write(ParamsBlock(128).address, 0x1000)
