"""What all benchmarks share: tensors of a case, a check of its result, and two ways to time it.

Prefill: median of `triton.testing.do_bench`, which empties L2 between calls. Decode and real steps:
a CUDA graph of several runs over rotating caches, so that nothing stays in L2 from one call to the
next, replayed; `us_graph` is the time of one run in it and `us` the do_bench median.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from cute_attn import BatchAttention, KernelSpec, PagedKV, RaggedKV, build
from cute_attn.api import checks
from perf import joining, records
from perf.cases import Case

ROTATION_BYTES = 256 << 20
"""K and V that a rotation of caches holds at least: several times the L2 of an H200 (60 MB)."""
MAX_CACHES = 64
GRAPH_RUNS = 8  # at least, in one graph
CHECKED_ROWS = 256  # query rows compared with the reference, at most
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "e4m3": torch.float8_e4m3fn}
MATRIX_SIZE = 8192


@dataclass
class Prepared:
    """Tensors and wrapper of a case; `run(i)` is one call on cache number i.

    Attributes:
        case: what it was made for.
        wrapper: planned.
        q, out: (q_tokens, num_qo_heads, head_dim) and head_dim_vo.
        caches: what `run` takes after q, one tuple per rotation.
        plan_us: host time of plan(), microseconds.
    """

    case: Case
    wrapper: BatchAttention
    q: torch.Tensor
    out: torch.Tensor
    caches: list[tuple[torch.Tensor, ...]]
    pages: list[torch.Tensor] | None
    plan_us: float

    def run(self, index: int = 0) -> None:
        """One call, with everything given."""
        self.wrapper.run(self.q, *self.caches[index % len(self.caches)], out=self.out)


REST_S = 0.2
"""Between two measurements that may heat the card: see `interleaved_us`."""


def indptr(lengths: tuple[int, ...] | list[int]) -> list[int]:
    """Running sums from 0."""
    sums = [0]
    for n in lengths:
        sums.append(sums[-1] + n)
    return sums


def prepare(
    case: Case,
    *,
    rotate: bool = False,
    schedule: str | None = None,
    device: torch.device | None = None,
    batch_invariant: bool = False,
    tuning: Path | bool | None = None,
) -> Prepared:
    """Makes random tensors and plans.

    Args:
        case: the case.
        rotate: as many caches as exceed L2, else one.
        schedule: force a kernel family.
        device: default: the current GPU.
        batch_invariant, tuning: options of `BatchAttention`.
    """
    if device is None:
        device = torch.device("cuda", torch.cuda.current_device())
    generator = torch.Generator(device).manual_seed(0)
    dtype = DTYPES[case.dtype]

    def normal(*shape: int) -> torch.Tensor:
        x = torch.empty(shape, dtype=checks.out_dtype(dtype), device=device)  # e4m3 has no normal_
        return x.normal_(generator=generator).to(dtype)

    q = normal(sum(case.q_lens), case.num_qo_heads, case.head_dim)
    count = cache_count(case) if rotate else 1
    tokens, heads = sum(case.kv_lens), case.num_kv_heads
    pages: list[torch.Tensor] | None = None
    kv_format: RaggedKV | PagedKV
    caches: list[tuple[torch.Tensor, ...]]
    if case.page_size is None:
        kv_format = RaggedKV(indptr(case.kv_lens))
        caches = [
            (normal(tokens, heads, case.head_dim), normal(tokens, heads, case.head_dim_vo))
            for _ in range(count)
        ]
    else:
        kv_format, pages = page_format(case.kv_lens, case.page_size)
        total = sum(len(own) for own in pages)
        page = (case.page_size, heads, case.head_dim)  # head_dim_vo is the same, but for MLA
        if case.is_latent:
            rows = [normal(total, *page) for _ in range(count)]
            caches = [(own, own[..., : case.head_dim_vo]) for own in rows]
        else:
            caches = [(normal(total, 2, *page),) for _ in range(count)]
    wrapper = BatchAttention(
        case.num_qo_heads,
        case.num_kv_heads,
        case.head_dim,
        head_dim_vo=case.head_dim_vo,
        dtype=dtype,
        variant=case.variant,
        schedule=schedule,
        device=device,
        batch_invariant=batch_invariant,
        tuning=tuning,
    )
    q_rows = indptr(case.q_lens)
    wrapper.plan(q_rows, kv_format, scalars=case.scalars)
    plan_us = host_us(lambda i: wrapper.plan(q_rows, kv_format, scalars=case.scalars), 20)
    out = q.new_empty(*q.shape[:2], case.head_dim_vo, dtype=checks.out_dtype(dtype))
    return Prepared(case, wrapper, q, out, caches, pages, plan_us)


def cache_count(case: Case) -> int:
    """Caches to rotate over, so that a call finds nothing of the last round in L2."""
    return min(MAX_CACHES, 1 + ROTATION_BYTES // max(case.kv_bytes, 1))


def page_format(kv_lens: tuple[int, ...], page_size: int) -> tuple[PagedKV, list[torch.Tensor]]:
    """A paged format with shuffled pages, and the page numbers of each request."""
    counts = [-(-n // page_size) for n in kv_lens]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(0))
    last = [n - (c - 1) * page_size if c else 0 for n, c in zip(kv_lens, counts, strict=True)]
    kv_format = PagedKV(indptr(counts), order.int(), last, page_size)
    return kv_format, list(order.split(counts))


def keys_of(prepared: Prepared, request: int, number: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of one request from one of the caches: (kv_len, num_kv_heads, head_dim) each."""
    case, cache = prepared.case, prepared.caches[number]
    length = case.kv_lens[request]
    if prepared.pages is None:
        begin = sum(case.kv_lens[:request])
        return cache[0][begin : begin + length], cache[1][begin : begin + length]
    used = cache[0][prepared.pages[request].to(cache[0].device)]  # (pages, 2, page_size, h, d)
    if case.is_latent:  # (pages, page_size, h, d)
        keys = used.flatten(0, 1)[:length]
        return keys, keys[..., : case.head_dim_vo]
    return used[:, 0].flatten(0, 1)[:length], used[:, 1].flatten(0, 1)[:length]


