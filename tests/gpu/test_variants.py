"""Traced variants, scalars and tensors on a device, against dense formulas in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from cute_attn import BatchAttention, DeviceKV, RaggedKV
from tests.gpu import oracle64
from tests.gpu.check import BOUNDS, LSE_BOUND, ROW_BOUND
from tests.gpu.variant_case import (
    DIM,
    HEADS,
    KV_HEADS,
    LENGTHS,
    LONGEST,
    VariantCase,
    dense,
    random,
)
from tests.gpu.variant_cases import (
    CASES,
    EVERYWHERE,
    outputs,
)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("phase", [*LENGTHS, "ampere_tile"])
@pytest.mark.parametrize("name", CASES)
def test_against_a_dense_formula(
    name: str, phase: str, device: torch.device, record: Callable[..., None]
) -> None:
    schedule = phase if phase not in LENGTHS else None
    phase = "append" if schedule else phase
    out, lse, want, want_lse = outputs(name, phase, device, torch.bfloat16, schedule=schedule)
    err, row, far, exact = oracle64.errors(out, lse, want, want_lse)
    record("G", f"variant {name} {phase} {schedule or ''}".strip(), err=err)
    assert err <= BOUNDS["bf16"] and row <= ROW_BOUND and far <= LSE_BOUND
    assert exact or CASES[name].finish is not None  # which empty rows have as well


@pytest.mark.parametrize("schedule", [None, "hopper_tile", "ampere_tile"])
@pytest.mark.parametrize(("name", "phase", "page_size"), EVERYWHERE)
def test_every_kernel_and_format(
    name: str,
    schedule: str | None,
    phase: str,
    page_size: int | None,
    device: torch.device,
    record: Callable[..., None],
) -> None:
    if schedule == "hopper_tile" and torch.cuda.get_device_capability(device)[0] < 9:
        pytest.skip("no TMA")
    out, lse, want, want_lse = outputs(
        name, phase, device, torch.bfloat16, schedule=schedule, page_size=page_size
    )
    err, row, far, exact = oracle64.errors(out, lse, want, want_lse)
    record("G", f"variant {name} {phase} {schedule} page {page_size}", err=err)
    assert err <= BOUNDS["bf16"] and row <= ROW_BOUND and far <= LSE_BOUND
    assert exact or CASES[name].finish is not None
    if lse is not None:
        assert torch.equal(lse.isneginf(), want_lse.isneginf())


@pytest.mark.parametrize("plans", ["append", "decode", "decode on the device"])
def test_live_scalars_change_between_replays(plans: str, device: torch.device) -> None:
    """Planned again with other values, the captured kernel masks and bends by those. A captured
    plan keeps its window."""
    q_len, kv_len = LENGTHS[plans.split()[0]]
    rows, keys = ([0, *itertools.accumulate(x)] for x in (q_len, kv_len))
    q = random(0, rows[-1], HEADS, DIM).to(device, torch.bfloat16)
    k, v = (random(s, keys[-1], KV_HEADS, DIM).to(device, torch.bfloat16) for s in (1, 2))
    out, lse = torch.empty_like(q), torch.empty(rows[-1], HEADS, device=device)
    variant = CASES["live"].variant
    batch = BatchAttention(HEADS, KV_HEADS, DIM, variant=variant, device=device, cuda_graph=True)
    kv = DeviceKV.from_ragged(torch.tensor(keys, dtype=torch.int32, device=device), keys[-1])
    on_device = "device" in plans

    def plan(left: int, cap: float) -> None:
        scalars = {"window_left": left, "logits_soft_cap": cap}
        if on_device:
            batch.plan_on_device(kv, scalars=scalars)
        else:
            batch.plan(rows, RaggedKV(keys), scalars=scalars)

    batch.plan(rows, RaggedKV(keys))
    plan(70, 30.0)
    batch.run(q, k, v, out=out, lse=lse)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        if on_device:
            plan(70, 30.0)
        batch.run(q, k, v, out=out, lse=lse)
    for left, cap in ((LONGEST, 30.0), (70, 1.5), (0, 2.0), (129, 5.0)):
        left = 70 if on_device else left
        plan(left, cap)
        out.fill_(torch.nan)
        graph.replay()
        case = VariantCase(
            variant,
            lambda b, h, i, j, left=left: (j <= i) & (i - j <= left),
            lambda s, b, h, i, j, cap=cap: cap * (s / cap).tanh(),
        )
        for b, (begin, end) in enumerate(itertools.pairwise(rows)):
            own = slice(keys[b], keys[b + 1])
            want, want_lse = dense(q[begin:end], k[own], v[own], b, case)
            got = oracle64.errors(out[begin:end], lse[begin:end], want, want_lse)
            err, row, far, exact = got
            assert err <= BOUNDS["bf16"] and row <= ROW_BOUND and far <= LSE_BOUND and exact


@pytest.mark.parametrize("phase", ["append", "decode"])
def test_documents_change_between_replays(phase: str, device: torch.device) -> None:
    """What may be skipped is found out anew in each replay."""
    q_len, kv_len = LENGTHS[phase]
    rows, keys = ([0, *itertools.accumulate(x)] for x in (q_len, kv_len))
    q = random(0, rows[-1], HEADS, DIM).to(device, torch.bfloat16)
    k, v = (random(s, keys[-1], KV_HEADS, DIM).to(device, torch.bfloat16) for s in (1, 2))
    out, lse = torch.empty_like(q), torch.empty(rows[-1], HEADS, device=device)
    document = torch.zeros(3, LONGEST, dtype=torch.int32, device=device)
    batch = BatchAttention(
        HEADS, KV_HEADS, DIM, variant=CASES["documents"].variant, device=device, cuda_graph=True
    )
    batch.plan(rows, RaggedKV(keys), tensors={"document": document})
    batch.run(q, k, v, out=out, lse=lse)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch.run(q, k, v, out=out, lse=lse)
    for longest in (LONGEST, 150, 9):
        numbers = torch.arange(LONGEST, device=device).div(longest, rounding_mode="floor").int()
        if longest == 150:
            numbers = numbers.flip(0)
        document.copy_(numbers)
        out.fill_(torch.nan)
        graph.replay()
        case = VariantCase(
            batch._shape.variant, lambda b, h, i, j, n=numbers: (j <= i) & (n[i] == n[j])
        )
        for b, (begin, end) in enumerate(itertools.pairwise(rows)):
            own = slice(keys[b], keys[b + 1])
            want, want_lse = dense(q[begin:end], k[own], v[own], b, case)
            got = oracle64.errors(out[begin:end], lse[begin:end], want, want_lse)
            err, row, far, exact = got
            assert err <= BOUNDS["bf16"] and row <= ROW_BOUND and far <= LSE_BOUND and exact
