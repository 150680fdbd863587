"""Measures the sweeps on a GPU and fits its constants: what `cute-attn calibrate` does.

A time is that of one call in a replayed CUDA graph over rotating caches, so that a call finds
nothing of the last round in L2; the median of as many replays as a budget holds, after some to
bring the clock to where it stays.
"""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from itertools import accumulate
from pathlib import Path

import torch

from cute_attn.api.batch import BatchAttention
from cute_attn.api.kernel import warmup
from cute_attn.api.launches import measured_launch
from cute_attn.api.sweeps import Sweep, sweeps
from cute_attn.formats import KVFormat, PagedKV, RaggedKV
from cute_attn.runtime import DeviceInfo, DriverError, device_count, device_info
from cute_attn.runtime.device import current_device
from cute_attn.scheduler import BUILT_IN, Constants, Gpu, Measurement, fit_constants

Progress = Callable[[int, int, str, float], None]
"""Called as progress(done, total, name, us) after each case."""

_MAX_CACHES = 64
_ROTATION = 4
"""K and V that a rotation of caches holds at least, in sizes of L2."""
_GRAPH_RUNS = 8  # at least, in one graph
_WARM_US, _BUDGET_US = 100_000.0, 100_000.0
_QUICK_US = 30_000.0  # for either, where it is to be quick
_MEMORY_SHARE = 0.6
"""Of the free memory that a case may take."""
_MATRIX_SIZE = 8192
_READ_BYTES = 1 << 30


@dataclass(frozen=True)
class Calibration:
    """What came of it.

    Attributes:
        constants: of the GPU; `gpu.name` as CUDA names it.
        measurements: the cases.
        skipped: names of cases for which the GPU has too little memory.
        made: how the constants came about, for the file.
    """

    constants: Constants
    measurements: tuple[Measurement, ...]
    skipped: tuple[str, ...]
    made: dict[str, str | int | float]


def calibrate(
    device: int | None = None,
    *,
    quick: bool = False,
    progress: Progress | None = None,
) -> Calibration:
    """Measures a GPU and fits its constants. Nothing else should run on it meanwhile.

    Args:
        device: ordinal; default: the current one.
        quick: fewer and shorter measurements, of head_dim 128 alone.
        progress: told after each case.

    Raises:
        DriverError: there is no GPU, or none of this number.
        CompileError, ToolchainError, CacheMissError: see `build`.
    """
    info = _device(device)
    cases = sweeps(info.arch, info.num_sms, quick=quick)
    parts = [part for case in cases for part in case.parts(info.arch, info.num_sms)]
    kernels = warmup(dict.fromkeys(part.spec for part in parts))
    budget_us = _QUICK_US if quick else _BUDGET_US
    measured: list[Measurement] = []
    skipped: list[str] = []
    with torch.cuda.device(info.index):
        start = _start(info, budget_us)
        for done, case in enumerate(cases, 1):
            torch.cuda.empty_cache()
            if _bytes(case, info) > _MEMORY_SHARE * torch.cuda.mem_get_info()[0]:
                skipped.append(case.name)
                continue
            found = measure(
                case,
                torch.device("cuda", info.index),
                count=_cache_count(case, info),
                warm_us=budget_us,
                budget_us=budget_us,
            )
            measured.append(found)
            if progress is not None:
                progress(done, len(cases), case.name, found.us)
    constants = fit_constants(measured, BUILT_IN, gpu=start, source="measured now")
    made = _made(measured, constants, toolchain=str(kernels[0].toolchain), quick=quick)
    return Calibration(constants, tuple(measured), tuple(skipped), made)


