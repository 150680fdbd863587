"""What a plan says about the balance of a step, in numbers for people."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cute_attn.api import KernelSpec
from cute_attn.api.dispatch import geometry
from cute_attn.api.launches import Part, timing_of
from cute_attn.scheduler import Plan, RequestBatch, simulate_plans
from cute_attn.workloads import Step

GPU_SMS = {
    "sm_80": ("A100", 108),
    "sm_86": ("RTX A6000", 84),
    "sm_89": ("L40S", 142),
    "sm_90": ("H200", 132),
    "sm_90a": ("H200", 132),
}
"""A GPU of each architecture, and its streaming multiprocessors."""

NUM_KV_HEADS = 8
_REPEATS = 5


@dataclass(frozen=True)
class PlanFacts:
    """A plan in numbers.

    Attributes:
        requests: in the step.
        thread_blocks: of the persistent grid.
        tiles: query tiles of all requests and KV heads.
        split_tiles: those whose KV is shared by several blocks, and merged.
        pieces: what the blocks compute: tiles, and pieces of split tiles.
        imbalance: cost of the busiest block over the mean, by the cost model; 1 is perfect.
        plan_ms: host time of planning, median.
        model_us: time of the step that the simulator predicts for an H200; None elsewhere.
    """

    requests: int
    thread_blocks: int
    tiles: int
    split_tiles: int
    pieces: int
    imbalance: float
    plan_ms: float
    model_us: float | None = None

    @classmethod
    def of(cls, plan: Plan, plan_ms: float, model_us: float | None = None) -> PlanFacts:
        """Facts of a plan that took `plan_ms`."""
        return cls(
            requests=plan.num_requests,
            thread_blocks=plan.layout.num_blocks,
            tiles=plan.num_tiles,
            split_tiles=plan.num_split_tiles,
            pieces=plan.num_tiles - plan.num_split_tiles + plan.num_slots,
            imbalance=plan.imbalance,
            plan_ms=plan_ms,
            model_us=model_us,
        )

    def to_json(self) -> dict[str, Any]:
        """Rounded, as JSON values."""
        facts = asdict(self)
        for name in ("imbalance", "plan_ms"):
            facts[name] = round(facts[name], 3)
        if self.model_us is not None:
            facts["model_us"] = round(self.model_us, 1)
        return facts


def facts_of(parts: Sequence[Part]) -> list[tuple[PlanFacts, Plan]]:
    """Plans the launches of a step, each several times for the clock."""
    plans, plan_ms = [], []
    for part in parts:
        times = []
        for _ in range(_REPEATS):
            start = time.perf_counter()
            plan = part.plan()
            times.append((time.perf_counter() - start) * 1e3)
        plans.append(plan)
        plan_ms.append(statistics.median(times))
    model_us: list[float | None] = [None] * len(parts)
    if parts[0].spec.arch in ("sm_90", "sm_90a"):  # the simulator knows the ceilings of an H200
        reports = simulate_plans(plans, [timing_of(part.spec) for part in parts])
        model_us = [report.predicted_us for report in reports]
    facts = (PlanFacts.of(*of_launch) for of_launch in zip(plans, plan_ms, model_us, strict=True))
    return list(zip(facts, plans, strict=True))


def part_of(step: Step, spec: KernelSpec, num_blocks: int) -> Part:
    """A step as one launch of a given kernel on a given grid."""
    requests = RequestBatch.from_lengths(np.array(step.q_lens), np.array(step.kv_lens))
    band = spec.variant.band.resolve(spec.variant.values())
    return Part(spec, requests, geometry(spec, NUM_KV_HEADS, band), num_blocks)


def plan_step(step: Step, spec: KernelSpec, num_blocks: int) -> PlanFacts:
    """Plans a step for a kernel and a grid; no GPU is needed.

    Args:
        step: lengths.
        spec: the kernel; its variant takes its default scalars.
        num_blocks: thread blocks of the grid.
    """
    return facts_of([part_of(step, spec, num_blocks)])[0][0]