def check(prepared: Prepared) -> float:
    """Error of one run on the first cache, `relative_error`; NaN if a row was not written."""
    prepared.out.fill_(torch.nan)
    prepared.run(0)
    return relative_error(prepared, prepared.out)


def relative_error(prepared: Prepared, out: torch.Tensor) -> float:
    """Frobenius-relative error of an output against float32 on some rows of some requests.

    All requests of short batches, else a dozen with the longest among them; of long prefills the
    last rows and a random part. NaN anywhere gives NaN.
    """
    case = prepared.case
    starts = indptr(case.q_lens)
    rng = random.Random(0)
    requests = list(range(len(case.q_lens)))
    if len(requests) > 12:
        longest = max(requests, key=lambda i: case.kv_lens[i])
        requests = sorted({longest, 0, requests[-1], *rng.sample(requests, 9)})
    difference = size = 0.0
    for request in requests:
        q_len, kv_len = case.q_lens[request], case.kv_lens[request]
        rows = sorted({*rng.sample(range(q_len), min(q_len, CHECKED_ROWS)), q_len - 1})
        at = torch.tensor(rows, device=prepared.q.device)
        own = slice(starts[request], starts[request + 1])
        k, v = keys_of(prepared, request)
        positions = at + kv_len - q_len
        rows_of_q = prepared.q[own].float()[at]  # e4m3 knows no indexing by tensors
        want = reference(rows_of_q, k, v, positions, case.is_causal, case.window)
        difference += float((out[own][at] - want).square().sum())
        size += float(want.square().sum())
    if bool(out.isnan().any()):
        return float("nan")
    return math.sqrt(difference / size)


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    is_causal: bool,
    window: int | None = None,
) -> torch.Tensor:
    """Dense softmax in float32 for query rows at `positions` (keys stand at 0, 1, ...)."""
    group = q.shape[1] // k.shape[1]
    rows, heads, dim = q.shape
    stacked = q.float().view(rows, k.shape[1], group, dim).permute(1, 2, 0, 3).flatten(1, 2)
    scores = stacked @ k.float().permute(1, 2, 0) * dim**-0.5  # (kv_heads, group * rows, kv)
    if is_causal:
        distance = positions[:, None] - torch.arange(k.shape[0], device=q.device)
        hidden = distance < 0
        if window is not None:
            hidden |= distance >= window
        scores.view(k.shape[1], group, rows, -1).masked_fill_(hidden, -torch.inf)
    out = torch.softmax(scores, dim=-1) @ v.float().transpose(0, 1)
    return out.view(k.shape[1], group, rows, -1).permute(2, 0, 1, 3).reshape(rows, heads, -1)


