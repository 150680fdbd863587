"""Prefill and decode of a step in two launches that run side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cute_attn import causal, sliding_window
from tests.gpu.batches import make_batch
from tests.gpu.serving import (
    assert_chain,
    assert_right,
    serving_attention,
    serving_batch,
    serving_case,
)

pytestmark = pytest.mark.gpu

DECODES = [(1, 12_000)] * 9  # enough to read that a launch of its own is worth it
MIXED = [*DECODES[:4], (700, 700), (0, 17), (130, 9000), (5, 0), (1, 0), *DECODES[4:], (1, 3)]
BALANCED = [(2000, 6000), *DECODES]  # some 60 us of either at once
LINKS = 6


@pytest.fixture(autouse=True)
def _needs_hopper(arch: str) -> None:
    if arch != "sm_90a":
        pytest.skip(f"side by side is for sm_90a; this is {arch}")


@pytest.mark.parametrize("page_size", [16, 0, 3])
@pytest.mark.parametrize("given", [False, True], ids=["own workspace", "given workspace"])
def test_both_are_right(given: bool, page_size: int, device: torch.device) -> None:
    batch = serving_batch(MIXED, device, page_size=page_size)
    options = {}
    if given:
        size = serving_attention(device).workspace_size(page_size or None)
        options["workspace"] = torch.full((size,), 0xFF, dtype=torch.uint8, device=device)
    wrapper = serving_attention(device, **options).plan(batch.qo_indptr, batch.kv_format)
    assert len(wrapper.plans) == 2
    assert all(plan.num_split_tiles > 0 for plan in wrapper.plans)
    out = torch.full_like(batch.q, torch.nan)
    lse = torch.full(out.shape[:2], torch.nan, device=device)
    wrapper.run(batch.q, *batch.kv, out=out, lse=lse)
    assert_right(batch, out, lse)
    for _ in range(3):
        again, again_lse = wrapper.run(batch.q, *batch.kv, return_lse=True)
        assert torch.equal(again, out) and torch.equal(again_lse, lse)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LINKS):
            wrapper.run(batch.q, *batch.kv, out=again, lse=again_lse)
    for _ in range(3):
        again.fill_(torch.nan)
        graph.replay()
        assert torch.equal(again, out) and torch.equal(again_lse, lse)


@pytest.mark.parametrize("window", [None, 11_000], ids=["causal", "window"])
@pytest.mark.parametrize(
    ("decodes", "blocks_per_sm"), [(DECODES, 1), ([(1, 1500)] * 80, 2), ([(1, 1500)] * 300, 3)]
)
def test_kernels_of_decode(
    decodes: list[tuple[int, int]], blocks_per_sm: int, window: int | None, device: torch.device
) -> None:
    """The fewer the tiles the larger the blocks; also with a window."""
    case, variant = serving_case(), causal()
    if window is not None:
        case = replace(case, variant="causal_window", window_left=window)
        variant = causal() & sliding_window()
    batch = make_batch(case, device, requests=[*decodes, (700, 900)])
    wrapper = serving_attention(device, variant=variant)
    wrapper.plan(batch.qo_indptr, batch.kv_format, scalars=batch.scalars)
    assert [kernel.spec.schedule for kernel in wrapper.kernels] == ["hopper_tile", "ampere_decode"]
    assert wrapper.kernels[1].spec.tile.blocks_per_sm == blocks_per_sm
    out, lse = wrapper.run(batch.q, *batch.kv, return_lse=True)
    assert_right(batch, out, lse)


@pytest.mark.parametrize("captured", [False, True], ids=["stream", "graph"])
def test_who_follows_waits_for_both(captured: bool, device: torch.device) -> None:
    """The output is the queries of a launch that starts early, and its output theirs."""
    batch = serving_batch(BALANCED, device)
    both = serving_attention(device).plan(batch.qo_indptr, batch.kv_format)
    one = serving_attention(device, schedule="hopper_tile").plan(batch.qo_indptr, batch.kv_format)
    assert (len(both.plans), len(one.plans)) == (2, 1)
    assert_chain([both.run, one.run] * (LINKS // 2), batch, captured=captured)


def test_the_plan_of_the_next_step(device: torch.device) -> None:
    """Steps of one and of two launches in turn, planned while the last one still runs."""
    wrapper = serving_attention(device)
    batches = [serving_batch(r, device, seed=i) for i, r in enumerate((MIXED, DECODES, MIXED[:7]))]
    want = []
    for batch in batches:
        wrapper.plan(batch.qo_indptr, batch.kv_format)
        want.append(wrapper.run(batch.q, *batch.kv))
        torch.cuda.synchronize()
        assert_right(batch, want[-1])
    for _ in range(5):
        got = []
        for batch in batches:
            wrapper.plan(batch.qo_indptr, batch.kv_format)
            got.append(wrapper.run(batch.q, *batch.kv))
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
