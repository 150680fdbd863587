"""Plans made on the device: the bits of the host planner, and steps whose lengths the host never
sees, in graphs that hold plan and attention."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from cute_attn import BatchAttention, DeviceKV
from cute_attn.abi import UNBOUNDED, PlanLayout
from cute_attn.api.device_planner import DevicePlanner
from cute_attn.api.step import DeviceStep
from cute_attn.scheduler import CostModel, Geometry, Plan, RequestBatch, plan_batch
from tests.gpu.batches import Batch, indptr
from tests.gpu.check import CANARY, as_integers
from tests.gpu.serving import PAGE_SIZE, assert_right, serving_attention, serving_batch
from tests.gpu.specs import ampere_arch
from tests.gpu.test_graph import Layer

pytestmark = pytest.mark.gpu

BATCHES = (1, 2, 15, 16, 100, 256, 1000, 1024, 1025, 3000, 4096)
REPLAYS = 50
COUNT, LONGEST = 24, 2000  # of the replayed steps; whole pages
LAYERS = 4


def ints(values: Any, device: torch.device) -> torch.Tensor:
    return torch.tensor(np.asarray(values), dtype=torch.int32, device=device)


def many_lengths(rng: np.random.Generator, count: int) -> list[np.ndarray]:
    """Constant, uniform, skewed, in steps of one block, with empty ones, enormous."""
    return [
        np.full(count, 1024),
        rng.integers(1, 8193, count),
        np.minimum(rng.zipf(1.2, count), 100_000),
        64 * rng.integers(0, 5, count),
        rng.integers(1, 30_000, count) * (rng.random(count) < 0.6),
        rng.integers(0, 1 << 24, count),
        np.where(np.arange(count) == count // 2, 1 << 20, 1),
    ]


def assert_same_plan(
    planner: DevicePlanner, geometry: Geometry, q_len: int, kv_len: np.ndarray, device: torch.device
) -> Plan:
    """Plans a step with both planners; returns the host's."""
    count, num_blocks = len(kv_len), planner.num_blocks
    table = torch.empty(count, 1, dtype=torch.int32, device=device)
    kv = DeviceKV.from_block_table(table, ints(kv_len, device), 1 << 30)
    step = DeviceStep(count * q_len, kv, 0, {}, (0, 0), q_len)
    size = PlanLayout(num_blocks, count).size
    plan = torch.full((size,), -7, dtype=torch.int32, device=device)
    stream = torch.cuda.current_stream(device).cuda_stream
    cost = CostModel.for_kernel(blocks_per_sm=3)
    planner.plan(step, geometry, cost, plan.data_ptr(), stream)
    numbers = np.arange(count)
    requests = RequestBatch(q_len * numbers, np.full(count, q_len), numbers, kv_len)
    want = plan_batch(requests, geometry, num_blocks, cost=cost)
    got, used = plan.cpu().numpy(), want.buffer.size
    wrong = np.flatnonzero(got[:used] != want.buffer)
    assert wrong.size == 0, (kv_len[:9], wrong[:9], got[wrong[:9]])
    assert (got[used:] == -7).all(), "written past the plan"
    planner.check()
    return want


@pytest.fixture(scope="module")
def planners(arch: str, device: torch.device) -> list[DevicePlanner]:
    """For grids of several sizes."""
    return [DevicePlanner(ampere_arch(arch), device, n) for n in (132, 396, 511, 512, 1000)]


@pytest.mark.parametrize("count", BATCHES)
def test_plans_have_the_bits_of_the_host_planner(
    count: int, planners: list[DevicePlanner], device: torch.device, record: Callable[..., None]
) -> None:
    rng = np.random.default_rng(count)
    splits = plans = 0
    for kv_len in many_lengths(rng, count):
        heads, group, q_len = (int(rng.choice(x)) for x in ([1, 8, 32], [1, 4, 8], [1, 1, 4]))
        tile_q = next(rows for rows in (8, 16, 64) if rows >= q_len * group)
        for window in (UNBOUNDED, int(rng.choice([0, 127, 1000, 4095]))):
            geometry = Geometry(tile_q, 64, group, heads, window, window_right=0)
            for planner in planners:
                want = assert_same_plan(planner, geometry, q_len, kv_len, device)
                splits, plans = splits + (want.num_split_tiles > 0), plans + 1
    assert splits
    record("G", f"device plans b{count}", plans=plans, split=splits)


