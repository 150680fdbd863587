"""What a plan says about the balance of a step, in numbers for people."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from cute_attn.api import KernelSpec, Problem, RaggedKV, choose
from cute_attn.api.dispatch import geometry, is_long, tiles_per_sm
from cute_attn.api.side_by_side import SideBySide
from cute_attn.api.step import make_step
from cute_attn.scheduler import CostModel, Plan, RequestBatch, plan_batch, simulate_plans
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


class Part(NamedTuple):
    """Requests of a step that one launch serves.

    Attributes:
        spec: the kernel; its variant takes its default scalars.
        requests: lengths.
        num_blocks: thread blocks of the grid.
    """

    spec: KernelSpec
    requests: RequestBatch
    num_blocks: int

    def plan(self) -> Plan:
        """The launch's plan; no GPU is needed."""
        spec = self.spec
        band = spec.variant.band.resolve(spec.variant.values())
        cost = CostModel.for_kernel(
            spec.head_dim_qk,
            spec.head_dim_vo,
            schedule=spec.schedule,
            blocks_per_sm=spec.tile.blocks_per_sm,
        )
        tiles = geometry(spec, NUM_KV_HEADS, band)
        return plan_batch(self.requests, tiles, self.num_blocks, cost=cost)


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
        reports = simulate_plans(plans, [part.spec.tile.blocks_per_sm for part in parts])
        model_us = [report.predicted_us for report in reports]
    facts = (PlanFacts.of(*of_launch) for of_launch in zip(plans, plan_ms, model_us, strict=True))
    return list(zip(facts, plans, strict=True))


def requests_of(step: Step) -> RequestBatch:
    """A step's requests, one after the other in memory."""
    return RequestBatch.from_lengths(np.array(step.q_lens), np.array(step.kv_lens))


def plan_step(step: Step, spec: KernelSpec, num_blocks: int) -> PlanFacts:
    """Plans a step for a kernel and a grid; no GPU is needed.

    Args:
        step: lengths.
        spec: the kernel; its variant takes its default scalars.
        num_blocks: thread blocks of the grid.
    """
    return facts_of([Part(spec, requests_of(step), num_blocks)])[0][0]


def parts_of(step: Step, problem: Problem, num_sms: int) -> list[Part]:
    """The launches of a step as `BatchAttention` makes them: one, or two side by side.

    Args:
        step: lengths.
        problem: what the kernels are chosen by.
        num_sms: of the GPU.
    """
    rows, keys = (np.r_[0, np.cumsum(lengths)] for lengths in (step.q_lens, step.kv_lens))
    whole = make_step(rows, RaggedKV(keys), problem.variant, None, torch.device("cpu"))
    split = SideBySide(problem, NUM_KV_HEADS, num_sms).split(whole)
    parts = [(whole, num_sms)]
    if split is not None:
        sms = split.prefill_sms
        parts = [(split.prefill, sms), (split.decode, num_sms - sms)]
    found = []
    for part, sms in parts:
        requests = part.requests
        rows = int(requests.q_len.max(initial=0)) * problem.group
        tiles = tiles_per_sm(requests.q_len, rows, NUM_KV_HEADS, sms)
        long = is_long(problem, requests.q_len, requests.kv_len, part.band)
        spec = choose(problem, rows=rows, tiles_per_sm=tiles, long=long)
        found.append(Part(spec, requests, sms * spec.tile.blocks_per_sm))
    return found