def flushed_us(prepared: Prepared, *, rep_ms: int = 100) -> float:
    """Median time of a call in microseconds, L2 emptied before each."""
    return interleaved_us({"": prepared.run}, rounds=1, rep_ms=rep_ms)[""]


def interleaved_us(
    calls: Mapping[str, Callable[[], object]], *, rounds: int, rep_ms: int
) -> dict[str, float]:
    """Median time of each call in microseconds, L2 emptied before each.

    The calls take turns, `rounds` times, so that drifting clocks meet all of them alike. The card
    rests before each turn: a call must not pay for the heat of the one before it, which is worth up
    to 15 % of a long one.
    """
    from triton.testing import do_bench

    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            torch.cuda.synchronize()
            time.sleep(REST_S)
            times[name] += do_bench(call, warmup=20, rep=rep_ms, return_mode="all")
    return {name: 1e3 * statistics.median(own) for name, own in times.items()}


def matrix_rate() -> tuple[float, float]:
    """(us, TFLOP/s) of an 8192 x 8192 x 8192 bf16 matrix product, the measure of prefill."""
    shape = (MATRIX_SIZE, MATRIX_SIZE)
    a, b = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    us = interleaved_us({"": lambda: torch.mm(a, b, out=out)}, rounds=1, rep_ms=300)[""]
    return us, 2 * MATRIX_SIZE**3 / us / 1e6


def graph_us(prepared: Prepared, *, budget_us: float = 100_000) -> float:
    """Time of a call within a replayed CUDA graph over rotating caches, in microseconds.

    The median of 3 to 20 replays, as many as `budget_us` holds.
    """
    return graphs_us({"": prepared.run}, len(prepared.caches), budget_us=budget_us)[""]


def graphs_us(
    calls: Mapping[str, Callable[[int], object]], count: int, *, budget_us: float = 100_000
) -> dict[str, float]:
    """`graph_us` of several calls, which take the number of one of `count` caches; in turns."""
    runs = count * max(1, -(-GRAPH_RUNS // count))
    graphs = {name: captured(call, count, runs) for name, call in calls.items()}
    slowest = max(replay_us(graph) for graph in graphs.values())
    replays = int(min(20, max(3, budget_us / slowest)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(replays):
        for name, graph in graphs.items():
            times[name].append(replay_us(graph))
    return {name: statistics.median(own) / runs for name, own in times.items()}


def captured(call: Callable[[int], object], count: int, runs: int) -> torch.cuda.CUDAGraph:
    """A graph of `runs` calls over `count` caches, replayed once."""
    for index in range(count):  # argument blocks and tensor maps of all caches
        call(index)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(runs):
            call(index)
    graph.replay()
    return graph


def replay_us(graph: torch.cuda.CUDAGraph) -> float:
    """Microseconds of one replay."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return 1e3 * float(begin.elapsed_time(end))


def host_us(call: Callable[[int], object], repeats: int, *, burst: int = 1) -> float:
    """Median host time of call(i) in microseconds.

    The device is idle before each burst of calls; a burst of 32 is a model of as many layers.
    """
    times = []
    for begin in range(0, repeats, burst):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        for i in range(begin, min(begin + burst, repeats)):
            start = time.perf_counter_ns()
            call(i)
            times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1e3


def toolchain(spec: KernelSpec) -> str:
    """Which compiler made the kernels, from one of them."""
    return str(build(spec).compiled.toolchain)


def arch() -> str:
    """Architecture of the current GPU, e.g. "sm_90a"."""
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


def parser(description: str) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--quick", action="store_true", help="fewer cases")
    options.add_argument("--match", default="", help="only cases whose cfg contains this")
    options.add_argument("--out", type=Path, help="results file (default: perf/results/...)")
    options.add_argument(
        "--peers", type=Path, default=joining.PEERS, help="a peers' file to compare with at the end"
    )
    return options


def add_batch_invariant(options: argparse.ArgumentParser) -> None:
    """The option of the benchmarks that can measure what batch invariance costs."""
    options.add_argument(
        "--batch-invariant", action="store_true", help="BatchAttention(batch_invariant=True)"
    )


def open_records(
    bench: str, path: Path | None, spec: KernelSpec, *, database: Path | None = None
) -> records.Records:
    """The results file of a benchmark; `database`: of tuning, that it uses."""
    first = records.environment(toolchain(spec), database=database)
    return records.Records(path or records.default_path(bench), first)
