"""Masks within the blocks of a sparse pattern, laid out as the variant `custom_mask` reads them.

A block row of R query rows and n column blocks of C keys has R * n * C bits: row after row, the
keys of a row in the order of its column blocks. Those of the next block row begin at a byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cute_attn.formats.errors import Int64Array, device_type

_MOST_BYTES = 1 << 28  # kernels count bits in int32
_CHUNK = 1 << 20  # elements that are placed together


class ElementMask:
    """Which keys of a request's list its query rows see.

    Attributes:
        bits: (bytes,) uint8, eight (query row, key) pairs each, the first one in the lowest bit.
        begin: (requests,) int32, first byte of each; or (requests, KV heads).
        query: of the same shape, position of the first query row: keys minus query rows.
        keys: of the same shape, keys.
    """

    def __init__(
        self, bits: npt.NDArray[np.uint8], begin: Any, q_len: Int64Array, keys: Int64Array
    ) -> None:
        if bits.size >= _MOST_BYTES:
            raise ValueError(f"mask has {8 * bits.size} pairs; 2^31 - 1 fit")
        self.bits = bits if bits.size else np.zeros(1, np.uint8)
        self.begin, self.keys = (np.asarray(x, np.int32) for x in (begin, keys))
        self.query = np.asarray(keys - q_len, np.int32)

    @classmethod
    def of_blocks(cls, mask: Any, pointer: Int64Array, q_len: Int64Array) -> ElementMask:
        """From the blocks of a pattern.

        Args:
            mask: (blocks, R, C) bools.
            pointer: (block rows + 1,) the blocks of each block row.
            q_len: (block rows,) query rows, R or fewer.
        """
        _, rows, columns = mask.shape
        counts = np.diff(pointer)
        keys = counts * columns
        begin, num_bytes = _places(q_len, keys)
        flat = np.zeros(8 * num_bytes, np.bool_)
        of_block = np.repeat(np.arange(counts.size), counts)
        first = 8 * begin[of_block] + (np.arange(of_block.size) - pointer[of_block]) * columns
        step, row = max(_CHUNK // (rows * columns), 1), np.arange(rows)
        for part in (slice(i, i + step) for i in range(0, of_block.size, step)):
            own = of_block[part]
            at = first[part, None] + row * keys[own, None]
            at = at[..., None] + np.arange(columns)
            inside = np.broadcast_to((row < q_len[own, None])[..., None], at.shape)
            flat[at[inside]] = mask[part][inside]
        return cls(np.packbits(flat, bitorder="little"), begin, q_len, keys)

    @classmethod
    def all_seen(cls, q_len: Int64Array, keys: Int64Array) -> ElementMask:
        """Every query row sees all keys."""
        begin, num_bytes = _places(q_len, keys)
        return cls(np.full(num_bytes, 0xFF, np.uint8), begin, q_len, keys)

    @classmethod
    def of_heads(cls, masks: Sequence[ElementMask]) -> ElementMask:
        """Those of each KV head as one; heads with fewer requests than others have empty ones."""
        shape = max(mask.keys.size for mask in masks), len(masks)
        begin, q_len, keys = (np.zeros(shape, np.int64) for _ in range(3))
        first = 0
        for h, mask in enumerate(masks):
            own = slice(mask.keys.size)
            begin[own, h], keys[own, h] = mask.begin + first, mask.keys
            q_len[own, h] = mask.keys - mask.query
            first += mask.bits.size
        return cls(np.concatenate([mask.bits for mask in masks]), begin, q_len, keys)

    def arrays(self, group: int) -> dict[str, npt.NDArray[Any]]:
        """The tensors of `custom_mask`; `group`: query heads per KV head."""
        tables = {"mask_begin": self.begin, "mask_query": self.query, "mask_keys": self.keys}
        if self.begin.ndim == 2:
            tables = {name: table.repeat(group, 1) for name, table in tables.items()}
        return {"mask_bits": self.bits, **tables}


def _places(q_len: Int64Array, keys: Int64Array) -> tuple[Int64Array, int]:
    """First byte of each request's bits, and bytes of all."""
    ends = np.cumsum(-(-q_len * keys // 8))
    return ends + q_len * keys // -8, int(ends[-1]) if ends.size else 0


def checked_mask(mask: Any, shape: tuple[int, int, int]) -> npt.NDArray[np.bool_]:
    """`mask` as bools of this shape, (blocks, R, C), on the host.

    Raises:
        TypeError, ValueError: naming the argument, what it holds and what it takes.
    """
    if device_type(mask) != "cpu":
        raise TypeError(f"mask is on device {mask.device}; it takes a host array")
    found: npt.NDArray[np.bool_] = np.asarray(mask) != 0
    if found.shape != shape:
        raise ValueError(
            f"mask has shape {found.shape}; it takes {shape}: (indptr[-1], *block_size)"
        )
    return found
