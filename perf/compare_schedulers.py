"""Our plans against Algorithm 1 of the FlashInfer paper, on the benchmarks' workloads; no GPU.

    python -m perf.compare_schedulers [--match TEXT] [--cases] [--readme]

Both hand out the tiles of the kernel that serves a case to the thread blocks of an H200, and the
same cost model and simulator judge both (what the simulator's times are worth:
tests/perf/test_predictions.py). Everything is computed from lengths and nothing is timed:
equal sources give equal tables. `--cases` prints every case, `--readme` writes the table into
cute_attn/scheduler/README.md.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cute_attn import KernelSpec
from cute_attn.abi import Item
from cute_attn.api.dispatch import geometry
from cute_attn.api.launches import cost_of, timing_of
from cute_attn.scheduler import (
    H200,
    CostModel,
    Geometry,
    RequestBatch,
    Timing,
    plan_batch,
    plan_items,
    plan_min_heap,
    prices_of,
    reads_of,
    simulate,
    simulate_plans,
)
from perf.cases import Case, decode, prefill, steps

README = Path(__file__).parents[1] / "cute_attn" / "scheduler" / "README.md"
MARKS = ("<!-- python -m perf.compare_schedulers --readme -->\n", "<!-- end -->\n")
OFF = 0.4
"""What plans with wrong costs take the fixed cost of an item for, of what it is."""
ITEM_BYTES = 4 * len(Item._fields)
_MOMENTS = 16  # at which the keys in use are counted

Blocks = Sequence[Sequence[Item]]


@dataclass(frozen=True)
class Setting:
    """A case as schedulers see it: requests, and the kernel on the thread blocks of an H200."""

    requests: RequestBatch
    geometry: Geometry
    cost: CostModel
    timing: Timing

    @classmethod
    def of(cls, case: Case, spec: KernelSpec) -> Setting:
        """All requests of a case, served by one kernel."""
        band = case.variant.band.resolve(case.variant.values(case.scalars))
        requests = RequestBatch.from_lengths(np.array(case.q_lens), np.array(case.kv_lens))
        tiles = geometry(spec, case.num_kv_heads, band)
        return cls(requests, tiles, cost_of(spec), timing_of(spec))

    @property
    def arguments(self) -> tuple[RequestBatch, Geometry, int]:
        """What both schedulers take first."""
        return self.requests, self.geometry, H200.sms * self.timing.blocks_per_sm

    def simulated_us(self, blocks: Blocks) -> tuple[float, float]:
        """Time of the step, and of the same tiles, none split, spread evenly."""
        report = simulate(blocks, self.requests, self.geometry, self.timing)
        return report.predicted_us, report.ideal_us

    def wrong(self) -> CostModel:
        """Costs that are off."""
        return replace(self.cost, tile_ns=round(self.cost.tile_ns * OFF))


@dataclass(frozen=True)
class Result:
    """What one scheduler made of a case.

    Attributes:
        us: time of the step by the simulator.
        ideal_us: of the same tiles, none split, spread evenly.
        model_ns: busiest thread block and merge by the cost model.
        wrong_us: as `us`, planned with wrong costs.
        in_use_mb: K and V that are read at the same time, each key once, in the mean.
        work_bytes: what a kernel is told: the plan, or the list of items.
    """

    us: float
    ideal_us: float
    model_ns: int
    wrong_us: float
    in_use_mb: float
    work_bytes: int


@dataclass(frozen=True)
class Row:
    """A case under both schedulers; `us_beside`: in two launches, where a batch makes two."""

    cfg: str
    ours: Result
    theirs: Result
    us_beside: float | None = None


def workloads() -> dict[str, list[Case]]:
    """The cases, by the rows of the table."""
    paged = [case for case in decode() if " p16 " in case.cfg]
    few = [case for case in paged if len(case.kv_lens) <= 4]
    dense = [case for case in prefill() if case.sec == "A" and case.head_dim == 128]
    return {
        "decode, batch 1 and 4": few,
        "decode, batch 16 to 256": [case for case in paged if case not in few],
        "real steps": steps(),
        "chunks of 256 rows, 8k to 128k keys": [case for case in prefill() if case.sec == "K"],
        "prefill, 16 prompts": [c for c in prefill() if c.sec == "B" and c.page_size == 16],
        "prefill, dense, causal": [case for case in dense if case.is_causal],
        "prefill, dense, full": [case for case in dense if not case.is_causal],
    }


def measure(case: Case) -> Row:
    """Both schedulers on one case."""
    setting = Setting.of(case, case.spec("sm_90a"))
    plan = plan_batch(*setting.arguments, cost=setting.cost)
    wrong = plan_items(plan_batch(*setting.arguments, cost=setting.wrong()))
    ours = _judge(setting, plan_items(plan), wrong, 4 * plan.buffer.size)
    heap = plan_min_heap(*setting.arguments, cost=setting.cost).blocks
    wrong = plan_min_heap(*setting.arguments, cost=setting.wrong()).blocks
    theirs = _judge(setting, heap, wrong, ITEM_BYTES * sum(map(len, heap)))
    return Row(case.cfg, ours, theirs, _beside_us(case))


def _judge(setting: Setting, blocks: Blocks, wrong: Blocks, work_bytes: int) -> Result:
    us, ideal_us = setting.simulated_us(blocks)
    return Result(
        us=us,
        ideal_us=ideal_us,
        model_ns=model_ns(setting, blocks),
        wrong_us=setting.simulated_us(wrong)[0],
        in_use_mb=_in_use_mb(setting, blocks),
        work_bytes=work_bytes,
    )


def model_ns(setting: Setting, blocks: Blocks) -> int:
    """Busiest block and merge by the cost model: what `Plan` says of its own items."""
    prices = prices_of(setting.requests, setting.geometry, setting.cost)
    items = [item for block in blocks for item in block]
    table = reads_of(items, setting.requests, setting.geometry).table
    of_block = np.repeat(np.arange(len(blocks)), [len(block) for block in blocks])
    loads = np.zeros(len(blocks), np.int64)
    np.add.at(loads, of_block, prices.of_items(table))
    pieces = table[table[:, -1] >= 0]
    _, first, count = np.unique(pieces[:, 1], return_index=True, return_counts=True)
    merges = (
        prices.of_merge(int(pieces[at, 0]), int(size))
        for at, size in zip(first, count, strict=True)
    )
    return int(loads.max()) + max(merges, default=0)


def _in_use_mb(setting: Setting, blocks: Blocks) -> float:
    """K and V of the items that run at the same time, at moments between begin and end."""
    prices = prices_of(setting.requests, setting.geometry, setting.cost)
    items = [item for block in blocks for item in block]
    reads = reads_of(items, setting.requests, setting.geometry)
    costs, begin, end = prices.of_items(reads.table), reads.table[:, 5], reads.table[:, 6]
    ends = costs.cumsum()
    sizes = [len(block) for block in blocks]
    before = np.r_[0, ends][np.r_[0, np.cumsum(sizes)[:-1]]].repeat(sizes)
    ends -= before
    last = int(ends.max())
    blocks_read = 0
    for moment in range(_MOMENTS):
        now = (2 * moment + 1) * last // (2 * _MOMENTS)
        running = (ends - costs <= now) & (now < ends)
        low = np.full(reads.once.size, np.iinfo(np.int64).max)
        high = np.zeros_like(low)
        np.minimum.at(low, reads.owner[running], begin[running])
        np.maximum.at(high, reads.owner[running], end[running])
        blocks_read += int(np.maximum(high - np.minimum(low, high), 0).sum())
    block_bytes = setting.geometry.tile_kv * setting.cost.key_bytes
    return blocks_read * block_bytes / _MOMENTS / 1e6


def _beside_us(case: Case) -> float | None:
    """Time of two launches side by side, where `BatchAttention` makes two of the step."""
    parts = case.parts("sm_90a")
    if len(parts) == 1:
        return None
    timings = [timing_of(part.spec) for part in parts]
    reports = simulate_plans([part.plan() for part in parts], timings)
    return max(report.predicted_us for report in reports)


def _mean(values: Iterable[float]) -> float:
    """Geometric."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