@dataclass
class Tables:
    """Lengths and page table of a step at addresses that do not change."""

    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor
    kv_last_page_len: torch.Tensor

    @classmethod
    def new(cls, count: int, pages: int, device: torch.device) -> Tables:
        made = (torch.zeros(n, dtype=torch.int32, device=device) for n in (count + 1, pages, count))
        return cls(*made)

    @property
    def kv(self) -> DeviceKV:
        return DeviceKV.from_paged(
            self.kv_indptr, self.kv_indices, self.kv_last_page_len, PAGE_SIZE
        )

    def fill(self, batch: Batch) -> None:
        """Those of a batch, on the current stream."""
        counts = [-(-n // PAGE_SIZE) for n in batch.kv_lens]
        last = [n - max(c - 1, 0) * PAGE_SIZE for n, c in zip(batch.kv_lens, counts, strict=True)]
        table = batch.kv_format.page_table
        device = self.kv_indptr.device
        self.kv_indptr.copy_(ints(indptr(counts), device))
        self.kv_last_page_len.copy_(ints(last, device))
        self.kv_indices[: len(table)].copy_(ints(table, device))
        self.kv_indices[len(table) :].fill_(1 << 30)  # of no page; never read


def lengths(seed: int) -> list[int]:
    """KV lengths of a step, padding (no keys) among them."""
    rng = random.Random(seed)
    longest = rng.choice((1, 60, LONGEST))
    kv = [rng.choice((0, rng.randint(1, longest), longest)) for _ in range(COUNT)]
    return kv if seed % 5 else [n if i == 3 else 0 for i, n in enumerate([LONGEST] * COUNT)]


def planned_once(
    device: torch.device, q_len: int, *, first_q: int | None = None
) -> tuple[BatchAttention, Layer, Tables]:
    """A wrapper for the capacities, whose kernel is chosen by `first_q` query tokens, its tensors,
    and lengths that plan_on_device has seen."""
    pages = COUNT * -(-LONGEST // PAGE_SIZE)
    wrapper = serving_attention(device, cuda_graph=True, max_requests=COUNT, max_pages=pages)
    layer = Layer(COUNT * max(q_len, first_q or 0), pages, device)
    batch = layer.fill([(first_q or q_len, LONGEST)] * COUNT, 0)
    wrapper.plan(batch.qo_indptr, batch.kv_format)
    tables = Tables.new(COUNT, pages, device)
    batch = layer.fill([(q_len, LONGEST)] * COUNT, 0)
    tables.fill(batch)
    wrapper.plan_on_device(tables.kv, q_len=q_len)
    layer.run(wrapper)
    layer.check(batch)
    return wrapper, layer, tables


@pytest.mark.parametrize(("q_len", "first_q"), [(1, None), (4, None), (2, 90)], ids=str)
def test_graph_of_plan_and_attention(
    q_len: int, first_q: int | None, device: torch.device, record: Callable[..., None]
) -> None:
    wrapper, layer, tables = planned_once(device, q_len, first_q=first_q)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        wrapper.plan_on_device(tables.kv, q_len=q_len)
        layer.run(wrapper)
    worst = 0.0
    for seed in range(1, REPLAYS + 1):
        batch = layer.fill([(q_len, n) for n in lengths(seed)], seed)
        tables.fill(batch)
        graph.replay()
        worst = max(worst, layer.check(batch))
    wrapper.check_plan()
    record("G", f"plan in a graph, {REPLAYS} length sets, q {q_len} {first_q}", err=worst)


def test_steps_follow_one_another_without_waiting(device: torch.device) -> None:
    """Plan, four layers, plan, ...: no plan is overwritten before its last reader, none is read
    before it is written."""
    wrapper, layer, tables = planned_once(device, 1)
    batch = layer.fill([(1, LONGEST)] * COUNT, 1)
    tables.fill(batch)
    outs = [torch.empty_like(layer.q) for _ in range(LAYERS + 1)]
    outs[0].copy_(layer.q)

    def step() -> None:
        wrapper.plan_on_device(tables.kv)
        for source, target in pairwise(outs):
            wrapper.run(source, layer.cache, out=target)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    rng = random.Random(0)
    # Of each request some pages, from its first on.
    pages = -(-LONGEST // PAGE_SIZE)
    steps = []
    for _ in range(30):
        counts = [rng.choice((0, 1, rng.randint(1, pages))) for _ in range(COUNT)]
        table = torch.cat(
            [
                torch.from_numpy(batch.kv_format.page_table[i * pages : i * pages + n])
                for i, n in enumerate(counts)
            ]
        )
        last = [rng.randint(1, PAGE_SIZE) if n else 0 for n in counts]
        indices = torch.zeros_like(tables.kv_indices)
        indices[: len(table)] = table.to(device)
        steps.append((ints(indptr(counts), device), indices, ints(last, device)))

    def set_tables(own: tuple[torch.Tensor, ...]) -> None:
        tables.kv_indptr.copy_(own[0])
        tables.kv_indices.copy_(own[1])
        tables.kv_last_page_len.copy_(own[2])

    alone = []
    for own in steps:
        set_tables(own)
        torch.cuda.synchronize()
        wrapper.plan_on_device(tables.kv)
        for source, target in pairwise(outs):
            torch.cuda.synchronize()
            wrapper.run(source, layer.cache, out=target)
        torch.cuda.synchronize()
        alone.append(outs[-1].clone())
    for replay in (graph.replay, step):
        got = []
        for own in steps:
            set_tables(own)
            replay()
            got.append(outs[-1].clone())
        torch.cuda.synchronize()
        for at, (x, want) in enumerate(zip(got, alone, strict=True)):
            assert torch.equal(x, want), at
    assert len({x.sum().item() for x in alone}) > 20


@pytest.mark.parametrize("kind", ["block table", "ragged"])
def test_other_formats(kind: str, device: torch.device) -> None:
    kv_lens = lengths(3)
    requests = [(1, n) for n in kv_lens]
    rows = list(range(COUNT + 1))
    if kind == "ragged":
        batch = serving_batch(requests, device, page_size=0, seed=1)
        wrapper = serving_attention(device, cuda_graph=True)
        wrapper.plan(rows, batch.kv_format)
        kv = DeviceKV.from_ragged(ints(indptr(kv_lens), device), sum(kv_lens))
        want = wrapper.run(batch.q, *batch.kv)
        out, lse = wrapper.plan_on_device(kv).run(batch.q, *batch.kv, return_lse=True)
        assert_right(batch, out, lse)
        assert torch.equal(out, want)
        return
    pages = COUNT * -(-LONGEST // PAGE_SIZE)
    wrapper = serving_attention(device, cuda_graph=True, max_requests=COUNT, max_pages=pages)
    layer = Layer(COUNT, pages, device)
    batch = layer.fill(requests, 1)
    wrapper.plan(rows, batch.kv_format)
    width = 2 + max(-(-n // PAGE_SIZE) for n in kv_lens)
    table = torch.full((COUNT, width + 3), 1 << 30, dtype=torch.int32, device=device)[:, :width]
    for i, row in enumerate(table):
        own = ints(batch.kv_format.pages_of(i), device)
        row[: len(own)] = own
    wrapper.plan_on_device(DeviceKV.from_block_table(table, ints(kv_lens, device), PAGE_SIZE))
    layer.run(wrapper)
    layer.check(batch)


def test_wrong_lengths_are_noted_and_nothing_is_read(device: torch.device) -> None:
    wrapper, layer, tables = planned_once(device, 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        wrapper.plan_on_device(tables.kv)
        layer.run(wrapper)
    end = tables.kv_indices.numel()
    for change, message in (
        (lambda: tables.kv_indptr[-1].fill_(end + 1), rf"kv_indptr\[{COUNT}\] is {end + 1}.*{end}"),
        (lambda: tables.kv_indptr[3].fill_(-5), r"kv_indptr\[3\] is -5"),
        (lambda: tables.kv_last_page_len[7].fill_(17), r"kv_last_page_len\[7\] is 17.*16"),
    ):
        batch = layer.fill([(1, LONGEST)] * COUNT, 5)
        tables.fill(batch)
        change()
        graph.replay()
        for x in (layer.out, layer.lse):
            assert (as_integers(x) == CANARY[x.dtype]).all()
        tables.fill(batch)
        graph.replay()
        layer.check(batch)
        with pytest.raises(ValueError, match=message):  # it stays until it is asked for
            wrapper.check_plan()
        wrapper.check_plan()


def test_nothing_waits_and_nothing_is_allocated(device: torch.device) -> None:
    wrapper, layer, tables = planned_once(device, 1)
    kv = tables.kv
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats(device)["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        wrapper.plan_on_device(kv)
        layer.run(wrapper)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats(device)["allocation.all.allocated"] == before


def test_the_first_call_loads_a_kernel(device: torch.device) -> None:
    wrapper = serving_attention(device, cuda_graph=True, max_requests=COUNT, max_pages=COUNT)
    layer = Layer(COUNT, COUNT, device)
    batch = layer.fill([(1, 16)] * COUNT, 0)
    wrapper.plan(batch.qo_indptr, batch.kv_format)
    tables = Tables.new(COUNT, COUNT, device)
    tables.fill(batch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(RuntimeError, match="capture"):
            wrapper.plan_on_device(tables.kv)
        layer.run(wrapper)
    graph.replay()
    layer.check(batch)
