"""The constants of a GPU: its ceilings, what plans take items to cost, and how long they do take.

Two tables, since they answer two questions. `PlanCosts` *judge*: which plan is the best one, where
real steps, not single kernels, were the measure; they are rounded to integers in `CostModel`.
`KernelTimes` *predict*: a fit to single kernels and made-up steps (`fit.py`), from which the
simulator tells the time of a step. A plan changes with the first table only.

`BUILT_IN` holds those of an H200. `cute-attn calibrate` measures those of another GPU; its plan
costs are the built-in ones, scaled as the times are (`Constants.plan_costs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar


@dataclass(frozen=True)
class Gpu:
    """Measured ceilings of a device.

    Attributes:
        name: for reports.
        sms: streaming multiprocessors.
        tflops: dense bf16 matrix product, TFLOP/s.
        read_gbps: streaming read from HBM by the whole device, GB/s.
        sm_read_gbps: the most that one SM reads when few do, GB/s.
    """

    name: str
    sms: int
    tflops: float
    read_gbps: float
    sm_read_gbps: float


H200 = Gpu("H200", sms=132, tflops=796.0, read_gbps=4633.0, sm_read_gbps=129.0)


@dataclass(frozen=True)
class PlanCosts:
    """What plans take the work of a kernel family to cost, if it has an SM to itself.

    Attributes:
        tile_ns: fixed cost of an item: Q load, pipeline fill and drain, output.
        masked_ns: what the masked KV blocks at one end of the visible band cost more than others.
        efficiency: share of `Gpu.tflops` that the loop over KV blocks reaches.
    """

    tile_ns: int
    masked_ns: int
    efficiency: float


@dataclass(frozen=True)
class KernelTimes:
    """How long the work of a kernel family takes, if it has an SM to itself.

    Attributes:
        start_us: from the begin of a launch to the first keys of its thread blocks.
        item_us: between two items of a block.
        masked_us: what the masked KV blocks at one end of the visible band take more than others.
        efficiency: share of `Gpu.tflops` that the loop over ragged KV blocks reaches.
        paged: share of that with paged KV, by TMA or (Ampere kernels) by `cp.async`.
        gather: share of that with pages that TMA cannot copy.
        read_share: share of `Gpu.read_gbps` that all blocks together reach.
        sm_share: share of `Gpu.sm_read_gbps` that the blocks of one SM reach.
        merge_us: from a tile's last partial result to the begin of reading them.
    """

    start_us: float
    item_us: float
    masked_us: float
    efficiency: float
    paged: float
    gather: float
    read_share: float
    sm_share: float
    merge_us: float

    def efficiency_with(self, loader: str) -> float:
        """Share of `Gpu.tflops` with a loader, as in the kernel's spec."""
        return self.efficiency * {"paged": self.paged, "gather": self.gather}.get(loader, 1.0)


_Row = TypeVar("_Row", PlanCosts, KernelTimes)
Table: TypeAlias = Mapping[str, Mapping[int, _Row]]
"""Rows of each kernel family, by the largest head_dim that they are for."""


def row_of(table: Table[_Row], schedule: str, head_dim: int) -> _Row:
    """The row for a kernel family at a head_dim (the larger of queries' and values').

    Raises:
        ValueError: unknown schedule.
    """
    if schedule not in table:
        raise ValueError(f"schedule is {schedule!r}; known: {', '.join(table)}")
    rows = table[schedule]
    return rows[min((dim for dim in rows if dim >= head_dim), default=max(rows))]


# Fits: time of an item over its KV blocks, full mask (slope: efficiency; rest: tile_ns), then what
# a causal mask adds (masked_ns).
_PLAN_COSTS: Table[PlanCosts] = {
    "hopper_tile": {
        # The exponentials bound it: 1.25 us per 128 keys, where the products take 0.7.
        64: PlanCosts(tile_ns=2000, masked_ns=300, efficiency=0.60),
        # 1.4 us per 128 keys. 3.5 us: Q 32 KB, first K block, last P V, output. Single kernels say
        # 2 us, but with that real steps lost up to 11 %: decodes among prefill cost more.
        128: PlanCosts(tile_ns=3500, masked_ns=300, efficiency=0.98),
        # One stage of Q (48 KB) at (192, 128): nothing of the next item is there when one ends.
        192: PlanCosts(tile_ns=4000, masked_ns=300, efficiency=0.95),
        # 1.9 us per 80 keys. One stage of Q, of 64 KB, and as much to write.
        256: PlanCosts(tile_ns=6000, masked_ns=300, efficiency=0.92),
        # The latent kernel (hopper_mla): Q of 72 KB, 64 KB to write, and nothing of the next item.
        576: PlanCosts(tile_ns=7000, masked_ns=300, efficiency=0.80),
    },
    # mma.sync: 1k and 4k keys at two blocks per SM, 6 us + 46 us per 1k keys at head_dim 128. The
    # diagonal blocks are no dearer than others where softmax is not what is waited for.
    "ampere_tile": {
        64: PlanCosts(tile_ns=3000, masked_ns=0, efficiency=0.42),
        128: PlanCosts(tile_ns=3000, masked_ns=0, efficiency=0.48),
        256: PlanCosts(tile_ns=3000, masked_ns=0, efficiency=0.42),
    },
    # Bound by what it reads: only tile_ns counts, the gap between two items. The other blocks of an
    # SM fill most of it: 6 us with one block, 3 with two, 2 with three.
    "ampere_decode": {256: PlanCosts(tile_ns=6000, masked_ns=0, efficiency=0.75)},
}

