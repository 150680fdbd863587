"""Times of the planner alone (section N): `RequestBatch`, then `plan_batch`; needs no GPU.

    python -m perf.bench_plan [--quick] [--match TEXT] [--out FILE]

Each is timed by itself and called again and again: caches and branch predictors know the case, as
they do in a server that plans steps of one kind. Of the decode batches also `next_us`, the mean of
steps in a row of a token each, of which some are copies of the one before; and, where there is a
GPU, `device_us`: a plan made on the device, in a replayed CUDA graph.
"""

from __future__ import annotations

import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from cute_attn import BatchAttention, DeviceKV
from cute_attn.api.dispatch import geometry
from cute_attn.scheduler import CostModel, Geometry, PlanMemory, RequestBatch, plan_batch
from cute_attn.scheduler.constants import H200
from perf import harness, records
from perf.cases import Case, steps

BATCHES = (1, 16, 64, 256, 1024, 4096)
MOST_KEYS = 8192
QUICK = ("decode b16", "decode b256", "prefill b8 c8192")
REPEATS = 400
GRAPH_PLANS, REPLAYS = 50, 20
TOKENS, ROUNDS = 64, 5  # of steps in a row
PAGE_SIZE = 16


@dataclass(frozen=True)
class Step:
    """One case: lengths of a step, and what its kernel asks for on an H200."""

    cfg: str
    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    geometry: Geometry
    num_blocks: int
    cost: CostModel

    @classmethod
    def of(cls, cfg: str, q_lens: tuple[int, ...], kv_lens: tuple[int, ...]) -> Step:
        """The step in one launch: 32/8 heads, head_dim 128, causal."""
        case = Case("N", cfg, q_lens, kv_lens, 32, 8, 128, PAGE_SIZE, True)
        spec = case.spec("sm_90a")
        per_sm = spec.tile.blocks_per_sm
        cost = CostModel.for_kernel(schedule=spec.schedule, blocks_per_sm=per_sm)
        tiles = geometry(spec, case.num_kv_heads, case.variant.band.resolve({}))
        return cls(cfg, q_lens, kv_lens, tiles, H200.sms * per_sm, cost)


def cases() -> list[Step]:
    """Decode batches of random lengths, a long prefill, and the real steps of section T."""
    found = []
    for batch in BATCHES:
        draw = random.Random(0)
        keys = tuple(draw.randint(1, MOST_KEYS) for _ in range(batch))
        found.append(Step.of(f"decode b{batch}", (1,) * batch, keys))
    found.append(Step.of("prefill b8 c8192", (8192,) * 8, (8192,) * 8))
    return found + [Step.of(case.cfg, case.q_lens, case.kv_lens) for case in steps()]


def measure(step: Step, repeats: int) -> dict[str, float]:
    """Median microseconds of the two calls."""
    q_len, kv_len = np.array(step.q_lens), np.array(step.kv_lens)
    addresses = np.cumsum(q_len) - q_len, np.cumsum(kv_len) - kv_len

    def batch() -> RequestBatch:
        return RequestBatch(addresses[0], q_len, addresses[1], kv_len)

    def timed(call: Callable[[], object]) -> float:
        return harness.host_us(lambda i: call(), repeats)

    requests = batch()
    batch_us = timed(batch)
    plan_us = timed(lambda: plan_batch(requests, step.geometry, step.num_blocks, cost=step.cost))
    return {"us": batch_us + plan_us, "batch_us": batch_us, "plan_us": plan_us}


def next_us(step: Step) -> float:
    """Mean microseconds of `plan_batch` over steps in a row of a token each, as a server plans
    them: with the memory of the step before. The fastest of some rounds."""
    count = len(step.q_lens)
    q_len, kv_len = np.ones(count, np.int64), np.array(step.kv_lens)
    kv_start = np.cumsum(kv_len) - kv_len
    batches = [RequestBatch(np.arange(count), q_len, kv_start, kv_len + i) for i in range(TOKENS)]
    rounds = []
    for _ in range(ROUNDS):
        memory, begin = PlanMemory(), time.perf_counter()
        for batch in batches:
            plan_batch(batch, step.geometry, step.num_blocks, cost=step.cost, memory=memory)
        rounds.append(time.perf_counter() - begin)
    return 1e6 * min(rounds) / TOKENS


def device_us(step: Step) -> float:
    """Microseconds of a plan made on the device: one of many in a replayed graph, launch
    included."""
    kv_format, _ = harness.page_format(step.kv_lens, PAGE_SIZE)
    count = len(step.kv_lens)
    batch = BatchAttention(32, 8, 128, cuda_graph=True, max_requests=count)
    batch.plan(range(count + 1), kv_format)
    pages = -(-kv_format.kv_len // PAGE_SIZE)
    arrays = (
        np.append(kv_format.kv_start, kv_format.kv_start[-1] + pages[-1]),
        kv_format.page_table,
        kv_format.kv_len - (pages - 1) * PAGE_SIZE,
    )
    indptr, table, last = (torch.from_numpy(x.astype(np.int32)).to(batch.device) for x in arrays)
    kv = DeviceKV.from_paged(indptr, table, last, PAGE_SIZE)
    batch.plan_on_device(kv)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_PLANS):
            batch.plan_on_device(kv)
    graph.replay()
    times = [harness.replay_us(graph) for _ in range(REPLAYS)]
    batch.check_plan()
    return statistics.median(times) / GRAPH_PLANS


def cpu_name() -> str:
    """The processor as Linux names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def main() -> int:
    options = harness.parser("Times of the planner, section N.").parse_args()
    found = [step for step in cases() if not options.quick or step.cfg in QUICK]
    found = [step for step in found if options.match in step.cfg]
    python = platform.python_version()
    machine = {"cpu": cpu_name(), "python": python, "numpy": np.__version__}
    first = records.environment(toolchain="") | machine
    results = records.Records(options.out or records.default_path("plan"), first)
    for step in found:
        numbers = measure(step, REPEATS)
        if step.cfg.startswith("decode"):
            numbers["next_us"] = next_us(step)
            if torch.cuda.is_available():
                numbers["device_us"] = device_us(step)
        row = results.add("N", step.cfg, **numbers)
        parts = f"batch {row['batch_us']:6.1f}  plan {row['plan_us']:7.1f}"
        if "next_us" in row:
            parts += f"  in a row {row['next_us']:6.1f}"
        if "device_us" in row:
            parts += f"  on the device {row['device_us']:5.1f}"
        print(f"{step.cfg:18s} {row['us']:8.1f} us  {parts}")
    print(f"rows: {results.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
