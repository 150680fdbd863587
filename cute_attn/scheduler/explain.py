"""`explain`: which thread block does what in the launches of a step, when, and for how many bytes.

    it = batch.explain()               # of a planned BatchAttention; or plan.explain()
    print(it)                          # a table; a summary where there are many items
    it.plot("step.svg")                # the timeline (needs matplotlib)
    it.trace("step.json")              # the same for ui.perfetto.dev
    it.launches[0].blocks[17].items    # the numbers

Times are those that the simulator predicts (`simulator.py`): all blocks, of launches side by side
as well, share the bandwidth, and the next block starts where one ends. Who computes what was
decided by the plan's cost model, which knows nothing of that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cute_attn.abi import Item, WorkWalker
from cute_attn.scheduler import chrome_trace
from cute_attn.scheduler.plan import Plan
from cute_attn.scheduler.simulator import (
    LaunchItems,
    Report,
    simulate_in_turn,
    simulate_items,
)
from cute_attn.scheduler.timing import Timing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Launch:
    """A launch to be explained.

    Attributes:
        plan: what it computes.
        name: of its kernel, for people.
        timing: of its kernel; default: its work takes as long as the plan takes it to cost.
    """

    plan: Plan
    name: str = "one launch"
    timing: Timing | None = None

    @property
    def known_timing(self) -> Timing:
        """The kernel's, or the plan's costs."""
        return Timing.of(self.plan.cost) if self.timing is None else self.timing


class ExplainedItem(NamedTuple):
    """One piece of work of a thread block: query rows of one (request, KV head) against keys.

    Attributes:
        request: index in the caller's order.
        kv_head: the KV head; its query heads are packed in the rows.
        row_begin, row_end: packed rows: row r is query token r // group of the request under query
            head kv_head * group + r % group.
        key_begin, key_end: keys that are read, counted from the request's first one. Whole KV
            blocks: single rows may see fewer. KV blocks between them that a mask empties are not
            read.
        slot: partial result that is written, or -1: no other item shares the tile.
        start_us, end_us: when, from the begin of the launch.
        kv_bytes: K and V that are loaded, from HBM or the L2 cache.
    """

    request: int
    kv_head: int
    row_begin: int
    row_end: int
    key_begin: int
    key_end: int
    slot: int
    start_us: float
    end_us: float
    kv_bytes: int


@dataclass(frozen=True)
class ExplainedBlock:
    """What one thread block does.

    Attributes:
        number: in the grid.
        place: which of the blocks that run at the same time it is, or follows.
        items: in their order.
        end_us: when it is done, but for merges; 0 if it has no items.
    """

    number: int
    place: int
    items: tuple[ExplainedItem, ...]
    end_us: float

    @property
    def kv_bytes(self) -> int:
        """K and V that it loads."""
        return sum(item.kv_bytes for item in self.items)


@dataclass(frozen=True)
class SplitTile:
    """A tile whose keys several items share, and which is merged from their partial results.

    Attributes:
        request, kv_head, row_begin, row_end: as in `ExplainedItem`.
        first_slot: partial results [first_slot, first_slot + len(blocks)), in key order.
        blocks: thread blocks of the pieces, in key order.
        merge_us: reading them again.
    """

    request: int
    kv_head: int
    row_begin: int
    row_end: int
    first_slot: int
    blocks: tuple[int, ...]
    merge_us: float


@dataclass(frozen=True)
class ExplainedLaunch:
    """One launch.

    Attributes:
        name: of its kernel.
        plan: what was explained.
        blocks_per_sm: thread blocks that share an SM.
        blocks: what each thread block of the grid does.
        splits: tiles that are merged, by their place in the plan.
        merge_us: what merging adds after the busiest block.
        distinct_kv_bytes: K and V that the launch needs, each key once per KV head.
        begin_us: when it begins, where it follows another one; else 0.
        ends_us: when each of the blocks that run at the same time is done, with those that follow
            it.
    """

    name: str
    plan: Plan
    blocks_per_sm: int
    blocks: tuple[ExplainedBlock, ...]
    splits: tuple[SplitTile, ...]
    merge_us: float
    distinct_kv_bytes: int
    begin_us: float
    ends_us: tuple[float, ...]

    @property
    def num_sms(self) -> int:
        """SMs that it fills."""
        return -(-len(self.ends_us) // self.blocks_per_sm)

    @property
    def num_items(self) -> int:
        """Pieces of work of all blocks."""
        return sum(len(block.items) for block in self.blocks)

    @property
    def kv_bytes(self) -> int:
        """K and V that all blocks load."""
        return sum(block.kv_bytes for block in self.blocks)

    @property
    def busiest_us(self) -> float:
        """When the last block is done."""
        return max(self.ends_us)

    @property
    def mean_us(self) -> float:
        """When the blocks that run at the same time are done, in the mean."""
        return sum(self.ends_us) / len(self.ends_us)

    @property
    def imbalance(self) -> float:
        """The last block over the mean, from the begin of the launch; 1.0 is perfect."""
        mean = self.mean_us - self.begin_us
        return (self.busiest_us - self.begin_us) / mean if mean > 0 else 1.0

    @property
    def predicted_us(self) -> float:
        """The last block, and the merge."""
        return self.busiest_us + self.merge_us


@dataclass(frozen=True)
class Explanation:
    """Which thread block does what in a step; `str()` is a table.

    Attributes:
        launches: one, or two that run side by side on SMs of their own, or one after the other.
        in_turn: one after the other.
    """

    launches: tuple[ExplainedLaunch, ...]
    in_turn: bool = False

    @property
    def predicted_us(self) -> float:
        """Time of the step: of the longest launch."""
        return max(launch.predicted_us for launch in self.launches)

    @property
    def imbalance(self) -> float:
        """The last block of all over the mean, every SM weighed alike; 1.0 is perfect. Of launches
        in turn: of each one, added up."""
        if self.in_turn:
            busiest = sum(launch.busiest_us - launch.begin_us for launch in self.launches)
            mean = sum(launch.mean_us - launch.begin_us for launch in self.launches)
            return busiest / mean if mean > 0 else 1.0
        sms = sum(launch.num_sms for launch in self.launches)
        mean = sum(launch.mean_us * launch.num_sms for launch in self.launches) / sms
        busiest = max(launch.busiest_us for launch in self.launches)
        return busiest / mean if mean else 1.0

    @property
    def kv_bytes(self) -> int:
        """K and V that all blocks load."""
        return sum(launch.kv_bytes for launch in self.launches)

    @property
    def num_items(self) -> int:
        """Pieces of work of all launches."""
        return sum(launch.num_items for launch in self.launches)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every item as a dict, e.g. for a data frame: launch, block, and fields of the item."""
        for number, launch in enumerate(self.launches):
            for block in launch.blocks:
                for item in block.items:
                    yield {"launch": number, "block": block.number, **item._asdict()}

    def __str__(self) -> str:
        return self.text()

    def text(self, max_items: int = 48) -> str:
        """Tables for people.

        Args:
            max_items: a launch of more items than this is summed up: the blocks that are done last
                and first, and a histogram.
        """
        from cute_attn.scheduler.explain_text import text_of

        return text_of(self, max_items)

    def figure(self) -> Figure:
        """The timeline: time to the right, SMs upwards, colours for requests.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.
        """
        from cute_attn.scheduler.timeline import draw

        return draw(self)

    def plot(self, path: str | Path) -> Path:
        """Writes the timeline.

        Args:
            path: a file name; its ending says the format: .png, .svg, .pdf, ...

        Returns:
            path.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.
            ValueError: an ending that matplotlib does not write.
        """
        from cute_attn.scheduler.timeline import save

        return save(self, Path(path))

    def trace(self, path: str | Path) -> Path:
        """Writes the timeline for Perfetto (https://ui.perfetto.dev) or chrome://tracing.

        Args:
            path: a file name, by custom one that ends in .json.

        Returns:
            path.

        Raises:
            ValueError: it cannot be written.
        """
        return chrome_trace.write(path, self.processes())

    def processes(self) -> list[chrome_trace.Process]:
        """The timeline as `trace` writes it: a process per launch, a thread per thread block."""
        return [_process(launch) for launch in self.launches]