# A fit to the records of perf/results, as `python -m perf.fit_constants` prints it, rounded:
# sections A, A16, B, H, K, M, P, W of prefill, C and Q of decode, X of both. Real steps (section T)
# were held out. What no case tells has its source beside it.


def _hopper(item_us: float, masked_us: float, efficiency: float) -> KernelTimes:
    return KernelTimes(
        start_us=3.5,  # first scores 7 k cycles after the begin: a trace, perf/NOTES.md
        item_us=item_us,
        masked_us=masked_us,
        efficiency=efficiency,
        paged=0.972,  # sections P and B: pages of 16 and 64 against ragged
        gather=0.9,  # the same: pages of 1
        read_share=0.927,  # section Q: 4 to 16 tokens per request
        sm_share=1.0,  # 128 KB under way; never what a case waits for
        merge_us=_MERGE_US,
    )


def _ampere(item_us: float, masked_us: float, efficiency: float) -> KernelTimes:
    return KernelTimes(
        start_us=3.5,  # as `hopper_tile`
        item_us=item_us,
        masked_us=masked_us,
        efficiency=efficiency,
        paged=1.0,  # not measured
        gather=1.0,
        read_share=_READ_SHARE,
        sm_share=1.0,
        merge_us=_MERGE_US,
    )


_READ_SHARE = 0.96  # section C: decode
_MERGE_US = 1.5  # section C: decodes with split tiles against those without
_TIMES: Table[KernelTimes] = {
    "hopper_tile": {  # A and A16: 64, 128, 256; H: 80 to 112, 192; M: (192, 128); K, W: 128
        64: _hopper(1.6, 0.24, 0.774),
        80: _hopper(2.3, 1.9, 0.824),
        96: _hopper(4.3, 0.7, 0.945),
        112: _hopper(3.2, 0.34, 0.86),
        128: _hopper(1.6, 0.43, 0.935),
        192: _hopper(2.75, 0.4, 0.998),
        256: _hopper(5.2, 1.0, 1.03),
        576: _hopper(7.0, 0.3, 0.80),
    },
    "ampere_tile": {  # A at head_dim 128; the others' rates: perf/NOTES.md, run 4
        64: _ampere(3.0, 0.08, 0.42),
        128: _ampere(3.0, 0.08, 0.465),
        256: _ampere(3.0, 0.08, 0.42),
    },
    "ampere_decode": {
        256: KernelTimes(
            start_us=3.44,  # section C: what the smallest decodes take beside their keys
            item_us=6.0,  # with one block per SM, 3 with two, 2 with three: perf/NOTES.md
            masked_us=0.0,
            efficiency=0.75,  # never what a case waits for
            paged=1.0,
            gather=1.0,
            read_share=_READ_SHARE,
            sm_share=0.57,  # X: 74 GB/s; 28 to 52 SMs beside prefill read 67 to 71: perf/NOTES.md
            merge_us=_MERGE_US,
        )
    },
}


@dataclass(frozen=True)
class Constants:
    """The constants of one GPU.

    Attributes:
        gpu: its ceilings.
        times: of every kernel family.
        source: where they come from, for people.
    """

    gpu: Gpu = H200
    times: Table[KernelTimes] = field(default_factory=lambda: _TIMES)
    source: str = "built in, of an H200"

    def kernel_times(self, schedule: str, head_dim: int) -> KernelTimes:
        """Of a kernel family; see `row_of`."""
        return row_of(self.times, schedule, head_dim)

    def plan_costs(self, schedule: str, head_dim: int) -> PlanCosts:
        """Of a kernel family; see `row_of`. Those of an H200, longer or shorter by as much as what
        was measured: as they were where it is the same."""
        costs = row_of(_PLAN_COSTS, schedule, head_dim)
        own, known = (row_of(table, schedule, head_dim) for table in (self.times, _TIMES))
        longer = own.item_us / known.item_us
        return PlanCosts(
            tile_ns=max(round(costs.tile_ns * longer), 1),
            masked_ns=round(costs.masked_ns * longer),
            efficiency=costs.efficiency * (own.efficiency / known.efficiency),
        )


BUILT_IN = Constants()
