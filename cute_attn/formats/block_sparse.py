"""Block-sparse rows (BSR): a sparse attention pattern in blocks of R query rows by C keys.

Every block row is a request of R query rows; its non-zero column blocks are its pages, of C keys
each. So the paged kernels run block-sparse attention as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cute_attn.formats.base import KVFormat, check_used_pages, to_host
from cute_attn.formats.element_mask import ElementMask, checked_mask
from cute_attn.formats.errors import Int64Array, indptr, page_numbers, positive


class BlockSparseKV(KVFormat):
    """q is (num_rows, heads, dim); k and v are ragged, (num_cols, num_kv_heads, dim).

    Query rows i * R .. (i + 1) * R see the keys of column blocks indices[indptr[i] : indptr[i + 1]]
    and no others. Every KV head has the same pattern (else see `PerHeadKV`). The last block row may
    be short.

    Args:
        indptr: (num_block_rows + 1,) integers on the host.
        indices: column block numbers, each at most once per row; int32 if they live on a device.
        block_size: (R, C).
        num_rows: query rows.
        num_cols: keys, a multiple of C.
        mask: (indptr[-1], R, C) truth values on the host: which keys of its block each query row
            sees; None: all. The variant `custom_mask` reads it, alone or with hooks on scores.
        check: also look at indices that live on a device. Waits for the device; for debugging.

    Attributes:
        block_size: as given.
        mask: as bools, or None.
        qo_indptr: (num_block_rows + 1,) query rows of each block row.

    Raises:
        TypeError, ValueError: naming the argument, what it holds and what it takes.

    Source: FlashInfer (arXiv 2501.01005), section 3.1.
    """

    has_positions = False
    qo_indptr: Int64Array

    def __init__(
        self,
        indptr: Any,
        indices: Any,
        block_size: tuple[int, int],
        num_rows: int,
        num_cols: int,
        *,
        mask: Any = None,
        check: bool = False,
    ) -> None:
        if len(block_size) != 2:
            raise ValueError(f"block_size is {block_size!r}; it takes (rows, columns)")
        rows = positive("block_size[0]", block_size[0])
        self.page_size = positive("block_size[1]", block_size[1])
        num_rows, num_cols = positive("num_rows", num_rows), positive("num_cols", num_cols)
        if num_cols % self.page_size:
            raise ValueError(
                f"num_cols is {num_cols}; it must be a multiple of block_size[1] = {self.page_size}"
            )
        pointer = _block_rows(indptr, -(-num_rows // rows), rows, num_rows)
        self.kv_start = pointer[:-1]
        self.kv_len = np.diff(pointer) * self.page_size
        self.page_table, self.table_on_host = page_numbers("indices", indices, 1)
        used = int(pointer[-1])
        if self.page_table.shape[0] < used:
            raise ValueError(
                f"indices has {self.page_table.shape[0]} entries but indptr[-1] is {used}"
            )
        self.max_page = None
        if self.table_on_host or check:
            table = self.page_table if self.table_on_host else to_host(self.page_table)
            self.max_page = check_used_pages("indices", table[:used])
            _check_unique(pointer, table[:used])
        self.num_rows = num_cols
        self.block_size = (rows, self.page_size)
        self.check_num_pages(num_cols // self.page_size)
        starts = np.arange(self.num_requests + 1, dtype=np.int64) * rows
        self.qo_indptr = np.minimum(starts, num_rows)
        self.mask = None
        if mask is not None:
            self.mask = checked_mask(mask, (used, *self.block_size))
            self.element_mask = ElementMask.of_blocks(self.mask, pointer, np.diff(self.qo_indptr))


def _block_rows(value: Any, expected: int, rows: int, num_rows: int) -> Int64Array:
    pointer = indptr("indptr", value)
    if pointer.size != expected + 1:
        raise ValueError(
            f"indptr has {pointer.size} entries; {num_rows} query rows in blocks of {rows} take "
            f"{expected + 1}"
        )
    return pointer


def _check_unique(pointer: Int64Array, indices: Any) -> None:
    row = np.repeat(np.arange(pointer.size - 1), np.diff(pointer))
    order = np.lexsort((indices, row))
    twice = (np.diff(indices[order]) == 0) & (np.diff(row[order]) == 0)
    if twice.any():
        at = order[int(twice.argmax())]
        raise ValueError(
            f"indices holds column block {indices[at]} twice in block row {row[at]}; each may "
            "appear once"
        )