def _process(launch: ExplainedLaunch) -> chrome_trace.Process:
    tracks = []
    for block in sorted(launch.blocks, key=lambda block: (block.place, block.number)):
        slices = [
            chrome_trace.Slice(
                f"request {item.request}",
                item.start_us,
                item.end_us,
                {name: getattr(item, name) for name in item._fields if name not in _TIMES},
            )
            for item in block.items
        ]
        sm = block.place // launch.blocks_per_sm
        tracks.append(chrome_trace.Track(f"SM {sm}, block {block.number}", slices))
    if launch.merge_us:
        merge = chrome_trace.Slice("merge", launch.busiest_us, launch.predicted_us)
        tracks.append(chrome_trace.Track("merge", [merge]))
    return chrome_trace.Process(f"{launch.name}, predicted", tracks)


_TIMES = ("start_us", "end_us")


def explain(*launches: Launch, in_turn: bool = False) -> Explanation:
    """Explains the launches of one step.

    Args:
        launches: one, or several that run at the same time, each on SMs of its own.
        in_turn: they run one after the other, each on all SMs.

    Raises:
        ValueError: no launch.
    """
    if not launches:
        raise ValueError("explain takes at least one launch")
    items = [LaunchItems.of_plan(launch.plan) for launch in launches]
    simulate = simulate_in_turn if in_turn else simulate_items
    reports = simulate(items, [launch.known_timing for launch in launches])
    begins = [0.0] * len(launches)
    if in_turn:
        begins[1:] = np.maximum.accumulate(
            [report.predicted_us for report in reports[:-1]]
        ).tolist()
    of_launches = zip(launches, items, reports, begins, strict=True)
    return Explanation(tuple(_explain(*of_launch) for of_launch in of_launches), in_turn)


