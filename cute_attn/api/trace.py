"""A step as it ran: what every thread block did and when, from the time stamps of its kernels.

trace = batch.trace(q, cache)
print(trace)                                   # a summary of each launch
trace.save("step.json", predicted=batch.explain())   # for https://ui.perfetto.dev
trace.launches[0].blocks[17].items             # the numbers
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cute_attn.abi.trace import BlockStamps, ItemStamps
from cute_attn.codegen.spec import KernelSpec
from cute_attn.scheduler import Explanation, chrome_trace


class TracedItem(NamedTuple):
    """One piece of work of a thread block; times in microseconds from the begin of the first block,
    None for what did not happen.

    Attributes:
        request: index in the caller's order.
        kv_head: the KV head.
        row_begin, row_end: packed query rows.
        key_begin, key_end: keys in whole KV blocks.
        slot: partial result that is written, or -1.
        begin_us: the block turns to it: from here on it waits for its keys.
        keys_us: the first of them, and the queries, have landed.
        products_us: its last product is done.
        written_us: output or partial result is written.
        merged_us: the pieces of its tile are merged by this block (`ampere_decode`).
    """

    request: int
    kv_head: int
    row_begin: int
    row_end: int
    key_begin: int
    key_end: int
    slot: int
    begin_us: float
    keys_us: float | None
    products_us: float | None
    written_us: float | None
    merged_us: float | None

    @property
    def end_us(self) -> float:
        """When the last of its events was."""
        last = (self.merged_us, self.written_us, self.products_us, self.keys_us)
        return next((time for time in last if time is not None), self.begin_us)


@dataclass(frozen=True)
class TracedBlock:
    """What one thread block did.

    Attributes:
        number: in the grid.
        sm: that it ran on.
        begin_us, end_us: of its work; merges at its end included.
        items: in their order.
        dropped: further items, for which there was no room.
        merge_us: (begin, end) of the merges at its end (`hopper_tile`), or None.
    """

    number: int
    sm: int
    begin_us: float
    end_us: float
    items: tuple[TracedItem, ...]
    dropped: int = 0
    merge_us: tuple[float, float] | None = None


@dataclass(frozen=True)
class TracedLaunch:
    """One launch: its kernel's spec, and its thread blocks."""

    spec: KernelSpec
    blocks: tuple[TracedBlock, ...]

    @property
    def begin_us(self) -> float:
        """When its first block began."""
        return min(block.begin_us for block in self.blocks)

    @property
    def end_us(self) -> float:
        """When its last block ended."""
        return max(block.end_us for block in self.blocks)

    @property
    def imbalance(self) -> float:
        """Work of the longest block over the mean; 1.0 is perfect."""
        spans = [block.end_us - block.begin_us for block in self.blocks]
        mean = sum(spans) / len(spans)
        return max(spans) / mean if mean > 0 else 1.0

    @property
    def waiting(self) -> float:
        """Share of its blocks' time between turning to an item and its first keys."""
        waited = sum(
            item.keys_us - item.begin_us
            for block in self.blocks
            for item in block.items
            if item.keys_us is not None
        )
        worked = sum(block.end_us - block.begin_us for block in self.blocks)
        return waited / worked if worked > 0 else 0.0