HEADER = (
    "workload (cases)",
    "time, simulator",
    "worst to best",
    "time, cost model",
    "ours / ideal",
    "wrong costs",
    "K, V in use, MB",
    "told, kB",
)


def table(results: dict[str, list[Row]]) -> str:
    """The table, as Markdown."""
    lines = [HEADER, ("---",) * len(HEADER)]
    for name, rows in results.items():
        times = [row.theirs.us / row.ours.us for row in rows]
        model = _mean(row.theirs.model_ns / row.ours.model_ns for row in rows)
        wrong = [max(x.wrong_us / x.us for x in pair) for pair in _both(rows)]
        in_use = [sum(x.in_use_mb for x in pair) / len(rows) for pair in _both(rows)]
        told = [sum(x.work_bytes for x in pair) / len(rows) / 1e3 for pair in _both(rows)]
        ideal = _mean(row.ours.us / row.ours.ideal_us for row in rows)
        line = (
            f"{name} ({len(rows)})",
            f"{_mean(times):.3f}",
            _range(times),
            f"{model:.3f}",
            f"{ideal:.3f}",
            f"{wrong[0]:.2f} / {wrong[1]:.2f}",
            f"{in_use[0]:.0f} / {in_use[1]:.0f}",
            f"{told[0]:.0f} / {told[1]:.0f}",
        )
        lines.append(line)
        beside = [(row, row.us_beside) for row in rows if row.us_beside is not None]
        if beside:
            times = [row.theirs.us / us for row, us in beside]
            name = f"those that are two launches, side by side ({len(beside)})"
            lines.append((name, f"{_mean(times):.3f}", _range(times), *[""] * 5))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def _both(rows: Sequence[Row]) -> tuple[list[Result], list[Result]]:
    return [row.ours for row in rows], [row.theirs for row in rows]


def put_in(page: str, made: str) -> str:
    """The page with this table between its marks."""
    before, begin, rest = page.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not begin or not end:
        raise ValueError(f"the page has no lines {MARKS[0].strip()} and {MARKS[1].strip()}")
    return f"{before}{begin}\n{made}\n{end}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--match", default="", help="only cases whose cfg contains this")
    parser.add_argument("--cases", action="store_true", help="print every case")
    parser.add_argument("--readme", action="store_true", help="write the table into the page")
    options = parser.parse_args()
    results: dict[str, list[Row]] = {}
    for name, cases in workloads().items():
        rows = [measure(case) for case in cases if options.match in case.cfg]
        if rows:
            results[name] = rows
        for row in rows if options.cases else ():
            beside = "" if row.us_beside is None else f"  side by side {row.us_beside:8.1f}"
            times = f"ours {row.ours.us:8.1f} us  Algorithm 1 {row.theirs.us:8.1f} us"
            print(f"{row.cfg:28s} {times}{beside}")
    made = table(results)
    if options.readme:
        README.write_text(put_in(README.read_text(), made))
    print(made, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