def _explain(
    launch: Launch, items: LaunchItems, report: Report, begin_us: float
) -> ExplainedLaunch:
    plan, timing = launch.plan, launch.known_timing
    requests, reads = plan.requests, items.reads
    kv_bytes = (reads.keys * timing.key_bytes).tolist()
    of_items = zip(
        map(Item._make, reads.table.tolist()), kv_bytes, report.items_us.tolist(), strict=True
    )
    assert requests.ids is not None
    callers = plan.geometry.callers_request(requests.ids).tolist()
    kv_len = requests.kv_len.tolist()
    tile_kv = items.geometry.tile_kv

    explained = [
        ExplainedItem(
            request=callers[item.request],
            kv_head=item.kv_head,
            row_begin=item.row_begin,
            row_end=item.row_begin + item.num_rows,
            key_begin=min(item.block_begin * tile_kv, kv_len[item.request]),
            key_end=min(item.block_end * tile_kv, kv_len[item.request]),
            slot=item.slot,
            start_us=start_us,
            end_us=end_us,
            kv_bytes=size,
        )
        for item, size, (start_us, end_us) in of_items
    ]
    cuts = np.r_[0, items.sizes.cumsum()].tolist()
    blocks = [
        ExplainedBlock(number, place, tuple(explained[cuts[number] : cuts[number + 1]]), end_us)
        for number, (place, end_us) in enumerate(
            zip(report.place.tolist(), report.busy_us.tolist(), strict=True)
        )
    ]
    return ExplainedLaunch(
        name=launch.name,
        plan=plan,
        blocks_per_sm=timing.blocks_per_sm,
        blocks=tuple(blocks),
        splits=_splits(plan, items, timing),
        merge_us=report.merge_us,
        distinct_kv_bytes=int(reads.once.sum()) * timing.key_bytes,
        begin_us=begin_us,
        ends_us=tuple(np.maximum(report.places_us, begin_us).tolist()),
    )


def _splits(plan: Plan, items: LaunchItems, timing: Timing) -> tuple[SplitTile, ...]:
    pieces: dict[int, dict[int, int]] = defaultdict(dict)  # tile: {slot: thread block}
    whole: dict[int, Item] = {}
    for block, row in zip(items.of_block.tolist(), items.reads.table.tolist(), strict=True):
        item = Item._make(row)
        if item.slot >= 0:
            pieces[item.tile][item.slot] = block
            whole[item.tile] = item
    found = []
    walker = WorkWalker(plan.view)
    for tile, record, first_slot, num_slots in walker.split_tiles():
        item, in_order = whole[tile], sorted(pieces[tile].items())
        split = SplitTile(
            request=walker.callers_request(record),
            kv_head=item.kv_head,
            row_begin=item.row_begin,
            row_end=item.row_begin + item.num_rows,
            first_slot=first_slot,
            blocks=tuple(block for _, block in in_order),
            merge_us=timing.merge(float(num_slots * item.num_rows)),
        )
        found.append(split)
    return tuple(found)