@dataclass(frozen=True)
class Trace:
    """A step as it ran; `str()` is a summary.

    Attributes:
        launches: in the order in which they were launched.
    """

    launches: tuple[TracedLaunch, ...]

    @property
    def us(self) -> float:
        """From the begin of the first block to the end of the last one."""
        return max(launch.end_us for launch in self.launches)

    @property
    def dropped(self) -> int:
        """Items for which there was no room."""
        return sum(block.dropped for launch in self.launches for block in launch.blocks)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every item as a dict, e.g. for a data frame: launch, block, sm, fields of the item."""
        for number, launch in enumerate(self.launches):
            for block in launch.blocks:
                for item in block.items:
                    yield {"launch": number, "block": block.number, "sm": block.sm} | item._asdict()

    def save(self, path: str | Path, *, predicted: Explanation | None = None) -> Path:
        """Writes the timeline for Perfetto (https://ui.perfetto.dev) or chrome://tracing.

        Args:
            path: a file name, by custom one that ends in .json.
            predicted: of the same step, to be shown below it.

        Returns:
            path.

        Raises:
            ValueError: it cannot be written.
        """
        processes = [_process(launch) for launch in self.launches]
        return chrome_trace.write(path, [*processes, *(predicted.processes() if predicted else ())])

    def __str__(self) -> str:
        lines = [f"{self.us:.1f} us measured, from the first thread block to the last"]
        for launch in self.launches:
            items = sum(len(block.items) for block in launch.blocks)
            lines.append(
                f"{launch.spec.schedule}: {len(launch.blocks)} thread blocks, {items} items,"
                f" {launch.begin_us:.1f} to {launch.end_us:.1f} us, imbalance"
                f" {launch.imbalance:.3f}, {100 * launch.waiting:.1f} % waiting for first keys"
            )
        if self.dropped:
            lines.append(f"{self.dropped} items had no room: give a larger max_items")
        return "\n".join(lines)


Stamps = Sequence[tuple[BlockStamps, Sequence[ItemStamps]]]
"""What `abi.trace.read` finds in the buffer of a launch."""


def trace_of(measured: Sequence[tuple[KernelSpec, Stamps]]) -> Trace:
    """The trace of a step's launches: clocks of SMs brought onto the global timer.

    All SMs tick alike, so one rate is fitted to all blocks; what an SM's clock says at a time of
    the global timer is the mean of its blocks' begins and ends, which evens out the timer's steps.

    Args:
        measured: kernel and time stamps of each launch.

    Raises:
        RuntimeError: a block has left no times: the kernel has not run.
    """
    blocks = [block for _, stamps in measured for block, _ in stamps]
    if any(block.begin_ns == 0 or block.end_ns == 0 for block in blocks):
        raise RuntimeError("a thread block has left no times: the traced kernel has not run")
    clock = _Clock(blocks)
    start = min(clock.us(block.sm, block.begin_clock) for block in blocks)
    return Trace(tuple(_launch(spec, stamps, clock, start) for spec, stamps in measured))


class _Clock:
    """From clocks of SMs to microseconds since the first block's begin, by the global timer."""

    def __init__(self, blocks: Sequence[BlockStamps]) -> None:
        first_ns = min(block.begin_ns for block in blocks)  # the timer's own count fits no float
        ns = sum(block.end_ns - block.begin_ns for block in blocks)
        ticks = sum(block.end_clock - block.begin_clock for block in blocks)
        self._us_per_tick = ns / ticks / 1e3 if ticks > 0 else 0.0
        self._zero: dict[int, int] = {}  # of each SM: a clock to count from
        times: dict[int, list[float]] = {}  # of each SM: what the timer said then
        for block in blocks:
            zero = self._zero.setdefault(block.sm, block.begin_clock)
            marks = ((block.begin_ns, block.begin_clock), (block.end_ns, block.end_clock))
            times.setdefault(block.sm, []).extend(
                (ns - first_ns) / 1e3 - (at - zero) * self._us_per_tick for ns, at in marks
            )
        self._at_zero = {sm: sum(marks) / len(marks) for sm, marks in times.items()}

    def us(self, sm: int, clock: int) -> float:
        """The time of a clock."""
        return self._at_zero[sm] + (clock - self._zero[sm]) * self._us_per_tick


def _launch(spec: KernelSpec, stamps: Stamps, clock: _Clock, start: float) -> TracedLaunch:
    blocks = []
    for number, (block, of_block) in enumerate(stamps):

        def us(at: int, sm: int = block.sm) -> float:
            return clock.us(sm, at) - start

        items = tuple(_item(item, us, spec.tile.kv) for item in of_block)
        merge = None
        if block.merge_end and any(item.slot >= 0 for item in items):
            merge = us(block.merge_begin), us(block.merge_end)
        end = max(block.end_clock, block.merge_end)  # the end was noted before merges
        dropped = block.item_count - len(items)
        blocks.append(
            TracedBlock(number, block.sm, us(block.begin_clock), us(end), items, dropped, merge)
        )
    return TracedLaunch(spec, tuple(blocks))


def _item(item: ItemStamps, us: Callable[[int], float], tile_kv: int) -> TracedItem:
    times = (item.keys, item.products, item.written, item.merged)
    return TracedItem(
        item.request,
        item.kv_head,
        item.row_begin,
        item.row_begin + item.num_rows,
        item.block_begin * tile_kv,
        item.block_end * tile_kv,
        item.slot,
        us(item.begin),
        *(us(at) if at else None for at in times),
    )


_EVENTS = (
    ("wait for keys", "keys_us"),
    ("products", "products_us"),
    ("write", "written_us"),
    ("merge", "merged_us"),
)
"""What an item does until each of its events."""
_WHAT = ("request", "kv_head", "row_begin", "row_end", "key_begin", "key_end", "slot")


def _process(launch: TracedLaunch) -> chrome_trace.Process:
    tracks = []
    for block in sorted(launch.blocks, key=lambda block: (block.sm, block.begin_us)):
        slices = [_slice(item) for item in block.items]
        if block.merge_us is not None:
            slices.append(chrome_trace.Slice("merges", *block.merge_us))
        tracks.append(chrome_trace.Track(f"SM {block.sm}, block {block.number}", slices))
    return chrome_trace.Process(f"{launch.spec.schedule}, measured", tracks)


def _slice(item: TracedItem) -> chrome_trace.Slice:
    inner, before = [], item.begin_us
    for name, field in _EVENTS:
        time = getattr(item, field)
        if time is not None:
            inner.append(chrome_trace.Slice(name, before, time))
            before = time
    facts = {name: getattr(item, name) for name in _WHAT}
    return chrome_trace.Slice(
        f"request {item.request}", item.begin_us, item.end_us, facts, tuple(inner)
    )
