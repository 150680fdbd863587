"""Masks within blocks, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cute_attn.formats import BlockSparseKV, PerHeadKV
from tests.formats.on_device import OnDevice


def pattern(
    seed: int, rows: int, block: tuple[int, int], num_keys: int, *, masked: bool = True
) -> tuple[BlockSparseKV, np.ndarray]:
    """A random pattern, and (rows, keys) what it lets be seen. Its second block row is empty."""
    rng = np.random.default_rng(seed)
    blocks = rng.random((-(-rows // block[0]), num_keys // block[1])) < 0.5
    blocks[1:2] = False
    at = np.nonzero(blocks)
    mask = rng.random((at[0].size, *block)) < 0.5
    pointer = np.r_[0, np.cumsum(blocks.sum(1))]
    given = mask if masked else None
    kv = BlockSparseKV(pointer, at[1], block, rows, num_keys, mask=given)
    dense = np.zeros((blocks.shape[0], block[0], blocks.shape[1], block[1]), bool)
    dense[at[0], :, at[1]] = mask if masked else True
    return kv, dense.reshape(-1, num_keys)[:rows]


def seen_by(kv: Any, h: int, num_keys: int) -> np.ndarray:
    """(rows, keys) from the bits, as the variant `custom_mask` finds them."""
    mask = kv.element_mask
    bits = np.unpackbits(mask.bits, bitorder="little").astype(bool)
    heads = max(kv.heads_in_ids, 1)
    tables = [x.reshape(-1, heads)[:, h] for x in (mask.begin, mask.query, mask.keys)]
    rows = kv.query_rows(None)
    found = np.zeros((rows.total, num_keys), bool)
    for i, (begin, query, keys) in enumerate(zip(*tables, strict=True)):
        one = i * heads + h
        start, length, size = int(rows.start[one]), int(rows.length[one]), kv.page_size
        assert keys == kv.kv_len[one] and query == keys - length
        at = (kv.pages_of(one)[:, None] * size + np.arange(size)).reshape(-1)
        own = bits[8 * begin : 8 * begin + length * keys].reshape(length, keys)
        found[start : start + length, at] = own
    return found


@pytest.mark.parametrize("block", [(1, 1), (3, 5), (16, 8), (7, 1), (64, 64)])
@pytest.mark.parametrize("rows", [1, 50, 64])
def test_every_pair_has_its_bit(block: tuple[int, int], rows: int) -> None:
    kv, dense = pattern(rows, rows, block, 4 * 5 * 64)
    assert np.array_equal(seen_by(kv, 0, dense.shape[1]), dense)


def test_of_heads() -> None:
    made = [
        pattern(0, 40, (16, 8), 80),
        pattern(1, 40, (8, 8), 80, masked=False),
        pattern(2, 40, (40, 8), 80),
    ]
    kv = PerHeadKV.of_heads([one for one, _ in made])
    assert kv.element_mask is not None and kv.element_mask.keys.shape == (5, 3)
    for h, (_, dense) in enumerate(made):
        assert np.array_equal(seen_by(kv, h, 80), dense)
    tables = kv.element_mask.arrays(group=2)
    assert tables["mask_begin"].shape == (5, 6)
    assert np.array_equal(tables["mask_keys"][:, 1::2], kv.element_mask.keys)


def test_many_blocks_are_placed_in_parts() -> None:
    kv, dense = pattern(3, 1500, (100, 20), 2000)
    assert kv.mask is not None and kv.mask.size > 1 << 20
    assert np.array_equal(seen_by(kv, 0, 2000), dense)


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (np.ones((1, 4, 3)), ValueError, r"mask has shape \(1, 4, 3\); it takes \(2, 4, 4\)"),
        (np.ones(32), ValueError, r"mask has shape \(32,\)"),
        (OnDevice(np.ones((2, 4, 4))), TypeError, "mask is on device cuda:0; it takes a host"),
    ],
)
def test_faults(mask: Any, error: type[Exception], message: str) -> None:
    make: Callable[[], Any] = lambda: BlockSparseKV([0, 2], [0, 3], (4, 4), 4, 20, mask=mask)  # noqa: E731
    with pytest.raises(error, match=message):
        make()
