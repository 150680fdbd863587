"""What each format says of its requests, and the faults it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cute_attn.formats import BlockSparseKV, BlockTableKV, KVFormat, PagedKV, RaggedKV
from tests.formats.on_device import OnDevice

KINDS = {
    "list": list,
    "int32": lambda x: np.array(x, np.int32),
    "int64": lambda x: np.array(x, np.int64),
    "torch": lambda x: torch.tensor(x, dtype=torch.int32),
}


@pytest.mark.parametrize("kind", KINDS)
def test_ragged(kind: str) -> None:
    ragged = RaggedKV(KINDS[kind]([0, 5, 5, 12]))
    assert ragged.num_requests == 3
    assert ragged.kv_start.tolist() == [0, 5, 5]
    assert ragged.kv_len.tolist() == [5, 0, 7]
    assert (ragged.paged, ragged.num_rows) == (False, 12)


@pytest.mark.parametrize("kind", KINDS)
def test_paged(kind: str) -> None:
    make = KINDS[kind]
    paged = PagedKV(make([0, 2, 2, 5]), make([7, 3, 0, 9, 4, 99]), make([1, 0, 4]), 4)
    assert paged.kv_len.tolist() == [5, 0, 12]
    assert paged.kv_start.tolist() == [0, 2, 2]
    assert paged.pages_of(0).tolist() == [7, 3]
    assert paged.pages_of(1).tolist() == []
    assert paged.page_table.dtype == np.int32
    assert paged.max_page == 9, "entry 99 is past the end and not in use"


@pytest.mark.parametrize("kind", KINDS)
def test_block_table(kind: str) -> None:
    make = KINDS[kind]
    table = BlockTableKV(make([[5, 6, -1], [-1, -1, -1], [2, 8, 1]]), make([4, 0, 7]), 3)
    assert table.kv_len.tolist() == [4, 0, 7]
    assert table.kv_start.tolist() == [0, 3, 6]
    assert table.pages_of(2).tolist() == [2, 8, 1]
    assert table.max_page == 8
    assert table.page_table.ndim == 1


def test_block_sparse() -> None:
    sparse = BlockSparseKV([0, 2, 2, 3], [1, 4, 0], (16, 4), num_rows=40, num_cols=20)
    assert sparse.qo_indptr.tolist() == [0, 16, 32, 40]
    assert sparse.kv_len.tolist() == [8, 0, 4]
    assert sparse.page_size == 4
    assert not sparse.has_positions
    assert sparse.num_rows == 20


@given(
    st.lists(st.integers(0, 100), max_size=20),
    st.integers(1, 17),
    st.integers(0, 1 << 31),
)
def test_three_forms_of_the_same_lengths(lengths: list[int], page_size: int, seed: int) -> None:
    """CSR pages, a padded table and ragged rows agree on lengths; both tables on pages."""
    rng = np.random.default_rng(seed)
    kv_len = np.array(lengths, np.int64)
    pages = -(-kv_len // page_size)
    indptr = np.r_[0, np.cumsum(pages)]
    indices = rng.permutation(int(indptr[-1]) + 5)
    last = np.where(pages > 0, kv_len - (pages - 1) * page_size, 0)
    paged = PagedKV(indptr, indices, last, page_size)
    padded = np.full((kv_len.size, int(pages.max(initial=0)) + 1), -1)
    for i in range(kv_len.size):
        padded[i, : pages[i]] = indices[indptr[i] : indptr[i + 1]]
    table = BlockTableKV(padded, kv_len, page_size)
    ragged = RaggedKV(np.r_[0, np.cumsum(kv_len)])
    for form in (paged, table, ragged):
        assert np.array_equal(form.kv_len, kv_len)
    for i in range(kv_len.size):
        assert np.array_equal(paged.pages_of(i), table.pages_of(i))
    assert paged.max_page == table.max_page


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: RaggedKV([0, 5, 3]), ValueError, r"kv_indptr\[1\] is 5 and kv_indptr\[2\] is 3"),
        (lambda: RaggedKV([1, 5]), ValueError, r"kv_indptr\[0\] is 1; it must be 0"),
        (lambda: RaggedKV([]), ValueError, "kv_indptr is empty"),
        (lambda: RaggedKV([[0, 1]]), ValueError, r"kv_indptr has shape \(1, 2\)"),
        (lambda: RaggedKV([0.0, 1.0]), TypeError, "kv_indptr has dtype float64"),
        (lambda: RaggedKV([0, 1 << 31]), ValueError, r"kv_indptr\[-1\] is 2147483648"),
        (lambda: RaggedKV(OnDevice([0, 1])), TypeError, "kv_indptr is on device cuda:0.*host"),
        (lambda: PagedKV([0, 1], [0], [0], 4), ValueError, r"kv_last_page_len\[0\] is 0 with 1 p"),
        (lambda: PagedKV([0, 1], [0], [5], 4), ValueError, r"is 5 with 1 pages of 4.*1 .. 4"),
        (lambda: PagedKV([0, 0], [], [5], 4), ValueError, r"kv_last_page_len\[0\] is 5 with 0"),
        (lambda: PagedKV([0, 1], [0], [-1], 4), ValueError, r"kv_last_page_len\[0\] is -1"),
        (lambda: PagedKV([0, 1], [0], [1, 1], 4), ValueError, "kv_last_page_len has 2 entries"),
        (lambda: PagedKV([0, 2], [0], [1], 4), ValueError, r"kv_indices has 1 .* is 2"),
        (lambda: PagedKV([0, 2], [0, -1], [1], 4), ValueError, "kv_indices holds page -1"),
        (lambda: PagedKV([0, 1], [0], [1], 0), ValueError, "page_size is 0"),
        (lambda: PagedKV([0, 1], [0], [1], 4.0), TypeError, "page_size is 4.0"),
        (lambda: PagedKV([0, 1], [0.5], [1], 4), TypeError, "kv_indices has dtype float64"),
        (lambda: PagedKV([0, 1], [1 << 40], [1], 4), ValueError, "kv_indices holds 1099511627776"),
        (
            lambda: PagedKV([0, 1], OnDevice([0], "torch.int64"), [1], 4),
            TypeError,
            "kv_indices on cuda:0 has dtype torch.int64; kernels read int32",
        ),
        (lambda: BlockTableKV([[0, 1]], [9], 4), ValueError, r"seq_lens\[0\] is 9, which needs 3"),
        (lambda: BlockTableKV([[0, -1]], [5], 4), ValueError, "block_tables holds page -1"),
        (lambda: BlockTableKV([[0]], [1, 1], 4), ValueError, "block_tables has 1 rows but"),
        (lambda: BlockTableKV([[0]], [-1], 4), ValueError, r"seq_lens\[0\] is -1"),
        (lambda: BlockTableKV([0], [1], 4), ValueError, r"block_tables has shape \(1,\)"),
        (lambda: BlockTableKV([[0]], OnDevice([1]), 4), TypeError, "seq_lens is on device cuda:0"),
        (lambda: BlockSparseKV([0, 1], [5], (4, 4), 4, 20), ValueError, "page 5 .* has 5 pages"),
        (lambda: BlockSparseKV([0, 1], [0], (4, 3), 4, 20), ValueError, "multiple of block_size"),
        (lambda: BlockSparseKV([0, 1], [0], (4, 4), 5, 20), ValueError, "indptr has 2 entries"),
        (lambda: BlockSparseKV([0, 2], [1, 1], (4, 4), 4, 20), ValueError, "column block 1 twice"),
        (lambda: BlockSparseKV([0, 2], [1], (4, 4), 4, 20), ValueError, "indices has 1 entries"),
        (lambda: BlockSparseKV([0, 1], [1], (0, 4), 4, 20), ValueError, r"block_size\[0\] is 0"),
    ],
)
def test_faults(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_page_numbers_on_a_device_are_left_there() -> None:
    pages = OnDevice([3, 900, -7])
    paged = PagedKV([0, 3], pages, [1], 4)
    assert paged.page_table is pages
    assert paged.max_page is None
    paged.check_num_pages(2)  # nothing known, nothing raised
    assert pages.copies == 0


def test_block_tables_on_a_device_keep_their_row_stride() -> None:
    table = BlockTableKV(OnDevice(np.zeros((3, 4)), stride=64), [1, 2, 3], 16)
    assert table.kv_start.tolist() == [0, 64, 128]
    assert not table.table_on_host


def test_check_looks_at_device_page_numbers() -> None:
    pages = OnDevice([3, 900, 7])
    paged = PagedKV([0, 3], pages, [1], 4, check=True)
    assert pages.copies == 1
    with pytest.raises(ValueError, match="page 900 but the cache has 900 pages"):
        paged.check_num_pages(900)
    with pytest.raises(ValueError, match="kv_indices holds page -7"):
        PagedKV([0, 3], OnDevice([3, 9, -7]), [1], 4, check=True)
    with pytest.raises(ValueError, match="block_tables holds page -1"):
        BlockTableKV(OnDevice([[0, -1]]), [5], 4, check=True)


def test_page_out_of_range() -> None:
    paged = PagedKV([0, 2], [0, 8], [1], 4)
    paged.check_num_pages(9)
    with pytest.raises(ValueError, match=r"page 8 but the cache has 8 pages \(0 .. 7\)"):
        paged.check_num_pages(8)


@pytest.mark.parametrize(
    "form", [RaggedKV([0]), PagedKV([0], [], [], 16), BlockTableKV(np.zeros((0, 3), int), [], 16)]
)
def test_no_requests(form: KVFormat) -> None:
    assert form.num_requests == 0


def test_offsets_are_64_bit() -> None:
    """A table of 2^31 entries is refused rather than wrapped; below, offsets are exact."""
    huge = OnDevice(np.zeros((3, 4)), stride=700_000_000)
    assert BlockTableKV(
        OnDevice(np.zeros((3, 4)), stride=600_000_000), [1, 1, 1], 16
    ).kv_start.tolist() == [0, 600_000_000, 1_200_000_000]
    with pytest.raises(ValueError, match="block_tables has 2800000000 entries"):
        BlockTableKV(OnDevice(np.zeros((4, 4)), stride=huge.stride(0)), [1, 1, 1, 1], 16)
