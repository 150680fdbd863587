"""Lengths and page numbers that stay on the device, for `BatchAttention.plan_on_device`.

What a serving engine keeps in GPU memory and rewrites at every step: nothing here looks at it.
"""

from __future__ import annotations

from typing import Any

from cute_attn.formats.base import KVFormat, check_table_range
from cute_attn.formats.errors import page_numbers, positive
from cute_attn.formats.paged import BlockTableKV, PagedKV
from cute_attn.formats.per_head import PerHeadKV
from cute_attn.formats.ragged import RaggedKV


class DeviceKV(KVFormat):
    """KV described by int32 tensors on the device; made by one of the three class methods.

    The tensors are used in place: a captured graph reads what they hold when it is replayed.

    Attributes:
        kv_indptr: (num_requests + 1,), or None.
        kv_last_page_len: (num_requests,), or None.
        seq_lens: (num_requests,), or None.
        table_stride: entries from a request's row in the page table to the next, with `seq_lens`.
        capacity: most KV rows, page table entries, or (with `seq_lens`) keys of a request.
    """

    kv_indptr: Any = None
    kv_last_page_len: Any = None
    seq_lens: Any = None
    table_stride: int = 0
    capacity: int = 0

    @classmethod
    def from_ragged(cls, kv_indptr: Any, num_rows: int) -> DeviceKV:
        """As `RaggedKV`.

        Args:
            kv_indptr: (num_requests + 1,) int32 tensor; begins with 0, never decreases.
            num_rows: most KV rows of a step; k and v must have at least as many.

        Raises:
            TypeError, ValueError: naming the argument, what it is and what it takes.
        """
        made = cls()
        made.kv_indptr = _row_pointer(kv_indptr)
        made.num_rows = made.capacity = positive("num_rows", num_rows)
        check_table_range("k", made.capacity)
        return made

    @classmethod
    def from_paged(
        cls,
        kv_indptr: Any,
        kv_indices: Any,
        kv_last_page_len: Any,
        page_size: int,
        *,
        num_kv_heads: int | None = None,
    ) -> DeviceKV:
        """As `PagedKV`.

        Args:
            kv_indptr: (num_requests + 1,) int32 tensor; begins with 0, never decreases.
            kv_indices: int32 tensor of page numbers, as many as any step has.
            kv_last_page_len: (num_requests,) int32 tensor.
            page_size: keys per page.
            num_kv_heads: as for `PerHeadKV`, a list for each request and KV head; None: one for all
                KV heads of a request.

        Raises:
            TypeError, ValueError: naming the argument, what it is and what it takes.
        """
        made = cls()
        made.kv_indptr = _row_pointer(kv_indptr)
        made.kv_last_page_len = _tensor("kv_last_page_len", kv_last_page_len)
        made._set_table("kv_indices", kv_indices, 1, page_size)
        made.capacity = int(kv_indices.shape[0])
        _same_requests("kv_last_page_len", made.kv_last_page_len, made.num_requests)
        return made._of_heads("kv_last_page_len", num_kv_heads)

    @classmethod
    def from_block_table(
        cls, block_tables: Any, seq_lens: Any, page_size: int, *, num_kv_heads: int | None = None
    ) -> DeviceKV:
        """As `BlockTableKV`.

        Args:
            block_tables: (num_requests, max_pages) int32 tensor; rows may be strided.
            seq_lens: (num_requests,) int32 tensor.
            page_size: keys per page.
            num_kv_heads: as for `from_paged`.

        Raises:
            TypeError, ValueError: naming the argument, what it is and what it takes.
        """
        made = cls()
        made.seq_lens = _tensor("seq_lens", seq_lens)
        made._set_table("block_tables", block_tables, 2, page_size)
        rows, width = (int(n) for n in block_tables.shape)
        _same_requests("block_tables", block_tables, made.num_requests)
        made.table_stride, made.capacity = int(block_tables.stride(0)), width * made.page_size
        check_table_range("block_tables", made.table_stride * rows)
        return made._of_heads("seq_lens", num_kv_heads)

    def _of_heads(self, name: str, num_kv_heads: int | None) -> DeviceKV:
        """With lists of each KV head, `name` of their lengths."""
        if num_kv_heads is None:
            return self
        heads = positive("num_kv_heads", num_kv_heads)
        if self.num_requests % heads:
            raise ValueError(
                f"{name} has {self.num_requests} entries, which num_kv_heads = {heads} does not"
                " divide; it takes one for each request and KV head"
            )
        self.heads_in_ids = heads
        return self

    def _set_table(self, name: str, table: Any, ndim: int, page_size: int) -> None:
        _tensor(name, table, ndim)
        self.page_size = positive("page_size", page_size)
        self.page_table = table
        page_numbers(name, table, ndim)
        self.table_on_host = False
        self.max_page = None

    @property
    def num_requests(self) -> int:
        lengths = self.kv_indptr if self.seq_lens is None else self.seq_lens
        return int(lengths.shape[0]) - (self.seq_lens is None)

    @property
    def tensors(self) -> dict[str, Any]:
        """All of them, by the names of the arguments."""
        table = "kv_indices" if self.seq_lens is None else "block_tables"
        named = {
            "kv_indptr": self.kv_indptr,
            "kv_last_page_len": self.kv_last_page_len,
            "seq_lens": self.seq_lens,
            table: self.page_table,
        }
        return {name: value for name, value in named.items() if value is not None}

    def on_host(self) -> KVFormat:
        """The same, with lengths on the host, where the tensors are CPU tensors.

        Raises:
            ValueError: what the numbers say is wrong.
        """
        if self.paged:
            found: KVFormat
            if self.seq_lens is not None:
                found = BlockTableKV(self.page_table, self.seq_lens, self.page_size)
            else:
                last = self.kv_last_page_len
                found = PagedKV(self.kv_indptr, self.page_table, last, self.page_size)
            return PerHeadKV(found, self.heads_in_ids) if self.heads_in_ids else found
        ragged = RaggedKV(self.kv_indptr)
        if ragged.num_rows > self.num_rows:
            raise ValueError(f"kv_indptr[-1] is {ragged.num_rows}, but num_rows is {self.num_rows}")
        return ragged


def _tensor(name: str, value: Any, ndim: int = 1) -> Any:
    """`value`, if it is a contiguous int32 tensor (a page table: any int32 tensor)."""
    if not callable(getattr(value, "data_ptr", None)):
        raise TypeError(f"{name} is a {type(value).__name__}; it takes an int32 tensor")
    if str(value.dtype) != "torch.int32":
        raise TypeError(f"{name} has dtype {value.dtype}; it takes torch.int32")
    if len(value.shape) != ndim:
        raise ValueError(f"{name} has shape {tuple(value.shape)}; it takes {ndim} dimensions")
    if ndim == 1 and value.shape[0] > 1 and value.stride(0) != 1:
        raise ValueError(f"{name} has stride {value.stride(0)}; it must be contiguous")
    return value


def _row_pointer(kv_indptr: Any) -> Any:
    if not _tensor("kv_indptr", kv_indptr).shape[0]:
        raise ValueError("kv_indptr is empty; it takes num_requests + 1 numbers, the first one 0")
    return kv_indptr


def _same_requests(name: str, value: Any, num_requests: int) -> None:
    if value.shape[0] != num_requests:
        raise ValueError(
            f"{name} has {value.shape[0]} entries, but there are {num_requests} requests"
        )
