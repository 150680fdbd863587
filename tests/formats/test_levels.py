"""Levels, their batches, radix trees and prefixes of page tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cute_attn import BlockSparseKV, BlockTableKV, Level, LevelsKV, PagedKV, RaggedKV
from cute_attn.formats.radix import find_prefixes, from_radix, levels_of, to_radix
from cute_attn.formats.stack import stack

NO_LIMIT = 1 << 30


def two_levels() -> LevelsKV:
    shared = PagedKV([0, 2], [7, 8], [4], 4)
    own = PagedKV([0, 1, 1, 3], [9, 1, 2], [3, 0, 1], 4)
    return LevelsKV([Level(shared, [2, 0], [0, 2]), Level(own)])


def test_segments_have_positions() -> None:
    levels = two_levels()
    assert levels.kv_len.tolist() == [11, 0, 13] and levels.max_page == 9
    segments = levels.segments
    assert segments.kv_pos.tolist() == [0, 8, 0, 8]
    assert segments.kv_start.tolist() == [0, 2, 3, 3] and segments.counts.tolist() == [2, 1, 1, 1]
    flat = levels.flat()
    assert flat.kv_len.tolist() == [11, 0, 13]
    assert flat.page_table.tolist() == [7, 8, 9, 7, 8, 1, 2]


def test_one_batch() -> None:
    made = stack(two_levels(), np.array([0, 2, 2, 3]), (NO_LIMIT, 0))
    assert made.rows.tolist() == [2, 0, 1, 0, 1, 2]
    assert made.positions.tolist() == [12, 9, 10, 9, 10, 12]
    assert made.requests.tolist() == [2, 0, 0, 0, 0, 2]
    assert made.state_indptr.tolist() == [0, 2, 4, 6]
    assert made.states.tolist() == [1, 3, 2, 4, 0, 5]
    assert made.kv.qo_indptr.tolist() == [0, 3, 5, 6] and made.follows
    assert made.kv.q_pos is not None and made.kv.kv_pos is not None
    assert made.kv.q_pos.tolist() == [7, 9, 12] and made.kv.kv_pos.tolist() == [0, 8, 8]


def test_what_no_row_sees_is_left_out() -> None:
    made = stack(two_levels(), np.array([0, 1, 1, 2]), (2, 0))
    # Positions 8 to 10 and 10 to 12: nothing of the shared eight keys.
    assert made.kv.kv_len.tolist() == [3, 5] and made.follows
    made = stack(two_levels(), np.array([0, 1, 1, 2]), (5, 0))
    assert made.kv.kv_len.tolist() == [4, 3, 5] and made.kv.page_table.tolist() == [8, 9, 1, 2]
    assert not made.follows  # keys 5 and 6 are the one's, not the other's


def paged(n: int) -> PagedKV:
    return PagedKV([0, 1] if n else [0, 0], [0] * bool(n), [n], 4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: LevelsKV([]), ValueError, "levels is empty"),
        (lambda: LevelsKV([paged(1)]), TypeError, r"levels\[0\] is a PagedKV"),
        (lambda: Level(BlockSparseKV([0, 0], [], (1, 1), 1, 1)), TypeError, "is a BlockSparseKV"),
        (lambda: Level(paged(1), [0, 0], [0, 2]), ValueError, "holds request 0 2 times"),
        (lambda: Level(paged(1), [-1], [0, 1]), ValueError, "members holds -1"),
        (lambda: Level(paged(1), [0, 1], [0, 1]), ValueError, "members has 2 entries but"),
        (lambda: Level(paged(1), [0], [0, 1, 1]), ValueError, "indptr has 3 entries; 1 groups"),
        (lambda: LevelsKV([Level(paged(1), [4], [0, 1])], 4), ValueError, "num_requests is 4"),
        (
            lambda: LevelsKV([Level(paged(1)), Level(RaggedKV([0, 1]))]),
            ValueError,
            r"page_size \[4, 0\]",
        ),
        (
            lambda: LevelsKV([Level(paged(3)), Level(paged(2), [0, 1], [0, 2])]),
            ValueError,
            r"levels\[1\]: the requests of group 0 have 0 to 3 keys",
        ),
        (
            lambda: LevelsKV([Level(paged(3)), Level(paged(2))]).flat(),
            ValueError,
            "level 0 has 3 keys in pages of 4",
        ),
        (lambda: LevelsKV([Level(RaggedKV([0, 1]))]).flat(), ValueError, "levels are ragged"),
        (lambda: from_radix([1, 0], [[0], [1]], [0], 4), ValueError, "node 0 follows itself"),
        (lambda: from_radix([2], [[0]], [0], 4), ValueError, r"parents\[0\] is 2"),
        (lambda: from_radix([-1], [[0]], [1], 4), ValueError, r"nodes\[0\] is 1"),
        (lambda: from_radix([-1], [], [0], 4), ValueError, "pages describes 0 nodes"),
        (lambda: from_radix([-1], [[0]], [0], 4, kv_len=[5]), ValueError, r"kv_len\[0\] is 5"),
        (lambda: from_radix([-1], [[0, 1]], [0], 4, kv_len=[4]), ValueError, r"kv_len\[0\] is 4"),
    ],
)
def test_bad_input(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def path(parents: Any, node: int) -> list[int]:
    """Nodes from a root to this one."""
    found: list[int] = []
    while node >= 0:
        found.insert(0, node)
        node = parents[node]
    return found


def random_radix(seed: int, size: int) -> tuple[Any, list[Any], Any, Any]:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 12))
    shuffled = rng.permutation(count)
    parents = np.full(count, -1)
    for i in range(1, count):
        if rng.random() < 0.8:
            parents[shuffled[i]] = shuffled[int(rng.integers(0, i))]
    lengths = rng.integers(0, 4, count) * size
    ends = np.cumsum(lengths // size)
    numbers = rng.permutation(int(ends[-1]))
    pages = [numbers[e - n : e] for e, n in zip(ends, lengths // size, strict=True)]
    return parents, pages, lengths, rng.integers(-1, count, int(rng.integers(1, 20)))


@pytest.mark.parametrize("seed", range(20))
def test_radix_trees(seed: int) -> None:
    parents, pages, lengths, nodes = random_radix(seed, 4)
    levels = from_radix(parents, pages, nodes, 4)
    flat = levels.flat()
    for request, node in enumerate(nodes.tolist()):
        own = path(parents, node)
        assert levels.kv_len[request] == sum(lengths[n] for n in own)
        wanted = [page for n in own for page in pages[n].tolist()]
        assert flat.pages_of(request).tolist() == wanted
    # Nobody's keys are read twice, and back: the same tree but for chains that are one node.
    tree = to_radix(levels)
    again = from_radix(tree.parents, tree.pages, tree.nodes, 4, kv_len=tree.kv_len)
    assert again.flat().page_table.tolist() == flat.page_table.tolist()
    used = {n for node in nodes.tolist() for n in path(parents, node)}
    assert sum(tree.kv_len) == sum(lengths[n] for n in used)


def test_what_joins_again_is_no_tree() -> None:
    a = PagedKV([0, 1, 2], [0, 1], [4, 4], 4)
    b = PagedKV([0, 1], [2], [4], 4)
    with pytest.raises(
        ValueError, match=r"requests \[0, 1\] share a range of level 1, but not all"
    ):
        to_radix(LevelsKV([Level(a), Level(b, [0, 1], [0, 2])]))


@pytest.mark.parametrize("seed", range(20))
def test_prefixes_of_page_tables(seed: int) -> None:
    """Every page that two tables have at the end of the same beginning is read once."""
    parents, pages, _, nodes = random_radix(seed, 4)
    flat = from_radix(parents, pages, nodes, 4).flat()
    count = flat.kv_len // 4
    found = find_prefixes(flat, count) if count.any() else None
    beginnings = {
        tuple(flat.pages_of(i)[: n + 1].tolist())
        for i in range(flat.num_requests)
        for n in range(count[i])
    }
    if found is None:
        assert len(beginnings) == count.sum()
        return
    assert sorted(found.order.tolist()) == list(range(flat.num_requests))
    levels = levels_of(flat, found, np.ones(found.begin.size, bool))
    assert levels.segments.kv_len.sum() == 4 * len(beginnings)
    again = levels.flat()
    assert again.page_table.tolist() == flat.page_table.tolist()
    # Padded tables are the same; what lies behind a request's pages is not looked at.
    padded = np.full((flat.num_requests, int(count.max()) + 2), 5, np.int32)
    for i, row in enumerate(padded):
        row[: count[i]] = flat.pages_of(i)
    same = find_prefixes(BlockTableKV(padded, flat.kv_len, 4), count)
    assert same is not None
    assert all(np.array_equal(a, b) for a, b in zip(found, same, strict=True))
    # What is not kept belongs to what is within it.
    kept = np.random.default_rng(seed).random(found.begin.size) < 0.5
    assert levels_of(flat, found, kept).flat().page_table.tolist() == flat.page_table.tolist()
