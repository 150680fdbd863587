"""Levels as one batch: every range of keys becomes a request of its own, with copies of the query
rows that read it.

    query rows      0 1 2
    levels          [ shared by 0 1 2 ] [ own of 0 ] [ own of 1 ] [ own of 2 ]
    stacked rows      0 1 2               0            1            2

Planner and kernels then know nothing of levels. What the copies of a row give is merged.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cute_attn.formats.base import KVFormat
from cute_attn.formats.errors import Int64Array
from cute_attn.formats.levels import LevelsKV, Segments, ranges

_NO_LIMIT = 1 << 30  # as in the plan: a band limit from which on there is none


class StackedKV(KVFormat):
    """One request for each range of keys; see `stack`.

    Attributes:
        qo_indptr: (num_segments + 1,) stacked rows of each.
        q_pos: (num_segments,) position of the first row. Those after it follow one by one.
        kv_pos: (num_segments,) position of the first key.
    """

    stacked = True
    qo_indptr: Int64Array

    def __init__(
        self, levels: LevelsKV, segments: Segments, qo_indptr: Int64Array, q_pos: Int64Array
    ) -> None:
        self.kv_start, self.kv_len = segments.kv_start, segments.kv_len
        self.page_size, self.page_table = levels.page_size, levels.page_table
        if self.page_size:  # each page number once: the table goes to the device
            pages = -(-self.kv_len // self.page_size)
            self.page_table = self.page_table[ranges(self.kv_start, pages)]
            self.kv_start = np.cumsum(pages) - pages
        self.max_page, self.num_rows = levels.max_page, levels.num_rows
        self.qo_indptr, self.q_pos, self.kv_pos = qo_indptr, q_pos, segments.kv_pos


@dataclass(frozen=True)
class Stack:
    """A batch in levels, as one batch.

    Attributes:
        kv: the keys.
        rows: (stacked_rows,) the query row that each is a copy of.
        positions: (stacked_rows,) its true position.
        requests: (stacked_rows,) its request.
        state_indptr: (num_rows + 1,) of `states`.
        states: (stacked_rows,) the copies of each query row, in the order of its keys.
        follows: positions that follow one by one, as the plan has them, are true or do not matter:
            the rows of a shared range see all of it. Else a kernel has to look them up.
    """

    kv: StackedKV
    rows: Int64Array
    positions: Int64Array
    requests: Int64Array
    state_indptr: Int64Array
    states: Int64Array
    follows: bool

    def by_row(self) -> StackedKV:
        """The keys, with the number of a stacked row as its position: for kernels that look up
        `positions` and `requests`."""
        kv = copy.copy(self.kv)
        kv.q_pos = kv.qo_indptr[:-1]
        return kv

    @property
    def is_flat(self) -> bool:
        """Whether there is one copy of every row, in order."""
        count = self.state_indptr.size - 1
        return self.rows.size == count and bool((self.rows == np.arange(count)).all())


def stack(levels: LevelsKV, qo_indptr: Int64Array, band: tuple[int, int]) -> Stack:
    """Levels as one batch; ranges that no row can see are left out.

    Args:
        levels: the keys.
        qo_indptr: (num_requests + 1,) query rows of each request; the last one stands at the
            request's last key.
        band: (window_left, window_right) of the mask.
    """
    q_len, q_begin = np.diff(qo_indptr), qo_indptr[:-1]
    q_pos = levels.kv_len - q_len
    segments = _with_rows(levels.segments, q_len)
    first, last = _reach(segments, q_pos, q_len)
    segments = _trimmed(segments, first - band[0], last + band[1], levels.page_size)
    keep = segments.kv_len > 0
    segments, first, last = segments.select(keep), first[keep], last[keep]

    member = segments.members
    length, counts = q_len[member], segments.counts
    owner = np.repeat(np.arange(counts.size), counts)
    num_rows = np.bincount(owner, length, counts.size).astype(np.int64)
    pointer = np.concatenate(([0], np.cumsum(num_rows)))
    begin, uniform = _common(segments, num_rows, first, last, band)
    alone = counts == 1
    begin = np.where(alone, first, begin)
    rows = ranges(q_begin[member], length)
    total = int(qo_indptr[-1])
    # Sorted by row, of one row by the position of the keys.
    key = np.repeat(np.repeat(segments.kv_pos, counts), length)
    return Stack(
        kv=StackedKV(levels, segments, pointer, begin),
        rows=rows,
        positions=ranges(q_pos[member], length),
        requests=np.repeat(member, length),
        state_indptr=np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=total)))),
        states=np.lexsort((key, rows)),
        follows=bool((alone | uniform).all()),
    )


def _with_rows(segments: Segments, q_len: Int64Array) -> Segments:
    """Without requests that have no query rows, and without ranges that nobody is left of."""
    keep = q_len[segments.members] > 0
    owner = np.repeat(np.arange(segments.counts.size), segments.counts)[keep]
    counts = np.bincount(owner, minlength=segments.counts.size)
    pointer = np.concatenate(([0], np.cumsum(counts)))
    left = replace(segments, indptr=pointer, members=segments.members[keep])
    return left.select((counts > 0) & (segments.kv_len > 0))


def _reach(
    segments: Segments, q_pos: Int64Array, q_len: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """First and last position of the rows of each range."""
    if not segments.members.size:
        return segments.kv_pos, segments.kv_pos
    at, member = segments.indptr[:-1], segments.members
    first = np.minimum.reduceat(q_pos[member], at)
    return first, np.maximum.reduceat((q_pos + q_len - 1)[member], at)


def _trimmed(segments: Segments, low: Any, high: Any, page_size: int) -> Segments:
    """Without keys outside positions [low, high], as far as whole pages go at the begin."""
    ahead = np.clip(low - segments.kv_pos, 0, segments.kv_len)
    pages = ahead // max(page_size, 1)
    ahead = pages * max(page_size, 1)
    kv_len = np.minimum(segments.kv_len, np.maximum(high + 1 - segments.kv_pos, 0)) - ahead
    return replace(
        segments,
        kv_start=segments.kv_start + pages,
        kv_len=np.maximum(kv_len, 0),
        kv_pos=segments.kv_pos + ahead,
    )


def _common(
    segments: Segments,
    num_rows: Int64Array,
    first: Int64Array,
    last: Int64Array,
    band: tuple[int, int],
) -> tuple[Any, Any]:
    """Positions from which rows that follow one by one see all keys; and whether that is so, and
    true of the rows as they are."""
    left, right = band
    key, end = segments.kv_pos, segments.kv_pos + segments.kv_len - 1
    begin = end - np.minimum(right, segments.kv_len - 1)
    follows, true = begin + num_rows - 1, first + right >= end
    if left < _NO_LIMIT:
        true = true & (last - left <= key) & (follows - left <= key)
    return begin, true
