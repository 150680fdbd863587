"""`cute-attn demo`: attention of real serving steps, from lengths to checked answers.

With a GPU: generate and compile its kernels, then plan, run, check and time each step. Without one:
generate and compile for sm_80 and sm_90a, plan the steps for an A100 and an H200, and run them,
scaled down, on the CPU executor.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
import typer
from rich.console import Console

from cute_attn.api import BatchAttention, KernelSpec, causal, choose
from cute_attn.api.dispatch import Problem
from cute_attn.cli import demo_tables
from cute_attn.cli.compiling import Outcome, compile_all
from cute_attn.cli.demo_batch import (
    HEAD_DIM,
    HEADS,
    PAGE_SIZE,
    SMALL_HEADS,
    Batch,
    cache_bytes,
    make_batch,
    pick_steps,
    scale_down,
)
from cute_attn.cli.demo_check import Errors, compare
from cute_attn.cli.demo_timing import microseconds_per_run
from cute_attn.cli.plan_facts import GPU_SMS, PlanFacts, plan_step
from cute_attn.cli.presets import with_merges
from cute_attn.cli.terminal import output
from cute_attn.runtime import DriverError, device_info
from cute_attn.workloads import Step

ARCHS_WITHOUT_GPU = ("sm_80", "sm_90a")
_CHECK_BYTES = 4 << 30  # what the float64 check of a 120k-token request takes besides


@dataclass(frozen=True)
class StepResult:
    """What came of one step.

    Attributes:
        step: the lengths that ran.
        num_bytes, flops: see `Batch`.
        divided_by: what lengths were divided by; 1 on a GPU.
        plan: of the run.
        errors: against the dense softmax.
        us: time of a run; on the CPU that of the executor.
    """

    step: Step
    num_bytes: int
    flops: float
    divided_by: int
    plan: PlanFacts
    errors: Errors
    us: float

    @property
    def gbps(self) -> float:
        """Bytes that must be moved, over the time."""
        return self.num_bytes / self.us / 1e3

    @property
    def tflops(self) -> float:
        """FLOPs of visible pairs, over the time."""
        return self.flops / self.us / 1e6

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "step": self.step.name,
            "requests": [list(request) for request in self.step.requests],
            "divided_by": self.divided_by,
            "plan": self.plan.to_json(),
            "us": round(self.us, 1),
            "gbps": round(self.gbps, 1),
            "tflops": round(self.tflops, 1),
            "errors": asdict(self.errors),
            "passed": self.errors.passed,
        }


def run(count: int, *, device: str | None, jobs: int | None, as_json: bool) -> bool:
    """The demo on `count` steps.

    Returns:
        whether all kernels compiled and all answers were right.

    Raises:
        DriverError: device is "cuda" and torch sees none.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise DriverError("--device cuda: torch sees no CUDA device")
    on_gpu = torch.cuda.is_available() if device is None else device == "cuda"
    start = time.perf_counter()
    console = Console(quiet=True) if as_json else output()
    steps = pick_steps(count)
    gpu = device_info(torch.cuda.current_device()) if on_gpu else None
    archs = ARCHS_WITHOUT_GPU if gpu is None else (gpu.arch,)
    demo_tables.header(console, gpu, archs)

    specs = {(arch, alone): kernel_for(arch, alone) for arch in archs for alone in (False, True)}
    outcomes, seconds = compile_all(with_merges(specs.values()), jobs=jobs, show_bar=not as_json)
    demo_tables.kernels(console, outcomes, seconds)
    planned: list[demo_tables.Planned] = []
    results: list[StepResult] = []
    if all(outcome.status != "failed" for outcome in outcomes):
        if gpu is None:
            planned = predict(steps, specs)
            demo_tables.plans(console, planned, "Plans of the whole steps, for absent GPUs")
            results = run_on_cpu(steps)
            demo_tables.executed(console, results)
        else:
            results, skipped = run_on_gpu(steps)
            planned = [(result.step, gpu.name, result.plan) for result in results]
            demo_tables.plans(console, planned, "Plans")
            demo_tables.measured(console, results, skipped)
    correct = bool(results) and all(result.errors.passed for result in results)
    took = time.perf_counter() - start
    demo_tables.verdict(console, correct, took)
    if as_json:
        facts = report(gpu.name if gpu else "cpu", outcomes, planned, results)
        typer.echo(json.dumps(facts | {"passed": correct, "seconds": round(took, 1)}, indent=2))
    return correct


