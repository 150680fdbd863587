"""Radix trees of pages: from an engine's tree to levels and back, and from page tables alone.

A node holds pages; a request has the keys of all nodes from a root to its own.
(RadixAttention: Zheng et al., "SGLang", arXiv 2312.07104.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cute_attn.formats.base import KVFormat
from cute_attn.formats.errors import Int64Array, host_integers, page_numbers, positive
from cute_attn.formats.levels import Level, LevelsKV, Segments, ranges
from cute_attn.formats.paged import PagedKV


class Radix(NamedTuple):
    """A radix tree.

    Attributes:
        parents: (num_nodes,) the node that each one follows; -1: none.
        pages: page numbers of each node, int32 arrays.
        kv_len: (num_nodes,) keys of each node.
        nodes: (num_requests,) the node that each request ends with; -1: it has no keys.
    """

    parents: Int64Array
    pages: list[Any]
    kv_len: Int64Array
    nodes: Int64Array


def from_radix(
    parents: Any, pages: Sequence[Any], nodes: Any, page_size: int, *, kv_len: Any = None
) -> LevelsKV:
    """Levels of a radix tree.

    Args:
        parents: (num_nodes,) the node that each one follows, in any order; -1: none.
        pages: page numbers of each node, on the host.
        nodes: (num_requests,) the node that each request ends with; -1: it has no keys.
        page_size: keys per page.
        kv_len: (num_nodes,) keys of each node, of which the last page may be partly filled.
            Default: all pages are full.

    Raises:
        TypeError, ValueError: naming the argument, what it holds and what it takes; a node follows
            itself, over others or not.
    """
    parent = host_integers("parents", parents)
    own = host_integers("nodes", nodes)
    size, count = positive("page_size", page_size), parent.size
    for name, numbers in (("parents", parent), ("nodes", own)):
        wrong = (numbers < -1) | (numbers >= count)
        if wrong.any():
            at = int(wrong.argmax())
            raise ValueError(f"{name}[{at}] is {numbers[at]}; it takes -1 .. {count - 1}")
    if len(pages) != count:
        raise ValueError(f"pages describes {len(pages)} nodes, parents {count}")
    tables = [_host_pages(i, table) for i, table in enumerate(pages)]
    full = np.array([table.size for table in tables], np.int64) * size
    length = full if kv_len is None else host_integers("kv_len", kv_len)
    if length.size != count:
        raise ValueError(f"kv_len describes {length.size} nodes, parents {count}")
    wrong = (length > full) | (length <= full - size) & (full > 0) | (length < 0)
    if wrong.any():
        at = int(wrong.argmax())
        raise ValueError(
            f"kv_len[{at}] is {length[at]}, but node {at} has {tables[at].size} pages of {size}"
        )
    depth = _depths(parent)
    requests = _requests_below(parent, depth, own)
    head = _heads(parent, depth, requests, length, size)
    return _levels(parent, depth, head, tables, length, own, size)


def _host_pages(node: int, table: Any) -> Any:
    numbers, on_host = page_numbers(f"pages[{node}]", table, 1)
    if not on_host:
        raise TypeError(
            f"pages[{node}] is on a device; a radix tree takes page numbers on the host"
        )
    return numbers


def _depths(parent: Int64Array) -> Int64Array:
    """Nodes before each one; raises if there is a cycle."""
    depth = np.full(parent.size, -1, np.int64)
    level, found = 0, parent < 0
    while found.any():
        depth[found] = level
        level += 1
        found = (depth < 0) & (depth[parent] == level - 1) & (parent >= 0)
    if (depth < 0).any():
        at = int((depth < 0).argmax())
        raise ValueError(f"parents: node {at} follows itself, by way of node {parent[at]}")
    return depth


def _requests_below(parent: Int64Array, depth: Int64Array, nodes: Int64Array) -> Int64Array:
    """Requests that read each node."""
    below = np.bincount(nodes[nodes >= 0], minlength=parent.size)
    for level in range(int(depth.max(initial=0)), 0, -1):
        at = np.flatnonzero(depth == level)
        np.add.at(below, parent[at], below[at])
    return below


def _heads(
    parent: Int64Array, depth: Int64Array, requests: Int64Array, length: Int64Array, size: int
) -> Int64Array:
    """The first node of the chain that each one belongs to: nodes that the same requests read, one
    after the other in whole pages, are one range."""
    head = np.arange(parent.size)
    follows = parent >= 0
    up = np.where(follows, parent, 0)
    joined = follows & (requests == requests[up]) & (length[up] % size == 0) if up.size else follows
    for level in range(1, int(depth.max(initial=0)) + 1):
        at = np.flatnonzero((depth == level) & joined)
        head[at] = head[parent[at]]
    return head


def _levels(
    parent: Int64Array,
    depth: Int64Array,
    head: Int64Array,
    tables: list[Any],
    length: Int64Array,
    nodes: Int64Array,
    size: int,
) -> LevelsKV:
    """One level for each chain on the way from a root."""
    at, paths = nodes.copy(), []
    for level in range(int(depth.max(initial=0)), -1, -1):
        here = (at >= 0) & (depth[at] == level) if depth.size else np.zeros(at.size, bool)
        paths.append(np.where(here, head[at] if head.size else -1, -1))
        at = np.where(here, parent[at] if parent.size else -1, at)
    chain: dict[int, list[int]] = {}
    for node in np.argsort(depth, kind="stable").tolist():
        chain.setdefault(int(head[node]), []).append(node)
    levels: list[Level] = []
    for on_path in reversed(paths):
        groups, member_of = np.unique(on_path, return_inverse=True)
        # A chain's later nodes are part of its head's range.
        first = np.array([g >= 0 and depth[g] == len(levels) for g in groups], np.bool_)
        levels.append(_level(groups, first, member_of, chain, tables, length, size))
    return LevelsKV(levels or [Level(PagedKV([0], [], [], size))], nodes.size)


def _level(
    groups: Any,
    first: Any,
    member_of: Any,
    chain: dict[int, list[int]],
    tables: list[Any],
    length: Int64Array,
    size: int,
) -> Level:
    """The level whose groups are some chains of nodes."""
    chosen = np.flatnonzero(first)
    order = np.argsort(member_of, kind="stable")
    counts = np.bincount(member_of, minlength=groups.size)
    starts = np.cumsum(counts) - counts
    parts = [[tables[node] for node in chain[int(groups[g])]] for g in chosen]
    joined = [np.concatenate(part) for part in parts]
    keys = [sum(int(length[node]) for node in chain[int(groups[g])]) for g in chosen]
    pages = np.cumsum([0, *(table.size for table in joined)])
    last = [(n - 1) % size + 1 if n else 0 for n in keys]
    table = np.concatenate(joined) if joined else np.zeros(0, np.int32)
    members = order[ranges(starts[chosen], counts[chosen])]
    return Level(
        PagedKV(pages, table, last, size), members, np.cumsum([0, *counts[chosen].tolist()])
    )


def to_radix(levels: LevelsKV) -> Radix:
    """The radix tree of levels.

    Raises:
        ValueError: levels are ragged, or requests that share a range share not all before it.
    """
    if not levels.page_size:
        raise ValueError("levels are ragged; a radix tree takes paged ones")
    seg = levels.segments.select((levels.segments.kv_len > 0) & (levels.segments.counts > 0))
    last = np.full(levels.num_requests, -1, np.int64)
    parents = np.full(seg.kv_len.size, -1, np.int64)
    for node in np.argsort(seg.level, kind="stable"):
        members = seg.members[seg.indptr[node] : seg.indptr[node + 1]]
        before = np.unique(last[members])
        if before.size > 1:
            raise ValueError(
                f"requests {members.tolist()} share a range of level {seg.level[node]}, but not all"
                " that is before it; a radix tree takes what branches and never joins"
            )
        parents[node] = before[0]
        last[members] = node
    table, size = levels.page_table, levels.page_size
    pages = [
        table[begin : begin + -(-n // size)]
        for begin, n in zip(seg.kv_start.tolist(), seg.kv_len.tolist(), strict=True)
    ]
    return Radix(parents, pages, seg.kv_len, last)


class Prefixes(NamedTuple):
    """What page tables begin with in common, as a tree; nodes in an order in which each one follows
    the one that it is within.

    Attributes:
        order: (num_requests,) requests, those that share next to each other.
        begin, end: (num_nodes,) pages of the tables that the node's requests share and the requests
            of the node around it do not.
        first, last: (num_nodes,) its requests: order[first : last].
        parent: (num_nodes,) the node around it; -1: none.
    """

    order: Int64Array
    begin: Int64Array
    end: Int64Array
    first: Int64Array
    last: Int64Array
    parent: Int64Array


def find_prefixes(kv: KVFormat, most: Any) -> Prefixes | None:
    """What page tables begin with in common.

    Args:
        kv: paged, its table on the host.
        most: (num_requests,) pages of each request that may be shared.

    Returns:
        None: nothing is.
    """
    pages = np.minimum(most, kv.kv_len // kv.page_size)
    heads = kv.page_table[kv.kv_start[pages > 0]]
    if np.unique(heads).size == heads.size:
        return None
    table = _leading(kv, pages)
    width = table.shape[1]
    # As strings of bytes: tables that begin with the same pages are neighbours in their order.
    order = np.argsort(table.view(f"V{4 * width}")[:, 0], kind="stable")
    ordered = table[order]
    differ = ordered[1:] != ordered[:-1]
    common = np.where(differ.any(axis=1), differ.argmax(axis=1), width)
    own = pages[order]
    common = np.minimum(common, np.minimum(own[1:], own[:-1]))
    return _tree(order, common)


def _leading(kv: KVFormat, pages: Int64Array) -> Any:
    """(num_requests, most pages) int32: so many pages of each table, then -1."""
    count, width, start = pages.size, int(pages.max()), kv.kv_start
    step = int(start[1] - start[0]) if count > 1 else width
    if step >= width and bool((np.diff(start) == step).all()):
        table = kv.page_table[int(start[0]) : int(start[-1]) + width]
        if table.size == (count - 1) * step + width:  # rows of a matrix
            table = np.lib.stride_tricks.as_strided(table, (count, width), (4 * step, 4))
            own = np.arange(width) < pages[:, None]
            return np.ascontiguousarray(table) if own.all() else np.where(own, table, np.int32(-1))
    table = np.full((count, width), -1, np.int32)
    for row, begin, length in zip(table, start.tolist(), pages.tolist(), strict=True):
        row[:length] = kv.page_table[begin : begin + length]
    return table


def _tree(order: Int64Array, common: Int64Array) -> Prefixes | None:
    """The tree of runs of neighbours that share at least so many pages."""
    nodes: list[list[int]] = []  # begin, end, first, last
    inside: list[tuple[int, int]] = []  # (end, first) of the runs around here
    for at, shared in enumerate([*common.tolist(), 0]):
        first = at
        while inside and inside[-1][0] > shared:
            end, first = inside.pop()
            around = max(inside[-1][0] if inside else 0, shared)
            nodes.append([around, end, first, at + 1])
        if shared > (inside[-1][0] if inside else 0):
            inside.append((shared, first))
    if not nodes:
        return None
    nodes.sort(key=lambda node: (node[0], node[2]))
    begin, end, first, last = np.array(nodes).T
    parent = np.full(begin.size, -1, np.int64)
    around = np.full(order.size, -1, np.int64)
    for node in range(begin.size):
        own = slice(first[node], last[node])
        parent[node] = around[first[node]]
        around[own] = node
    return Prefixes(order, begin, end, first, last, parent)


def levels_of(kv: KVFormat, prefixes: Prefixes, kept: Any) -> LevelsKV:
    """Levels in which some nodes are shared; the others belong to what is within them.

    Args:
        kv: what the prefixes were found in.
        prefixes: the tree.
        kept: (num_nodes,) truth values.
    """
    order, _, end, first, last, _ = prefixes
    size, count = kv.page_size, kv.num_requests
    shared = np.zeros(count, np.int64)  # pages, by place in `order`
    depth = np.zeros(count, np.int64)
    columns: list[tuple[int, int, int, int]] = []  # kv_start, kv_len, kv_pos, level
    members, counts = [], []
    for node in np.flatnonzero(kept).tolist():
        own = slice(first[node], last[node])
        at = int(shared[first[node]])
        entry = int(kv.kv_start[order[first[node]]]) + at
        columns.append((entry, (int(end[node]) - at) * size, at * size, int(depth[first[node]])))
        members.append(order[own])
        counts.append(last[node] - first[node])
        shared[own] = end[node]
        depth[own] += 1
    ahead, deep = np.empty(count, np.int64), np.empty(count, np.int64)
    ahead[order], deep[order] = shared, depth
    own_columns = (kv.kv_start + ahead, kv.kv_len - ahead * size, ahead * size, deep)
    table = np.array(columns, np.int64).reshape(-1, 4).T
    start, length, position, level = (
        np.concatenate((a, b)) for a, b in zip(table, own_columns, strict=True)
    )
    pointer = np.cumsum([0, *counts, *[1] * count])
    every = np.concatenate([*members, np.arange(count)])
    return LevelsKV.of_segments(kv, Segments(start, length, position, level, pointer, every))
