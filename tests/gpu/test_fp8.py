"""e4m3 queries, keys and values on Hopper, against float64 of the numbers that they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cute_attn import BatchAttention
from tests.gpu import oracle64
from tests.gpu.fp8 import (
    CASES,
    E4M3,
    LENGTHS,
    MOST_ERROR,
    SPLIT,
    VARIANTS,
    Fp8Batch,
    Fp8Case,
    as_bytes,
    dequantised,
    lse_bound,
    make,
    sinks_of,
    with_sinks,
)

pytestmark = pytest.mark.gpu

HEADS = 2
WINDOW, CAP = 100, 20.0


@pytest.fixture(autouse=True)
def hopper(arch: str) -> None:
    if arch != "sm_90a":
        pytest.skip(f"e4m3 products are for sm_90a; this is {arch}")


def planned(case: Fp8Case, batch: Fp8Batch, device: torch.device, **options: Any) -> BatchAttention:
    variant = VARIANTS[case.variant]
    wrapper = BatchAttention(
        HEADS * case.group, HEADS, case.dim, dtype=E4M3, variant=variant, device=device, **options
    )
    values = {"window": {"window_left": WINDOW}, "soft cap": {"logits_soft_cap": CAP}}
    heads = HEADS * case.group
    scales = torch.linspace(0.5, 2, heads, device=device)
    tensors = {
        "sinks": {"sink": sinks_of(heads, device)},
        "head scales": {"score_scale": scales, "value_scale": scales.flip(0).contiguous()},
    }
    wrapper.plan(
        batch.qo_indptr,
        batch.kv_format,
        scalars=values.get(case.variant),
        tensors=tensors.get(case.variant),
    )
    return wrapper


def wanted(case: Fp8Case, batch: Fp8Batch, device: torch.device, **scales: float) -> Any:
    options: dict[str, Any] = {"causal": case.variant != "full"}
    if case.variant == "window":
        options["window_left"] = WINDOW
    if case.variant == "soft cap":
        options["soft_cap"] = CAP
    given, heads = dequantised(batch, **scales), HEADS * case.group
    if case.variant == "head scales":
        scale = torch.linspace(0.5, 2, heads, device=device).double()[:, None]
        given["q"] = given["q"] * scale
        out, lse = oracle64.attend_batch(**given, **options)
        return out * scale.flip(0), lse
    out, lse = oracle64.attend_batch(**given, **options)
    return with_sinks(out, lse, sinks_of(heads, device)) if case.variant == "sinks" else (out, lse)


def assert_near(case: Fp8Case, got: Any, want: Any) -> float:
    err, _, far, exact = oracle64.errors(*got, *want)
    assert err <= MOST_ERROR and far <= lse_bound(case.dim, want[1]), (str(case), err, far)
    assert exact or case.variant == "sinks"
    return err


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("requests", [LENGTHS, SPLIT], ids=["borders", "split"])
def test_against_float64(
    case: Fp8Case,
    requests: list[tuple[int, int]],
    device: torch.device,
    record: Callable[..., None],
) -> None:
    batch = make(case, requests, HEADS, device)
    wrapper = planned(case, batch, device)
    out, lse = wrapper.run(batch.q, *batch.kv, return_lse=True)
    assert out.dtype == torch.bfloat16
    err = assert_near(case, (out, lse), wanted(case, batch, device))
    for _ in range(3):
        again, lse_again = wrapper.run(batch.q, *batch.kv, return_lse=True)
        assert torch.equal(again, out) and torch.equal(lse_again, lse)
    record("G", f"e4m3 {case} {len(requests)} requests", err=err)


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_scales(scale: float, device: torch.device) -> None:
    """Of keys in the softmax scale, so lse has it; of values in the output."""
    case = CASES[3]
    batch = make(case, LENGTHS, HEADS, device, seed=1)
    wrapper = planned(case, batch, device)
    got = wrapper.run(
        batch.q, *batch.kv, return_lse=True, sm_scale=scale * case.dim**-0.5, v_scale=1 / scale
    )
    assert_near(case, got, wanted(case, batch, device, k_scale=scale, v_scale=1 / scale))


def test_a_decode_is_the_last_row_of_a_prefill(device: torch.device) -> None:
    """At all lengths around the borders of tiles."""
    case = CASES[3]
    lengths = [*range(1, 20), *range(60, 70), *range(120, 136), *range(250, 260), 300]
    batch = make(case, [(n, n) for n in lengths], HEADS, device, seed=2)
    prefill, _ = planned(case, batch, device).run(batch.q, *batch.kv, return_lse=True)
    last = torch.tensor(batch.qo_indptr[1:], device=device) - 1
    rows = as_bytes(batch.q)[last].view(E4M3)
    decode = Fp8Batch(rows, batch.kv, batch.kv_format, batch.keys, batch.values, [1] * len(lengths))
    got = planned(case, decode, device).run(rows, *batch.kv)
    want = prefill[last].double()
    assert (got.double() - want).norm() <= MOST_ERROR * want.norm()


def test_large_and_rising_scores(device: torch.device) -> None:
    """Maxima that rise from block to block, far beyond what e4m3 holds relative to the first."""
    case = CASES[3]
    batch = make(case, [(130, 1500), (1, 2000)], HEADS, device, seed=3)
    for own in batch.keys:
        ramp = torch.linspace(4, 0.1, len(own), device=device)[:, None, None]  # last block first
        own.copy_((own.float() * ramp).to(E4M3))
    begin = 0
    for own in batch.keys:
        as_bytes(batch.kv[0])[begin : begin + len(own)] = as_bytes(own)
        begin += len(own)
    got = planned(case, batch, device).run(batch.q, *batch.kv, return_lse=True)
    assert_near(case, got, wanted(case, batch, device))


def test_nan_reaches_the_rows_that_see_it(device: torch.device) -> None:
    case = CASES[3]
    batch = make(case, [(64, 64), (64, 64)], HEADS, device, seed=4)
    as_bytes(batch.kv[0])[10, 0, 5] = 0x7F
    out = planned(case, batch, device).run(batch.q, *batch.kv).isnan().any(-1).any(-1)
    assert not out[:10].any() and out[10:64].all() and not out[64:].any()


def test_graph(device: torch.device) -> None:
    case = CASES[4]
    batch = make(case, LENGTHS, HEADS, device, seed=5)
    wrapper = planned(case, batch, device, cuda_graph=True)
    want = wrapper.run(batch.q, *batch.kv)
    out = torch.empty_like(want)
    wrapper.run(batch.q, *batch.kv, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        wrapper.run(batch.q, *batch.kv, out=out)
    out.fill_(torch.nan)
    graph.replay()
    assert torch.equal(out, want)
