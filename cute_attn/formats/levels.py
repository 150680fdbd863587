"""KV in levels: ranges of keys that several requests share, and what each has for itself.

    level 0    [ system prompt                                   ]    requests 0 1 2 3 4
    level 1    [ document A            ] [ document B            ]    requests 0 1 | 2 3 4
    level 2    [ own ] [ own           ] [ own ] [ own   ] [ own ]    requests 0 | 1 | 2 | 3 | 4

A request's keys are those of its group in every level, one after the other, so a key has the same
position for all that share it. A range is read once for all query rows of its group; what a row
has seen in each level is merged by log-sum-exp.
(Composable formats: FlashInfer, arXiv 2501.01005, section 3.1.2.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cute_attn.formats.base import KVFormat
from cute_attn.formats.errors import Int64Array, host_integers, indptr
from cute_attn.formats.paged import PagedKV


class Level:
    """Ranges of keys, each with the requests that share it.

    Args:
        kv: `PagedKV`, `BlockTableKV` or `RaggedKV` with one entry for each group.
        members: request numbers, group after group; a request is in one group at most. None: group
            i is request i alone.
        indptr: (num_groups + 1,) the requests of group g are members[indptr[g] : indptr[g + 1]].
            None: one request for each group.

    Raises:
        TypeError, ValueError: naming the argument, what it holds and what it takes.
    """

    def __init__(self, kv: KVFormat, members: Any = None, indptr: Any = None) -> None:
        if not isinstance(kv, KVFormat) or not kv.has_positions or kv.heads_in_ids:
            raise TypeError(
                f"kv is a {type(kv).__name__}; it takes PagedKV, BlockTableKV or RaggedKV"
            )
        if not hasattr(kv, "kv_start"):
            raise TypeError(
                "kv is a DeviceKV, whose lengths are on the device; it takes lengths on the host"
            )
        if not kv.table_on_host:
            raise TypeError("the page table of kv is on a device; levels take one on the host")
        self.kv = kv
        groups = kv.num_requests
        self.members: Int64Array
        self.indptr: Int64Array
        self.members = np.arange(groups) if members is None else host_integers("members", members)
        if indptr is None:
            self.indptr = np.arange(groups + 1, dtype=np.int64)
        else:
            self.indptr = _row_pointer(indptr)
        if self.indptr.size != groups + 1:
            raise ValueError(
                f"indptr has {self.indptr.size} entries; {groups} groups take {groups + 1}"
            )
        if self.indptr[-1] != self.members.size:
            raise ValueError(
                f"members has {self.members.size} entries but indptr[-1] is {self.indptr[-1]}"
            )
        if self.members.size and int(self.members.min()) < 0:
            raise ValueError(f"members holds {self.members.min()}; it takes request numbers from 0")
        times = np.bincount(self.members)
        if self.members.size and times.max() > 1:
            raise ValueError(
                f"members holds request {times.argmax()} {times.max()} times; groups of a level may"
                " not overlap"
            )


def _row_pointer(value: Any) -> Int64Array:
    return indptr("indptr", value)


@dataclass(frozen=True)
class Segments:
    """Ranges of keys with the requests that share them, of all levels.

    Attributes:
        kv_start, kv_len: (num_segments,) where the keys are, as in `KVFormat`.
        kv_pos: (num_segments,) position of the first key.
        level: (num_segments,) level that it belongs to.
        indptr: (num_segments + 1,) of `members`.
        members: request numbers.
    """

    kv_start: Int64Array
    kv_len: Int64Array
    kv_pos: Int64Array
    level: Int64Array
    indptr: Int64Array
    members: Int64Array

    @property
    def counts(self) -> Int64Array:
        """(num_segments,) requests of each."""
        return np.diff(self.indptr)

    def select(self, which: Any) -> Segments:
        """Some of them, by a mask."""
        counts = self.counts
        pointer = np.concatenate(([0], np.cumsum(counts[which])))
        own = self.members[np.repeat(which, counts)]
        return Segments(
            self.kv_start[which],
            self.kv_len[which],
            self.kv_pos[which],
            self.level[which],
            pointer,
            own,
        )


class LevelsKV:
    """The keys of a batch in levels, for `CompositeAttention`.

    Args:
        levels: from the first keys of a request to the last; all ragged, or all paged with the same
            page_size, over the same K and V. A request may be missing in a level.
        num_requests: default: up to the largest request number.

    Attributes:
        num_requests, num_levels: how many there are.
        page_size: keys per page; 0 = ragged.
        page_table: (entries,) int32, the tables of all levels; None if ragged.
        max_page: largest page number in use; -1 if none, or ragged.
        num_rows: ragged: KV rows that k and v must have at least.
        kv_len: (num_requests,) keys of each request, of all levels.
        segments: the ranges of keys.

    Raises:
        TypeError, ValueError: naming the argument, what it holds and what it takes; also where the
            requests of a group have a different number of keys in the levels before.
    """

    num_requests: int
    num_levels: int
    page_size: int
    page_table: Any
    max_page: int
    num_rows: int
    kv_len: Int64Array
    segments: Segments

    def __init__(self, levels: Sequence[Level], num_requests: int | None = None) -> None:
        levels = tuple(levels)
        if not levels:
            raise ValueError("levels is empty; it takes at least one Level")
        for i, level in enumerate(levels):
            if not isinstance(level, Level):
                raise TypeError(f"levels[{i}] is a {type(level).__name__}; it takes a Level")
        sizes = [level.kv.page_size for level in levels]
        if len(set(sizes)) > 1:
            raise ValueError(
                f"levels have page_size {sizes} (0: ragged); all levels lie in one cache"
            )
        needed = max(int(level.members.max(initial=-1)) + 1 for level in levels)
        self.num_requests = needed if num_requests is None else num_requests
        if self.num_requests < needed:
            raise ValueError(
                f"members holds request {needed - 1}, but num_requests is {self.num_requests}"
            )
        self.num_levels, self.page_size = len(levels), sizes[0]
        formats = [level.kv for level in levels]
        self.max_page = max(-1 if kv.max_page is None else kv.max_page for kv in formats)
        self.num_rows = max(kv.num_rows for kv in formats)
        self.kv_len = np.zeros(self.num_requests, np.int64)
        parts = [self._segments_of(number, level) for number, level in enumerate(levels)]
        self.page_table = None
        if self.page_size:
            tables = [np.asarray(kv.page_table).reshape(-1) for kv in formats]
            self.page_table = np.concatenate(tables)
            starts = np.cumsum([0, *(table.size for table in tables)])
            for part, start in zip(parts, starts.tolist(), strict=False):
                part[0] = part[0] + start
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        pointer = np.concatenate(([0], np.cumsum(columns[4])))
        start, length, position, number, _, members = columns
        self.segments = Segments(start, length, position, number, pointer, members)

    def _segments_of(self, number: int, level: Level) -> list[Int64Array]:
        """kv_start, kv_len, kv_pos, level, requests and members of a level's groups, behind the
        keys that the levels before it have."""
        kv, counts = level.kv, np.diff(level.indptr)
        ahead = self.kv_len[level.members]
        position, some = np.zeros(counts.size, np.int64), counts > 0
        position[some] = ahead[level.indptr[:-1][some]]
        wrong = ahead != np.repeat(position, counts)
        if wrong.any():
            at = int(np.repeat(np.arange(counts.size), counts)[wrong.argmax()])
            own = ahead[level.indptr[at] : level.indptr[at + 1]]
            raise ValueError(
                f"levels[{number}]: the requests of group {at} have {own.min()} to {own.max()} keys"
                " in the levels before it, so what they share has no one position"
            )
        self.kv_len[level.members] += np.repeat(kv.kv_len, counts)
        numbers = np.full(counts.size, number)
        return [kv.kv_start, kv.kv_len, position, numbers, counts, level.members]

    @classmethod
    def of_segments(cls, kv: KVFormat, segments: Segments) -> LevelsKV:
        """Levels that read the page table of `kv`, which has the same keys.

        Args:
            kv: paged, its table on the host.
            segments: ranges of keys, of each request one after the other from position 0 on.
        """
        made = cls.__new__(cls)
        made.num_requests, made.page_size = kv.num_requests, kv.page_size
        made.page_table, made.num_rows = np.asarray(kv.page_table).reshape(-1), kv.num_rows
        made.max_page = -1 if kv.max_page is None else kv.max_page
        made.num_levels = int(segments.level.max(initial=-1)) + 1
        made.kv_len, made.segments = kv.kv_len, segments
        return made

    def __repr__(self) -> str:
        pages = f", page_size={self.page_size}" if self.page_size else ""
        return f"LevelsKV({self.num_levels} levels, {self.num_requests} requests{pages})"

    def flat(self) -> PagedKV:
        """The same keys, each request by itself: what is shared is named by each.

        Raises:
            ValueError: there is no such format: KV is ragged, or a range that others follow ends
                within a page.
        """
        if not self.page_size:
            raise ValueError("levels are ragged; flat() takes paged ones, whose keys need no copy")
        seg, size = self.segments, self.page_size
        per = np.repeat(np.arange(seg.kv_len.size), seg.counts)
        order = np.lexsort((seg.kv_pos[per], seg.members))
        owner, per = seg.members[order], per[order]
        keep = seg.kv_len[per] > 0
        owner, per = owner[keep], per[keep]
        inner = np.append(owner[1:] == owner[:-1], False) if owner.size else np.zeros(0, bool)
        if (bad := inner & (seg.kv_len[per] % size > 0)).any():
            at = per[int(bad.argmax())]
            raise ValueError(
                f"a range of level {seg.level[at]} has {seg.kv_len[at]} keys in pages of {size},"
                " and others follow it; one page table takes whole pages there"
            )
        pages = -(-seg.kv_len[per] // size)
        total = np.bincount(owner, pages, self.num_requests).astype(np.int64)
        pointer = np.concatenate(([0], np.cumsum(total)))
        taken = ranges(seg.kv_start[per], pages)
        last = np.where(total > 0, (self.kv_len - 1) % size + 1, 0)
        return PagedKV(pointer, self.page_table[taken], last, size)


def ranges(begin: Int64Array, length: Int64Array) -> Int64Array:
    """begin[0], begin[0] + 1, ..., length[0] of them, then those of begin[1], and so on."""
    ends = np.cumsum(length)
    shift = np.repeat(begin - (ends - length), length)
    taken: Int64Array = np.arange(ends[-1] if ends.size else 0) + shift
    return taken
