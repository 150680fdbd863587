"""`PerHeadKV`: tables and patterns of each KV head, brought to the order that planners see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cute_attn.formats import BlockSparseKV, BlockTableKV, KVFormat, PagedKV, PerHeadKV, RaggedKV
from tests.formats.on_device import OnDevice


def lists(kv: KVFormat) -> list[list[int]]:
    return [kv.pages_of(i).tolist() for i in range(kv.num_requests)]


def test_tables_are_those_of_request_and_head() -> None:
    tables = np.arange(24).reshape(2, 3, 4)  # requests, KV heads, pages
    kv = PerHeadKV(BlockTableKV(tables.reshape(6, 4), [16, 5, 0, 1, 12, 13], 4), 3)
    assert lists(kv) == [[0, 1, 2, 3], [4, 5], [], [12], [16, 17, 18], [20, 21, 22, 23]]
    assert repr(kv) == "PerHeadKV(2 requests x 3 KV heads, page_size=4)"
    rows = kv.query_rows([0, 2, 9])
    assert rows.start.tolist() == [0, 0, 0, 2, 2, 2]
    assert rows.length.tolist() == [2, 2, 2, 7, 7, 7]
    assert rows.total == 9


def test_tables_on_a_device_stay_there() -> None:
    table = OnDevice(np.zeros((6, 4)), stride=64)
    kv = PerHeadKV(BlockTableKV(table, [1] * 6, 4), 2)
    assert kv.page_table is table and kv.kv_start.tolist() == [0, 64, 128, 192, 256, 320]
    assert kv.max_page is None and table.copies == 0


def test_a_format_for_each_head() -> None:
    heads = [
        PagedKV([0, 2, 3], [5, 6, 7], [1, 4], 4),
        BlockTableKV([[1, 2], [3, 9]], [8, 5], 4),
        PagedKV([0, 0, 1], [8], [0, 2], 4),
    ]
    kv = PerHeadKV.of_heads(heads)
    assert kv.heads_in_ids == 3
    assert lists(kv) == [[5, 6], [1, 2], [], [7], [3, 9], [8]]
    assert kv.kv_len.tolist() == [5, 8, 0, 4, 5, 2]
    assert kv.max_page == 9


def test_patterns_of_each_head_may_have_other_row_blocks() -> None:
    first = BlockSparseKV([0, 1, 3, 3], [4, 0, 2], (4, 8), 10, 40)
    second = BlockSparseKV([0, 2, 2], [1, 3], (5, 8), 10, 40)
    kv = PerHeadKV.of_heads([first, second])
    rows = kv.query_rows(None)
    assert lists(kv) == [[4], [1, 3], [0, 2], [], [], []]
    assert list(zip(rows.start.tolist(), rows.length.tolist(), strict=True)) == [
        (0, 4), (0, 5), (4, 4), (5, 5), (8, 2), (0, 0),
    ]  # fmt: skip
    assert rows.total == 10 and not kv.has_positions and kv.num_rows == 40


@pytest.mark.parametrize("seed", range(4))
def test_blocks_of_any_sizes(seed: int) -> None:
    """Which keys each query row sees, key by key."""
    rng = np.random.default_rng(seed)
    heads, rows, columns, unit = 3, 4, 5, int(rng.choice([1, 16]))
    mask = rng.random((heads, rows, columns)) < 0.5
    row_sizes = np.stack([rng.permutation([0, 3, 1, 8]) for _ in range(heads)])
    column_sizes = unit * np.stack([rng.permutation([2, 0, 1, 5, 4]) for _ in range(heads)])
    kv = PerHeadKV.of_blocks(mask, row_sizes, column_sizes)
    assert kv.page_size % unit == 0
    found = np.zeros((heads, 12, 12 * unit), bool)
    start, length, total = kv.query_rows(None)
    assert total == 12 and kv.num_rows == 12 * unit
    for i in range(kv.num_requests):
        keys = (kv.pages_of(i)[:, None] * kv.page_size + np.arange(kv.page_size)).reshape(-1)
        assert keys.size == kv.kv_len[i]
        found[i % heads, start[i] : start[i] + length[i], keys[:, None]] = True
    for h in range(heads):
        wanted = mask[h].repeat(row_sizes[h], 0).repeat(column_sizes[h], 1)
        assert np.array_equal(found[h], wanted)


def sparse(rows: int = 4, columns: int = 4) -> BlockSparseKV:
    return BlockSparseKV([0, 1], [0], (rows, columns), rows, 20)


_MASK = np.ones((2, 1, 2))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: PerHeadKV(RaggedKV([0, 1]), 1), TypeError, "kv is a RaggedKV; it takes PagedKV"),
        (lambda: PerHeadKV(sparse(), 1), TypeError, "PerHeadKV.of_heads takes one for each"),
        (lambda: PerHeadKV(PagedKV([0, 1], [0], [1], 4), 2), ValueError, "has 1 tables, which num"),
        (lambda: PerHeadKV(PagedKV([0], [], [], 4), 0), ValueError, "num_kv_heads is 0"),
        (lambda: PerHeadKV.of_heads([]), ValueError, "formats is empty"),
        (
            lambda: PerHeadKV.of_heads([sparse(), PagedKV([0], [], [], 4)]),
            TypeError,
            r"formats\[1\] is a PagedKV; it takes BlockSparseKV",
        ),
        (lambda: PerHeadKV.of_heads([RaggedKV([0])]), TypeError, "takes PagedKV or BlockTableKV"),
        (
            lambda: PerHeadKV.of_heads([sparse(), sparse(5)]),
            ValueError,
            r"formats\[1\] has query rows 5, formats\[0\] 4",
        ),
        (lambda: PerHeadKV.of_heads([sparse(), sparse(4, 5)]), ValueError, "page size 5"),
        (
            lambda: PerHeadKV.of_heads([PagedKV([0, 1], OnDevice([0]), [1], 4)]),
            TypeError,
            r"page numbers of formats\[0\] are on a device",
        ),
        (
            lambda: PerHeadKV.of_heads([PagedKV([0, 1], [0], [1], 4), PagedKV([0], [], [], 4)]),
            ValueError,
            "has requests 0, ",
        ),
        (lambda: PerHeadKV.of_blocks([[1]], [[1]], [[1]]), ValueError, r"block_mask has shape \(1"),
        (lambda: PerHeadKV.of_blocks(_MASK, [[1]], [[1]]), ValueError, r"row_sizes has shape \(1,"),
        (
            lambda: PerHeadKV.of_blocks(_MASK, [[1], [2]], [[1, 1]] * 2),
            ValueError,
            "row_sizes add up to 1 for KV head 0 and 2 for 1",
        ),
        (
            lambda: PerHeadKV.of_blocks(_MASK, [[1], [1]], [[1, -1]] * 2),
            ValueError,
            "column_sizes holds -1",
        ),
        (
            lambda: PerHeadKV.of_blocks(_MASK, [[1], [1]], [[0, 0]] * 2),
            ValueError,
            "column_sizes add up to 0",
        ),
        (
            lambda: PerHeadKV.of_heads([sparse()]).query_rows([0, 4]),
            ValueError,
            "qo_indptr is given, but the pattern has its own",
        ),
        (
            lambda: PerHeadKV(PagedKV([0, 1, 1], [0], [1, 0], 4), 2).query_rows([0, 1, 2]),
            ValueError,
            "qo_indptr describes 2 requests, kv_format 1",
        ),
    ],
)
def test_faults(make: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