def measure(
    case: Sweep, device: torch.device, *, count: int, warm_us: float, budget_us: float
) -> Measurement:
    """Times one case.

    Args:
        case: what is run.
        device: the current CUDA device.
        count: caches that it rotates over.
        warm_us: how long it runs before it is timed.
        budget_us: how long it is timed.
    """
    kv_format, rows = _kv_format(case), [*accumulate(case.q_lens, initial=0)]
    batch = BatchAttention(
        case.num_qo_heads,
        case.num_kv_heads,
        case.head_dim,
        variant=case.variant,
        device=device,
        schedule=case.schedule,
        costs=BUILT_IN,
    ).plan(rows, kv_format)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.bfloat16, device=device)

    q = random(rows[-1], case.num_qo_heads, case.head_dim)
    out = torch.empty_like(q)
    heads = (case.num_kv_heads, case.head_dim)
    shapes: list[tuple[int, ...]] = [(sum(case.kv_lens), *heads)] * 2
    if case.page_size is not None:
        shapes = [(sum(_page_counts(case)), 2, case.page_size, *heads)]
    caches = [[random(*shape) for shape in shapes] for _ in range(count)]

    def run(index: int) -> None:
        batch.run(q, *caches[index % count], out=out)

    runs = count * -(-_GRAPH_RUNS // count)
    us = _graph_us(run, count, runs, warm_us=warm_us, budget_us=budget_us)
    launches = []
    for plan, kernel in zip(batch.plans, batch.kernels, strict=False):  # a merge may follow
        assert kernel.spec is not None
        launches.append(measured_launch(plan, kernel.spec))
    return Measurement(case.name, us, tuple(launches))


def _device(index: int | None) -> DeviceInfo:
    if not device_count() or not torch.cuda.is_available():
        raise DriverError("calibrate measures a GPU, and there is none that CUDA and torch can use")
    return device_info(current_device() if index is None else index)


def _kv_format(case: Sweep) -> KVFormat:
    if case.page_size is None:
        return RaggedKV([*accumulate(case.kv_lens, initial=0)])
    counts = _page_counts(case)
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(0))
    pairs = zip(case.kv_lens, counts, strict=True)
    last = [keys - (pages - 1) * case.page_size for keys, pages in pairs]
    return PagedKV([*accumulate(counts, initial=0)], order.int(), last, case.page_size)


def _page_counts(case: Sweep) -> list[int]:
    assert case.page_size is not None
    return [-(-keys // case.page_size) for keys in case.kv_lens]


def _cache_count(case: Sweep, info: DeviceInfo) -> int:
    return min(_MAX_CACHES, 1 + _ROTATION * info.l2_bytes // case.kv_bytes)


def _bytes(case: Sweep, info: DeviceInfo) -> int:
    return _cache_count(case, info) * case.kv_bytes + 2 * case.q_bytes


def _start(info: DeviceInfo, budget_us: float) -> Gpu:
    """The rate of products, and read rates from which the fit begins."""
    shape = (_MATRIX_SIZE, _MATRIX_SIZE)
    device = torch.device("cuda", info.index)
    a, b = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(a)
    us = _graph_us(
        lambda _: torch.mm(a, b, out=product), 1, 2, warm_us=budget_us, budget_us=budget_us
    )
    x = torch.ones(_READ_BYTES // 4, device=device)
    read_us = _graph_us(lambda _: x.sum(), 1, 2, warm_us=0, budget_us=budget_us)
    known, read_gbps = BUILT_IN.gpu, _READ_BYTES / read_us / 1e3
    share = (read_gbps / info.num_sms) / (known.read_gbps / known.sms)
    return Gpu(
        name=info.name,
        sms=info.num_sms,
        tflops=2 * _MATRIX_SIZE**3 / us / 1e6,
        read_gbps=read_gbps,
        sm_read_gbps=known.sm_read_gbps * share,
    )


def _graph_us(
    run: Callable[[int], object], count: int, runs: int, *, warm_us: float, budget_us: float
) -> float:
    """Microseconds of run(i) within a replayed graph of `runs` of them.

    Args:
        run: what is timed, on cache number i modulo `count`.
        count: caches.
        runs: in the graph.
        warm_us, budget_us: how long it runs before, and while it is timed.
    """
    for index in range(count):  # argument blocks and tensor maps of all caches
        run(index)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(runs):
            run(index)
    graph.replay()
    first = _replay_us(graph)
    for _ in range(int(warm_us / first)):
        graph.replay()
    replays = min(max(int(budget_us / first), 3), 100)
    return statistics.median(_replay_us(graph) for _ in range(replays)) / runs


def _replay_us(graph: torch.cuda.CUDAGraph) -> float:
    begin, end = (_timed_event() for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return 1e3 * float(begin.elapsed_time(end))


def _timed_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # of torch


def own_version() -> str:
    """Of this package; of a source tree that is not installed there is none."""
    try:
        return metadata.version("cute-attn")
    except metadata.PackageNotFoundError:
        return "not installed"


def _made(
    measured: list[Measurement], constants: Constants, *, toolchain: str, quick: bool
) -> dict[str, str | int | float]:
    """How constants came about: versions, date, and how well they explain the cases."""
    errors = [math.log(case.predicted_us(constants) / case.us) for case in measured]
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "date": now.isoformat(timespec="seconds"),
        "driver": driver_release(),
        "cuda": torch.version.cuda or "",
        "torch": torch.__version__,
        "cute_attn": own_version(),
        "toolchain": toolchain,
        "cases": len(measured),
        "quick": int(quick),
        "mean_error": round(math.sqrt(sum(e * e for e in errors) / len(errors)), 4),
        "worst_error": round(max(map(abs, errors)), 4),
    }


def driver_release() -> str:
    """E.g. "580.159.03"; "" where the kernel module is hidden."""
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        return ""
