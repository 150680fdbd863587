"""`KVFormat`: what every format of the keys and values comes down to.

A request owns `kv_len` keys. Either they are consecutive rows of one array (ragged), or they lie in
pages of `page_size` rows whose numbers stand in a table; `kv_start` then says where in the table
the request's first entry is. Planner, kernels and executor know nothing else of a format.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cute_attn.formats.element_mask import ElementMask
from cute_attn.formats.errors import INT32_MAX, Int64Array, indptr


class QueryRows(NamedTuple):
    """The query rows of a batch.

    Attributes:
        start, length: (num_requests,) the first one of each request, and how many it has.
        total: of all.
    """

    start: Int64Array
    length: Int64Array
    total: int


class KVFormat:
    """Base of the formats; not made directly.

    Attributes:
        kv_len: (num_requests,) int64, keys of each request.
        kv_start: (num_requests,) int64, first KV row (ragged) or first entry in `page_table`.
        page_size: keys per page; 0 = ragged.
        page_table: None (ragged), int32 NumPy array (1-D), or an int32 device tensor whose memory
            is read as a flat table.
        table_on_host: False if `page_table` is on a device, where page numbers cannot be checked.
        table_stays: True: `page_table` is on a device and stays where it is from plan to plan, and
            captured graphs read it there; else they read what plan() copied.
        max_page: largest page number in use, -1 if none; None if unknown (on a device, unchecked).
        num_rows: ragged: KV rows that k and v must have at least.
        has_positions: True if key j of a request stands at position j. In block-sparse rows it does
            not, so masks and windows over positions mean nothing.
        stacked: True for levels as one batch: a few large requests and many small ones.
        q_pos, kv_pos: (num_requests,) int64, positions of each request's first query row and first
            key; None: the last row stands at the last key, and the first key at 0.
        qo_indptr: (num_requests + 1,) query rows of each request, of formats that have their own.
        element_mask: which keys of a request's list its query rows see; None: all. For formats
            without positions.
        heads_in_ids: 0, or how many KV heads have tables of their own: a request here is then one
            KV head of a caller's request, number request * heads_in_ids + KV head.
    """

    kv_len: Int64Array
    kv_start: Int64Array
    page_size: int = 0
    page_table: Any = None
    table_on_host: bool = True
    table_stays: bool = False
    max_page: int | None = -1
    num_rows: int = 0
    has_positions: bool = True
    stacked: bool = False
    q_pos: Int64Array | None = None
    kv_pos: Int64Array | None = None
    qo_indptr: Int64Array | None = None
    element_mask: ElementMask | None = None
    heads_in_ids: int = 0

    @property
    def num_requests(self) -> int:
        return self.kv_len.size

    @property
    def paged(self) -> bool:
        """True if there is a page table."""
        return self.page_size > 0

    def query_rows(self, qo_indptr: Any) -> QueryRows:
        """The query rows of each request.

        Args:
            qo_indptr: (num_requests + 1,) integers on the host; None where the format has its own.

        Raises:
            TypeError, ValueError: naming the argument, what it holds and what it takes.
        """
        return self._checked_rows(qo_indptr, self.num_requests)

    def _checked_rows(self, qo_indptr: Any, num_requests: int) -> QueryRows:
        if qo_indptr is None:
            qo_indptr = self.qo_indptr
            if qo_indptr is None:
                raise TypeError(f"qo_indptr is None; {type(self).__name__} takes query lengths")
        rows = indptr("qo_indptr", qo_indptr)
        if rows.size - 1 != num_requests:
            raise ValueError(
                f"qo_indptr describes {rows.size - 1} requests, kv_format {num_requests}"
            )
        return QueryRows(rows[:-1], rows[1:] - rows[:-1], int(rows[-1]))

    def pages_of(self, request: int) -> Any:
        """Page numbers of one request, in order; table must be on the host."""
        begin = int(self.kv_start[request])
        return self.page_table[begin : begin + -(-int(self.kv_len[request]) // self.page_size)]

    def table_end(self) -> int:
        """Entries of the page table up to the last one in use; 0 without requests."""
        pages = -(-self.kv_len // self.page_size)
        return int((self.kv_start + pages).max(initial=0))

    def check_num_pages(self, num_pages: int) -> None:
        """Raises ValueError if a page number in use is outside a cache of `num_pages` pages.

        Page numbers that live on a device are not looked at unless the format was made with
        check=True.
        """
        if self.max_page is not None and self.max_page >= num_pages:
            raise ValueError(
                f"the page table holds page {self.max_page} but the cache has {num_pages} pages "
                f"(0 .. {num_pages - 1})"
            )

    def __repr__(self) -> str:
        pages = f", page_size={self.page_size}" if self.paged else ""
        return f"{type(self).__name__}({self.num_requests} requests{pages})"


def check_used_pages(name: str, used: Any) -> int:
    """Largest of the page numbers in use; raises if one is negative. `used` is int32."""
    if used.size == 0:
        return -1
    # Seen as unsigned, a negative number is the largest: one pass over a long table.
    unsigned = used.view(np.uint32)
    highest = int(unsigned[unsigned.argmax()])
    if highest > INT32_MAX:
        raise ValueError(
            f"{name} holds page {used.min()} where a page is in use; it takes 0 or more"
        )
    return highest


def check_table_range(name: str, end: int) -> None:
    """Raises if offsets into the page table do not fit the plan's 32-bit numbers."""
    if end > INT32_MAX:
        raise ValueError(f"{name} has {end} entries; at most {INT32_MAX} are taken")


def to_host(value: Any) -> Any:
    """A device tensor as a NumPy array. Waits for the device."""
    return np.asarray(value.cpu())
