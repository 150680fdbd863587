"""The buffer of traced kernels: both sides name the same words; packed ones come apart."""

from __future__ import annotations

import re

import numpy as np

from cute_attn.abi import trace
from cute_attn.codegen.source import INCLUDE_DIR


def cpp_words(enum: str) -> tuple[str, ...]:
    """Enumerators of trace.hpp in the Python side's spelling, and the count that ends them."""
    text = (INCLUDE_DIR / "cute_attn/trace.hpp").read_text()
    body = re.findall(rf"enum {enum} {{(.*?)}};", text, re.DOTALL)[0]
    names = [name.strip().removeprefix("kTrace") for name in body.split(",")]
    return tuple(re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower() for name in names)


def test_both_sides_name_the_same_words() -> None:
    assert cpp_words("TraceBlockWord") == (*trace.BLOCK_WORDS, "block_words")
    assert cpp_words("TraceItemWord") == (*trace.ITEM_WORDS, "item_words")
    assert trace.BlockStamps._fields == trace.BLOCK_WORDS


def test_words_come_apart() -> None:
    """Packed as trace.hpp does: unsigned halves, a slot of -1 as 2^32 - 1."""
    words = np.zeros(trace.num_words(2, 3), np.uint64)
    of_blocks = words.reshape(2, -1)
    of_blocks[1, :8] = [77, 10**18, 5000, 10**18 + 640, 6000, 4, 5900, 5990]
    items = of_blocks[1, 8:].reshape(3, 8)
    items[0] = [9 | 3 << 32 | 128 << 48, 256 | 0xFFFFFFFF << 32, 2 | 17 << 32, 11, 12, 13, 14, 0]
    items[1] = [0xFFFFF | 0xFFFF << 32 | 1 << 48, 7 | 4000 << 32, 0 | 1 << 32, 21, 22, 23, 24, 25]
    (idle, none), (block, found) = trace.read(words, 2)
    assert idle == trace.BlockStamps(*[0] * 8) and none == []
    assert block.sm == 77 and block.end_ns - block.begin_ns == 640
    assert block.item_count == 4 and len(found) == 3, "there was room for three"
    assert found[0] == trace.ItemStamps(9, 3, 128, 256, -1, 2, 17, 11, 12, 13, 14, 0)
    assert found[1] == trace.ItemStamps(0xFFFFF, 0xFFFF, 1, 7, 4000, 0, 1, 21, 22, 23, 24, 25)
