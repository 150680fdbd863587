"""Thread blocks that share the bandwidth of a device, as fluids do: when each of them ends.

A block waits for its first keys (`start`), works, and merges. Working alone it would take `alone`
and ask for bytes at an even rate; the device's rate is shared max-min fairly among those that ask,
so a block that gets less takes longer. Where a launch has more blocks than run at the same time,
the next one starts where one ends, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cute_attn.scheduler.each import Int64Array

FloatArray = npt.NDArray[np.float64]

_START, _WORK, _MERGE, _IDLE = range(4)


@dataclass(frozen=True)
class Work:
    """What the blocks of a launch need; arrays are (num_blocks,).

    Attributes:
        alone: us of each if nobody else read; 0: nothing to do.
        bytes_of: from HBM.
        merges: us that each merges.
        begin_us: when the launch begins.
        start_us: before the first block of each place works.
        next_us: before a block works that follows another.
        resident: blocks that run at the same time.
    """

    alone: FloatArray
    bytes_of: FloatArray
    merges: FloatArray
    begin_us: float = 0.0
    start_us: float = 0.0
    next_us: float = 0.0
    resident: int = 1 << 30


@dataclass(frozen=True)
class Course:
    """When the blocks of a launch do what; arrays are (num_blocks,), us, 0 for idle blocks.

    Attributes:
        place: which of the blocks that run at the same time each one follows, counted from 0.
        begins: work begins.
        busy: work ends.
        ends: the merge ends.
        moments: (us, numbers of blocks that work, shares of their work that are done).
    """

    place: Int64Array
    begins: FloatArray
    busy: FloatArray
    ends: FloatArray
    moments: list[tuple[float, Int64Array, FloatArray]] = field(repr=False)

    def times(self, block: Int64Array, share: FloatArray) -> FloatArray:
        """When blocks have done shares of their work.

        Args:
            block: (count,) ascending.
            share: (count,) 0 to 1.
        """
        when = np.zeros_like(share)
        if not self.moments:
            return when
        sizes = [blocks.size for _, blocks, _ in self.moments]
        now = np.repeat([moment for moment, _, _ in self.moments], sizes)
        blocks = np.concatenate([blocks for _, blocks, _ in self.moments])
        done = np.concatenate([done for _, _, done in self.moments])
        order = np.argsort(blocks, kind="stable")
        now, blocks, done = now[order], blocks[order], done[order]
        for own in np.unique(block):
            known = slice(*np.searchsorted(blocks, (own, own + 1)))
            asked = slice(*np.searchsorted(block, (own, own + 1)))
            when[asked] = np.interp(share[asked], done[known], now[known])
        return when


class _Places:
    """All places of one launch: which block each has, and how far it is."""

    def __init__(self, work: Work) -> None:
        count = work.alone.size
        self.work = work
        self.wanted = work.bytes_of / np.maximum(work.alone, 1e-12)
        size = min(work.resident, count)
        self.block = np.zeros(size, np.int64)
        self.phase = np.full(size, _IDLE)
        self.left = np.zeros(size)  # us; share of the work while working
        begins, busy, ends = np.zeros((3, count))
        self.course = Course(np.zeros(count, np.int64), begins, busy, ends, [])
        self._next = 0
        for place in range(size):
            self._take(place, work.begin_us + work.start_us)

    def _take(self, place: int, wait_us: float) -> None:
        """The next block starts at a place; those that have nothing to do end at once."""
        alone = self.work.alone
        while self._next < alone.size:
            block = self._next
            self._next += 1
            self.course.place[block] = place
            if alone[block] > 0:
                self.block[place], self.phase[place], self.left[place] = block, _START, wait_us
                return
            if self.work.resident >= alone.size:
                break  # a place of its own
        self.phase[place] = _IDLE

    def asks(self) -> FloatArray:
        """(places,) bytes per us that each would read."""
        return np.where(self.phase == _WORK, self.wanted[self.block], 0.0)

    def speed(self, granted: FloatArray, asked: FloatArray) -> FloatArray:
        """(places,) how fast `left` gets less."""
        slowed = granted / np.where(asked > 0, asked, 1.0)
        alone = np.maximum(self.work.alone[self.block], 1e-12)
        working = np.where(asked > 0, slowed, 1.0) / alone
        return np.where(self.phase == _WORK, working, 1.0)

    def note(self, now: float) -> None:
        """Remembers how much of the work is done."""
        working = np.flatnonzero(self.phase == _WORK)
        if working.size:
            self.course.moments.append((now, self.block[working], 1.0 - self.left[working]))

    def end_phases(self, now: float, done: Int64Array) -> None:
        """Places whose phase ends go on to the next one."""
        course, work = self.course, self.work
        starting = self.block[done[self.phase[done] == _START]]
        if starting.size:
            course.moments.append((now, starting, np.zeros(starting.size)))
        for place in done.tolist():
            block, phase = int(self.block[place]), int(self.phase[place])
            if phase == _START:
                course.begins[block] = now
                self.phase[place], self.left[place] = _WORK, 1.0
                continue
            if phase == _WORK:
                course.busy[block] = now
                if work.merges[block] > 0:
                    self.phase[place], self.left[place] = _MERGE, work.merges[block]
                    continue
            course.ends[block] = now
            self._take(place, work.next_us)


def flow(launches: Sequence[Work], rate: float) -> list[Course]:
    """The course of launches that run at the same time and share `rate` bytes per us."""
    of_launch = [_Places(work) for work in launches]
    cuts = np.cumsum([places.block.size for places in of_launch])[:-1]
    now = 0.0
    while True:
        asked = np.concatenate([places.asks() for places in of_launch])
        granted = max_min(asked, rate)
        pairs = zip(of_launch, np.split(granted, cuts), np.split(asked, cuts), strict=True)
        speeds = [places.speed(*pair) for places, *pair in pairs]
        until = [
            np.where(places.phase == _IDLE, np.inf, places.left / speed)
            for places, speed in zip(of_launch, speeds, strict=True)
        ]
        step = min(float(of.min(initial=np.inf)) for of in until)
        if step == np.inf:
            return [places.course for places in of_launch]
        now += step
        for places, speed, own in zip(of_launch, speeds, until, strict=True):
            places.left -= step * speed
            done = own <= step * (1 + 1e-9) + 1e-9
            places.left[done] = 0.0
            places.note(now)
            places.end_phases(now, np.flatnonzero(done))


def max_min(wanted: FloatArray, total: float) -> FloatArray:
    """Max-min fair shares of `total`: nobody gets more than wanted, the others get the same."""
    if wanted.sum() <= total:
        return wanted
    order = np.argsort(wanted, kind="stable")
    ascending = wanted[order]
    before = np.cumsum(ascending) - ascending
    fair = (total - before) / np.arange(wanted.size, 0, -1)
    level = fair[int((ascending > fair).argmax())]
    shares: FloatArray = np.minimum(wanted, level)
    return shares
