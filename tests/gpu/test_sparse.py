"""Lists of pages and sparse patterns of each KV head, and masks within blocks, on a device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from cute_attn import DeviceKV
from tests.gpu import oracle64, sparse
from tests.gpu.check import BOUNDS, LSE_BOUND, ROW_BOUND

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", sparse.CASES)
def test_against_a_dense_formula(
    name: str, device: torch.device, record: Callable[..., None]
) -> None:
    err, row, far, exact = sparse.errors(name, device)
    record("G", f"sparse: {name}", err=err)
    assert err <= BOUNDS["bf16"] and row <= ROW_BOUND and far <= LSE_BOUND and exact


def test_the_kernels_are_those_that_were_listed(device: torch.device, arch: str) -> None:
    names = {spec.name for spec in sparse.kernels(arch)}
    for case in sparse.CASES.values():
        made = sparse.planned(case, case.make(device), device)
        assert made.kernels[0].name in names


def test_a_pattern_that_the_l2_does_not_hold(
    device: torch.device, record: Callable[..., None]
) -> None:
    """Its KV heads are planned apart."""
    batch = sparse.patterns(512, 32768, (64, 64), share=0.8)(device)
    case = sparse.SparseCase(lambda _: batch)
    made = sparse.planned(case, batch, device)
    assert "_per_head_" in made.kernels[0].name and made.last_plan is not None
    assert made.last_plan.num_requests == 8 * sparse.KV_HEADS
    out, lse = made.run(batch.q, *batch.kv, return_lse=True)
    err, row, far, exact = oracle64.errors(out, lse, *sparse.dense(batch))
    record("G", "sparse: heads planned apart", err=err)
    assert err <= BOUNDS["bf16"] and row <= ROW_BOUND and far <= LSE_BOUND and exact


def test_one_graph_for_lists_of_other_lengths(device: torch.device) -> None:
    case = sparse.CASES["lists, decode"]
    batches = [sparse.lists([1] * 40, longest, 16, "HND")(device) for longest in (3000, 1500, 200)]
    made = sparse.planned(
        case, batches[0], device, cuda_graph=True, max_requests=128, max_pages=1 << 16
    )
    q, cache = batches[0].q, torch.empty_like(batches[0].kv[0])
    cache.copy_(batches[0].kv[0])
    out = torch.empty_like(q)
    made.run(q, cache, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made.run(q, cache, out=out)
    for batch in (batches[1], batches[2], batches[0]):
        cache[: len(batch.kv[0])].copy_(batch.kv[0])
        made.plan(batch.rows, batch.kv_format)
        graph.replay()
        want, _ = sparse.dense(batch)
        err = float((out.double() - want).norm() / want.norm())
        assert err <= BOUNDS["bf16"]


def test_lists_that_are_chosen_within_a_graph(
    device: torch.device, record: Callable[..., None]
) -> None:
    """Page numbers and lengths are written by kernels of the graph's caller, and planned there."""
    case = sparse.CASES["lists, decode"]
    batches = [sparse.lists([1] * 40, longest, 16, "HND")(device) for longest in (3000, 1500, 200)]
    made = sparse.planned(
        case, batches[0], device, cuda_graph=True, max_requests=128, max_pages=1 << 16
    )
    table = batches[0].kv_format.page_table.clone()
    seq_lens = torch.empty(len(table), dtype=torch.int32, device=device)
    kv = DeviceKV.from_block_table(table, seq_lens, 16, num_kv_heads=sparse.KV_HEADS)
    q, cache = batches[0].q, batches[0].kv[0].clone()
    out = torch.empty_like(q)

    def choose(batch: sparse.Batch) -> None:
        own = batch.kv_format.page_table
        table.fill_(1 << 30)  # of no page
        table[:, : own.shape[1]].copy_(own)
        seq_lens.copy_(torch.from_numpy(batch.kv_format.kv_len))
        cache[: len(batch.kv[0])].copy_(batch.kv[0])

    choose(batches[0])
    made.plan_on_device(kv).run(q, cache, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made.plan_on_device(kv).run(q, cache, out=out)
    worst = 0.0
    for batch in (batches[1], batches[2], batches[0]):
        choose(batch)
        graph.replay()
        want, _ = sparse.dense(batch)
        worst = max(worst, float((out.double() - want).norm() / want.norm()))
    made.check_plan()
    record("G", "sparse: lists chosen and planned in a graph", err=worst)
    assert worst <= BOUNDS["bf16"]
