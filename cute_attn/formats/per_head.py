"""A table of pages, or a block-sparse pattern, for every KV head.

Planner and kernels see each (request, KV head) as a request of one KV head:

    request        0        0        1        1
    KV head        0        1        0        1
    table       3 8 5      8 1     2 7 4    9 7 6
    number         0        1        2        3      = request * num_kv_heads + KV head
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cute_attn.formats.base import KVFormat, QueryRows, check_table_range
from cute_attn.formats.block_sparse import BlockSparseKV
from cute_attn.formats.element_mask import ElementMask
from cute_attn.formats.errors import INT32_MAX, Int64Array, host_integers, positive
from cute_attn.formats.paged import BlockTableKV, PagedKV


class PerHeadKV(KVFormat):
    """Every KV head of a request has a list of pages of its own (page selection at decode), or
    every KV head has a sparse pattern of its own.

    Key j of a list is at position j, whichever page it comes from: a causal mask lets the last
    query see all of the list. Each (request, KV head) counts as one of `max_requests`.

        PerHeadKV(BlockTableKV(tables.flatten(0, 1), seq_lens.flatten(), page_size), num_kv_heads)

    with tables (requests, num_kv_heads, pages) and seq_lens (requests, num_kv_heads).

    Args:
        kv: `PagedKV` or `BlockTableKV` of requests * num_kv_heads tables; that of KV head h of
            request i is number i * num_kv_heads + h.
        num_kv_heads: KV heads.

    Attributes:
        heads_in_ids: num_kv_heads.

    Raises:
        TypeError, ValueError: naming the argument, what it holds and what it takes.

    Source: page selection for each head as in Quest (Tang et al., arXiv 2406.10774).
    """

    def __init__(self, kv: KVFormat, num_kv_heads: int) -> None:
        if not isinstance(kv, (PagedKV, BlockTableKV)):
            hint = "; PerHeadKV.of_heads takes one for each KV head"
            raise TypeError(
                f"kv is a {type(kv).__name__}; it takes PagedKV or BlockTableKV"
                f"{hint if isinstance(kv, BlockSparseKV) else ''}"
            )
        heads = positive("num_kv_heads", num_kv_heads)
        if kv.num_requests % heads:
            raise ValueError(
                f"kv has {kv.num_requests} tables, which num_kv_heads = {heads} does not divide; it"
                " takes requests * num_kv_heads of them"
            )
        self.heads_in_ids = heads
        self.kv_len, self.kv_start, self.page_size = kv.kv_len, kv.kv_start, kv.page_size
        self.page_table, self.table_on_host = kv.page_table, kv.table_on_host
        self.max_page = kv.max_page
        self._rows: QueryRows | None = None

    @classmethod
    def of_heads(cls, formats: Sequence[KVFormat]) -> PerHeadKV:
        """From what each KV head reads.

        Args:
            formats: one for each KV head: `PagedKV` and `BlockTableKV` of the same requests and
                page size, or `BlockSparseKV` of the same query rows, keys and column block size
                (row blocks may differ; masks are read by `custom_mask(per_head=True)`). Page
                numbers on the host.

        Raises:
            TypeError, ValueError: they do not fit together, or page numbers are on a device.
        """
        formats = list(formats)
        if not formats:
            raise ValueError("formats is empty; it takes one for each KV head")
        kinds = (BlockSparseKV,) if isinstance(formats[0], BlockSparseKV) else _TABLES
        for at, kv in enumerate(formats):
            if not isinstance(kv, kinds):
                names = " or ".join(kind.__name__ for kind in kinds)
                raise TypeError(f"formats[{at}] is a {type(kv).__name__}; it takes {names}")
            if not kv.table_on_host:
                raise TypeError(
                    f"the page numbers of formats[{at}] are on a device; they are put together on"
                    " the host (or give PerHeadKV one table of requests * num_kv_heads rows)"
                )
            for name, got, wanted in _compared(kv, formats[0]):
                if got != wanted:
                    raise ValueError(
                        f"formats[{at}] has {name} {got}, formats[0] {wanted}; they must be equal"
                    )
        tables = [np.asarray(kv.page_table) for kv in formats]
        begins = np.cumsum([0, *(table.size for table in tables)])
        check_table_range("formats", int(begins[-1]))
        self, first = cls.__new__(cls), formats[0]
        self.heads_in_ids, self.page_size = len(formats), first.page_size
        self.page_table, self.table_on_host = np.concatenate(tables), True
        self.max_page = max(-1 if kv.max_page is None else kv.max_page for kv in formats)
        self.kv_len = _by_head([kv.kv_len for kv in formats])
        starts = [kv.kv_start + begin for kv, begin in zip(formats, begins[:-1], strict=True)]
        self.kv_start = _by_head(starts)
        self.has_positions, self.num_rows = first.has_positions, first.num_rows
        self._rows = None
        if isinstance(first, BlockSparseKV):
            pointers = [kv.qo_indptr for kv in formats if isinstance(kv, BlockSparseKV)]
            self._rows = QueryRows(
                _by_head([rows[:-1] for rows in pointers]),
                _by_head([np.diff(rows) for rows in pointers]),
                int(pointers[0][-1]),
            )
            if any(kv.element_mask is not None for kv in formats):
                self.element_mask = ElementMask.of_heads(
                    [
                        kv.element_mask or ElementMask.all_seen(np.diff(rows), kv.kv_len)
                        for kv, rows in zip(formats, pointers, strict=True)
                    ]
                )
        return self

    @classmethod
    def of_pattern(cls, kv: BlockSparseKV, num_kv_heads: int) -> PerHeadKV:
        """One pattern for all KV heads, of which planners see each by itself.

        Args:
            kv: the pattern; its column blocks may be on a device. Its mask stays one for all.
            num_kv_heads: KV heads.
        """
        heads = positive("num_kv_heads", num_kv_heads)
        self = cls.__new__(cls)
        self.heads_in_ids, self.page_size = heads, kv.page_size
        self.page_table, self.table_on_host = kv.page_table, kv.table_on_host
        self.max_page, self.num_rows = kv.max_page, kv.num_rows
        self.has_positions, self.element_mask = False, kv.element_mask
        self.kv_len, self.kv_start = kv.kv_len.repeat(heads), kv.kv_start.repeat(heads)
        rows = kv.qo_indptr
        starts, lengths = rows[:-1].repeat(heads), np.diff(rows).repeat(heads)
        self._rows = QueryRows(starts, lengths, int(rows[-1]))
        return self

    @classmethod
    def of_blocks(cls, block_mask: Any, row_sizes: Any, column_sizes: Any) -> PerHeadKV:
        """A block-sparse pattern for each KV head, whose blocks have any sizes.

        q is (query rows, heads, dim); k and v are ragged, (keys, num_kv_heads, dim). Columns are
        cut into pieces of the greatest common divisor of all column sizes: where that is a multiple
        of 16, Hopper kernels copy them by TMA.

        Args:
            block_mask: (num_kv_heads, rows, columns) truth values, host: whether the queries of a
                row block see the keys of a column block.
            row_sizes: (num_kv_heads, rows) integers, host: query rows of each block; those of each
                KV head add up to the same number.
            column_sizes: (num_kv_heads, columns) integers, host: keys of each block; the same.

        Raises:
            TypeError, ValueError: naming the argument, what it holds and what it takes.
        """
        mask = np.asarray(block_mask) != 0
        if mask.ndim != 3 or not mask.shape[0]:
            raise ValueError(
                f"block_mask has shape {mask.shape}; it takes (num_kv_heads, rows, columns)"
            )
        heads, rows, columns = mask.shape
        row_size = _sizes("row_sizes", row_sizes, (heads, rows))
        column_size = _sizes("column_sizes", column_sizes, (heads, columns))
        num_rows, num_keys = int(row_size[0].sum()), int(column_size[0].sum())
        unit = int(np.gcd.reduce(column_size.reshape(-1), initial=0)) or 1
        pieces = column_size // unit
        first_piece = np.cumsum(pieces, axis=1) - pieces
        # Of row block r and head h: its visible column blocks, each one as a run of pieces.
        seen = mask.transpose(1, 0, 2)  # (rows, heads, columns)
        at = np.nonzero(seen)
        count = pieces[at[1], at[2]]
        check_table_range("block_mask", int(count.sum()))
        ends = np.cumsum(count)
        inside = np.arange(count.sum()) - np.repeat(ends - count, count)
        kv_len = (seen * column_size).sum(axis=2).reshape(-1)

        self = cls.__new__(cls)
        self.heads_in_ids, self.page_size = heads, unit
        self.page_table = (np.repeat(first_piece[at[1], at[2]], count) + inside).astype(np.int32)
        self.table_on_host = True
        self.max_page = int(self.page_table.max(initial=-1))
        self.kv_len = kv_len
        self.kv_start = (np.cumsum(kv_len) - kv_len) // unit
        self.has_positions, self.num_rows = False, num_keys
        starts = np.cumsum(row_size, axis=1) - row_size
        self._rows = QueryRows(starts.T.reshape(-1), row_size.T.reshape(-1), num_rows)
        return self

    def query_rows(self, qo_indptr: Any) -> QueryRows:
        """As for every format; rows of a request are those of each of its KV heads."""
        if self._rows is not None:
            if qo_indptr is not None:
                raise ValueError("qo_indptr is given, but the pattern has its own; it takes None")
            return self._rows
        heads = self.heads_in_ids
        start, length, total = self._checked_rows(qo_indptr, self.num_requests // heads)
        return QueryRows(start.repeat(heads), length.repeat(heads), total)

    def __repr__(self) -> str:
        heads = self.heads_in_ids
        return (
            f"PerHeadKV({self.num_requests // heads} requests x {heads} KV heads,"
            f" page_size={self.page_size})"
        )


_TABLES = (PagedKV, BlockTableKV)


def _compared(kv: KVFormat, first: KVFormat) -> list[tuple[str, int, int]]:
    """(what, of `kv`, of `first`) that have to be equal."""
    pairs = [("page size", kv.page_size, first.page_size)]
    if isinstance(kv, BlockSparseKV) and isinstance(first, BlockSparseKV):
        rows, first_rows = int(kv.qo_indptr[-1]), int(first.qo_indptr[-1])
        return [*pairs, ("query rows", rows, first_rows), ("keys", kv.num_rows, first.num_rows)]
    return [*pairs, ("requests", kv.num_requests, first.num_requests)]


def _by_head(arrays: Sequence[npt.NDArray[Any]]) -> Int64Array:
    """(longest * heads,) number i * heads + h is number i of array h, or 0 where it has none."""
    table = np.zeros((max(x.size for x in arrays), len(arrays)), np.int64)
    for h, x in enumerate(arrays):
        table[: x.size, h] = x
    return table.reshape(-1)


def _sizes(name: str, value: Any, shape: tuple[int, int]) -> Int64Array:
    sizes = host_integers(name, value, 2)
    if sizes.shape != shape:
        raise ValueError(f"{name} has shape {sizes.shape}; block_mask makes it {shape}")
    if sizes.size and int(sizes.min()) < 0:
        raise ValueError(f"{name} holds {sizes.min()}; it takes 0 or more")
    totals = sizes.sum(axis=1)
    if totals.min() != totals.max():
        raise ValueError(
            f"{name} add up to {totals.min()} for KV head {totals.argmin()} and {totals.max()} for"
            f" {totals.argmax()}; it takes the same for all"
        )
    if not 1 <= int(totals[0]) <= INT32_MAX:
        raise ValueError(f"{name} add up to {totals[0]}; it takes 1 .. {INT32_MAX}")
    return sizes
