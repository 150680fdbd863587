"""Times and errors of the cases of sparse KV: see perf/cases/sparse.py and bench_composable."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial

import torch

from cute_attn import BatchAttention, BlockTableKV, PerHeadKV
from perf import harness, records
from perf.cases import sparse
from perf.cases.sparse import PageLists, SparseCase, SparsePrefill

_CHECKED = 6  # lists whose rows are compared with the reference

Normal = Callable[..., torch.Tensor]


def predict(case: SparsePrefill | PageLists, results: records.Records) -> str:
    """What the simulator says; a line for people."""
    us = case.predicted_us
    results.add(case.sec, case.cfg, peer="simulator", predicted_us=us)
    return f"{case.sec} {case.cfg:34s} {us:8.1f} us predicted"


def measure(case: SparsePrefill | PageLists, results: records.Records) -> str:
    """Times a case; a line for people."""
    device = torch.device("cuda", torch.cuda.current_device())
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        x = torch.empty(shape, dtype=torch.bfloat16, device=device)
        return x.normal_(generator=generator)

    if isinstance(case, SparsePrefill):
        return _prefill(case, normal, device, results)
    return _lists(case, normal, device, results)


def _planned(case: SparseCase, device: torch.device, *, in_rows: bool = False) -> BatchAttention:
    """`in_rows`: with a kernel that does not change, whose plans are in the order of requests."""
    made = BatchAttention(
        case.num_qo_heads,
        case.num_kv_heads,
        sparse.DIM,
        variant="full",
        kv_layout=case.layout,
        device=device,
        cuda_graph=in_rows,
    )
    return made.plan(case.rows, case.kv)


def _prefill(
    case: SparsePrefill, normal: Normal, device: torch.device, results: records.Records
) -> str:
    """Beside the dense case, and beside a plan in the order of rows where that is another one."""
    q = normal(sparse.LENGTH, case.num_qo_heads, sparse.DIM)
    k, v = (normal(sparse.LENGTH, case.num_kv_heads, sparse.DIM) for _ in range(2))
    out = torch.full_like(q, torch.nan)
    own = _planned(case, device)
    made = {"": own, "dense": _planned(case.dense, device)}
    plan = own.last_plan
    assert plan is not None
    if not case.per_head and plan.num_requests != case.kv.num_requests:
        made["rows"] = _planned(case, device, in_rows=True)
    own.run(q, k, v, out=out)
    err = _error(case, out, q, lambda pages, head: _rows_of(pages, case, k, v, head))
    calls = {name: partial(one.run, q, k, v, out=out) for name, one in made.items()}
    times = harness.interleaved_us(calls, rounds=3, rep_ms=60)
    results.add(
        case.sec,
        case.cfg,
        us=times[""],
        dense_us=times["dense"],
        density=case.kept,
        row_block=case.block,
        tflops=case.flops / times[""] / 1e6,
        predicted_us=case.predicted_us,
        plan_us=harness.host_us(lambda _: own.plan(case.rows, case.kv), 10),
        err=err,
        kernels=[kernel.name for kernel in own.kernels],
    )
    line = f"{case.sec} {case.cfg:34s} {times['']:8.1f} us, dense {times['dense']:8.1f}"
    line += f" ({times[''] / times['dense'] / case.kept:.2f} of its share)"
    if "rows" in times:
        results.add(case.sec, case.cfg, peer="in order of rows", us=times["rows"])
        line += f", in order of rows {times['rows']:8.1f}"
    return f"{line}  err {err:.1e}"


def _lists(case: PageLists, normal: Normal, device: torch.device, results: records.Records) -> str:
    heads, page = case.num_kv_heads, sparse.PAGE_SIZE
    inner = (page, heads) if case.layout == "NHD" else (heads, page)
    count = 1 + harness.ROTATION_BYTES // case.kv_bytes
    caches = [normal(case.num_pages, 2, *inner, sparse.DIM) for _ in range(count)]
    q = normal(sparse.REQUESTS, case.num_qo_heads, sparse.DIM)
    out = torch.full_like(q, torch.nan)
    made = _planned(case, device)
    made.run(q, caches[0], out=out)

    def rows(pages: torch.Tensor, head: int) -> tuple[torch.Tensor, torch.Tensor]:
        axis = 3 if case.layout == "NHD" else 2
        used = caches[0][pages].select(axis, head)  # (pages, 2, page_size, dim)
        return used[:, 0].flatten(0, 1), used[:, 1].flatten(0, 1)

    err = _error(case, out, q, rows)
    calls = {"": lambda index: made.run(q, caches[index % count], out=out)}
    us = harness.graphs_us(calls, count)[""]
    gbps = case.kv_bytes / us / 1e3
    kv = case.kv
    tables = torch.from_numpy(kv.page_table.reshape(kv.num_requests, -1)).to(device)
    on_device = PerHeadKV(BlockTableKV(tables, kv.kv_len, page), heads)
    results.add(
        case.sec,
        case.cfg,
        us_graph=us,
        gbps_graph=gbps,
        kv_bytes=case.kv_bytes,
        predicted_us=case.predicted_us,
        plan_us=harness.host_us(lambda _: made.plan(case.rows, on_device), 10),
        err=err,
        kernels=[kernel.name for kernel in made.kernels],
    )
    return f"{case.sec} {case.cfg:34s} {us:8.1f} us, {gbps:6.0f} GB/s  err {err:.1e}"


def _rows_of(
    pages: torch.Tensor, case: SparsePrefill, k: torch.Tensor, v: torch.Tensor, head: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of some column blocks, of one KV head."""
    blocks = (x[:, head].unflatten(0, (-1, case.block))[pages].flatten(0, 1) for x in (k, v))
    keys, values = blocks
    return keys, values


def _error(
    case: SparseCase,
    out: torch.Tensor,
    q: torch.Tensor,
    keys_of: Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]],
) -> float:
    """Frobenius-relative error of some lists; NaN if a row was not written.

    `keys_of`: (pages, KV head) -> keys and values, (keys, head_dim).
    """
    if bool(out.isnan().any()):
        return math.nan
    kv, rows = case.kv, case.kv.query_rows(case.rows)
    group, own_heads = case.num_qo_heads // case.num_kv_heads, max(kv.heads_in_ids, 1)
    difference = size = 0.0
    for one in random.Random(0).sample(range(kv.num_requests), _CHECKED):
        head = one % own_heads
        at = slice(int(rows.start[one]), int(rows.start[one] + rows.length[one]))
        heads = slice(head * group, (head + 1) * group)
        pages = torch.from_numpy(kv.pages_of(one)).to(q.device)
        keys, values = keys_of(pages, head)
        positions = torch.arange(at.start, at.stop, device=q.device)
        want = harness.reference(q[at, heads], keys[:, None], values[:, None], positions, False)
        difference += float((out[at, heads] - want).square().sum())
        size += float(want.square().sum())
    return math.sqrt(difference / size)
