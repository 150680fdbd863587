"""Paged KV: pages of `page_size` keys, in CSR form (FlashInfer) or as padded tables (vLLM).

Both are used as they are: a padded table is addressed with its row stride, never converted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cute_attn.formats.base import KVFormat, check_table_range, check_used_pages, to_host
from cute_attn.formats.errors import host_integers, indptr, page_numbers, positive


class PagedKV(KVFormat):
    """Request i owns pages kv_indices[kv_indptr[i] : kv_indptr[i + 1]].

    Its length is (pages - 1) * page_size + kv_last_page_len, or 0 without pages.

    Args:
        kv_indptr: (num_requests + 1,) integers on the host.
        kv_indices: page numbers, at least kv_indptr[-1] of them; int32 if they live on a device.
        kv_last_page_len: (num_requests,) integers on the host, 1 .. page_size (0 .. page_size where
            there are no pages).
        page_size: keys per page, any number from 1 on.
        check: also look at page numbers that live on a device. Waits for the device; for debugging.

    Raises:
        TypeError, ValueError: naming the argument, what it holds and what it takes.
    """

    def __init__(
        self,
        kv_indptr: Any,
        kv_indices: Any,
        kv_last_page_len: Any,
        page_size: int,
        *,
        check: bool = False,
    ) -> None:
        self.page_size = positive("page_size", page_size)
        rows = indptr("kv_indptr", kv_indptr)
        last = host_integers("kv_last_page_len", kv_last_page_len)
        if last.size != rows.size - 1:
            raise ValueError(
                f"kv_last_page_len has {last.size} entries but kv_indptr describes "
                f"{rows.size - 1} requests"
            )
        self.kv_start = rows[:-1]
        pages = rows[1:] - rows[:-1]
        some = pages > 0
        if last.size and (last[last.argmax()] > page_size or np.count_nonzero(last < some)):
            at = int(((last > page_size) | (last < some)).argmax())
            raise ValueError(
                f"kv_last_page_len[{at}] is {last[at]} with {pages[at]} pages of {page_size}; it "
                f"takes 1 .. {page_size} (or 0 where a request has no pages)"
            )
        kv_len = pages * page_size
        kv_len += last
        kv_len -= page_size
        self.kv_len = np.maximum(kv_len, 0, out=kv_len)  # without pages it was at most 0
        self.page_table, self.table_on_host = page_numbers("kv_indices", kv_indices, 1)
        self._used = used = int(rows[-1])
        if self.page_table.shape[0] < used:
            raise ValueError(
                f"kv_indices has {self.page_table.shape[0]} entries but kv_indptr[-1] is {used}"
            )
        self.max_page = None
        if self.table_on_host or check:
            table = self.page_table if self.table_on_host else to_host(self.page_table)
            self.max_page = check_used_pages("kv_indices", table[:used])

    def table_end(self) -> int:
        return self._used


class BlockTableKV(KVFormat):
    """Request i owns seq_lens[i] keys in pages block_tables[i, 0], block_tables[i, 1], ...

    Args:
        block_tables: (num_requests, max_pages) page numbers; int32 if they live on a device, rows
            may then be strided. Entries past a request's length are never read.
        seq_lens: (num_requests,) integers on the host.
        page_size: keys per page, any number from 1 on.
        check: also look at page numbers that live on a device. Waits for the device; for debugging.

    Raises:
        TypeError, ValueError: naming the argument, what it holds and what it takes.
    """

    def __init__(
        self, block_tables: Any, seq_lens: Any, page_size: int, *, check: bool = False
    ) -> None:
        self.page_size = positive("page_size", page_size)
        self.kv_len = host_integers("seq_lens", seq_lens)
        table, self.table_on_host = page_numbers("block_tables", block_tables, 2)
        num_requests, width = (int(n) for n in table.shape)
        if num_requests != self.kv_len.size:
            raise ValueError(
                f"block_tables has {num_requests} rows but seq_lens has {self.kv_len.size} entries"
            )
        if self.kv_len.size and int(self.kv_len.min()) < 0:
            at = int(self.kv_len.argmin())
            raise ValueError(f"seq_lens[{at}] is {self.kv_len[at]}; it takes 0 or more")
        pages = -(-self.kv_len // page_size)
        if pages.size and int(pages.max()) > width:
            at = int(pages.argmax())
            raise ValueError(
                f"seq_lens[{at}] is {self.kv_len[at]}, which needs {pages[at]} pages of "
                f"{page_size}, but block_tables has {width} columns"
            )
        row_stride = width if self.table_on_host else int(table.stride(0))
        check_table_range("block_tables", row_stride * num_requests)
        self.kv_start = np.arange(num_requests, dtype=np.int64) * row_stride
        self.max_page = None
        if self.table_on_host or check:
            host = table if self.table_on_host else to_host(table)
            used = host[np.arange(width) < pages[:, None]]
            self.max_page = check_used_pages("block_tables", used)
        self.page_table = table.reshape(-1) if self.table_on_host else table