def kernel_for(arch: str, decodes_alone: bool) -> KernelSpec:
    """The attention kernel that a GPU of `arch` takes for decodes alone, or for prefill and mixed
    steps."""
    group = HEADS.qo // HEADS.kv
    problem = Problem(arch, "bf16", HEAD_DIM, HEAD_DIM, group, causal(), PAGE_SIZE)
    return choose(problem, rows=group if decodes_alone else None)


def predict(
    steps: list[Step], specs: dict[tuple[str, bool], KernelSpec]
) -> list[demo_tables.Planned]:
    """Plans of the steps, full size, for one GPU of each architecture: (step, GPU, plan)."""
    plans: list[demo_tables.Planned] = []
    for step in steps:
        alone = max(step.q_lens) == 1
        for arch in ARCHS_WITHOUT_GPU:
            name, sms = GPU_SMS[arch]
            spec = specs[arch, alone]
            plans.append((step, name, plan_step(step, spec, sms * spec.tile.blocks_per_sm)))
    return plans


def run_on_cpu(steps: list[Step]) -> list[StepResult]:
    """Scaled steps on the executor."""
    results = []
    for step in steps:
        small, divided_by = scale_down(step)
        batch = make_batch(small, SMALL_HEADS, torch.device("cpu"))
        attention, plan_ms = plan(batch, cuda_graph=False)
        start = time.perf_counter()
        out, lse = attention.run(batch.q, batch.cache, return_lse=True)
        us = (time.perf_counter() - start) * 1e6
        errors = compare(batch, out, lse)
        results.append(result_of(batch, attention, plan_ms, errors, us, divided_by))
    return results


def run_on_gpu(steps: list[Step]) -> tuple[list[StepResult], list[Step]]:
    """Steps on the current GPU, and those that do not fit in its memory."""
    results, skipped = [], []
    device = torch.device("cuda", torch.cuda.current_device())
    for step in steps:
        if cache_bytes(step, HEADS) + _CHECK_BYTES > torch.cuda.mem_get_info(device)[0]:
            skipped.append(step)
            continue
        batch = make_batch(step, HEADS, device)
        attention, plan_ms = plan(batch, cuda_graph=True)
        out, lse = attention.run(batch.q, batch.cache, return_lse=True)
        errors = compare(batch, out, lse)
        us = microseconds_per_run(attention, batch)
        results.append(result_of(batch, attention, plan_ms, errors, us, 1))
        del batch, attention, out, lse
        torch.cuda.empty_cache()
    return results, skipped


def plan(batch: Batch, *, cuda_graph: bool) -> tuple[BatchAttention, float]:
    """A planned `BatchAttention` and how long a plan takes, ms (the second: the first also loads
    kernels)."""
    attention = BatchAttention(
        batch.heads.qo, batch.heads.kv, HEAD_DIM, dtype=batch.q.dtype, variant="causal",
        device=batch.q.device, cuda_graph=cuda_graph,
    )  # fmt: skip
    attention.plan(batch.qo_indptr, batch.kv_format)
    start = time.perf_counter()
    attention.plan(batch.qo_indptr, batch.kv_format)
    return attention, (time.perf_counter() - start) * 1e3


def result_of(
    batch: Batch,
    attention: BatchAttention,
    plan_ms: float,
    errors: Errors,
    us: float,
    divided_by: int,
) -> StepResult:
    """The numbers of a run, without its tensors."""
    assert attention.last_plan is not None
    facts = PlanFacts.of(attention.last_plan, plan_ms)
    return StepResult(batch.step, batch.num_bytes, batch.flops, divided_by, facts, errors, us)


def report(
    device: str,
    outcomes: list[Outcome],
    planned: list[demo_tables.Planned],
    results: list[StepResult],
) -> dict[str, Any]:
    """Everything as JSON values."""
    return {
        "device": device,
        "kernels": [outcome.to_json() for outcome in outcomes],
        "plans": [
            {"step": step.name, "gpu": gpu, **facts.to_json()} for step, gpu, facts in planned
        ],
        "steps": [result.to_json() for result in results],
    }
