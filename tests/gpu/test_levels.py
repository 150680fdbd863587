"""`CompositeAttention` on a device: levels, prefixes that are found, CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from cute_attn import CompositeAttention
from tests.gpu import levels
from tests.gpu.check import BOUNDS, LSE_BOUND, ROW_BOUND

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", levels.CASES)
def test_against_a_dense_formula(
    name: str, device: torch.device, record: Callable[..., None]
) -> None:
    err, row, far, exact = levels.errors(name, device)
    record("G", f"levels: {name}", err=err)
    assert err <= BOUNDS["bf16"] and row <= ROW_BOUND and far <= LSE_BOUND and exact


def attention(device: torch.device, **options: object) -> CompositeAttention:
    return CompositeAttention(
        levels.HEADS, levels.KV_HEADS, levels.DIM, dtype=levels.DTYPE, device=device, **options
    )


def test_what_page_tables_share_is_found(device: torch.device, record: Callable[..., None]) -> None:
    kv = levels.samples(64, 8192, lambda i: 1 + 5 * i)
    rows = np.arange(65)
    q = levels.random(0, 64, levels.HEADS, levels.DIM).to(device, levels.DTYPE)
    shape = (kv.max_page + 1, 2, 16, levels.KV_HEADS, levels.DIM)
    cache = levels.random(1, *shape).to(device, levels.DTYPE)
    auto, never = (
        attention(device, share_prefixes=share).plan(rows, kv) for share in ("auto", "never")
    )
    assert auto.levels is not None and never.levels is None
    (out, lse), (want, want_lse) = (x.run(q, cache, return_lse=True) for x in (auto, never))
    err = float((out.double() - want.double()).norm() / want.double().norm())
    record("G", "levels: found in page tables", err=err)
    assert err <= 2 * BOUNDS["bf16"] and float((lse - want_lse).abs().max()) <= 2 * LSE_BOUND


def test_one_graph_for_steps_of_other_lengths(device: torch.device) -> None:
    heads, dim = levels.HEADS, levels.DIM
    steps = [
        levels.samples(32, prompt, own)
        for prompt, own in (
            (4096, lambda i: 10 + i),
            (2048, lambda i: 3 * i + 1),
            (512, lambda i: 200 - i),
        )
    ]
    rows = np.arange(33)
    made = attention(
        device, share_prefixes="always", cuda_graph=True, max_requests=64, max_pages=16384,
        max_rows=96,
    )  # fmt: skip
    q = levels.random(0, 40, heads, dim).to(device, levels.DTYPE)
    pages = max(kv.max_page for kv in steps) + 1
    cache = levels.random(1, pages, 2, 16, levels.KV_HEADS, dim).to(device, levels.DTYPE)
    out = torch.full((40, heads, dim), 7.0, device=device, dtype=levels.DTYPE)
    made.plan(rows, steps[0]).run(q, cache, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made.run(q, cache, out=out)
    for kv in (steps[1], steps[2], steps[0]):
        made.plan(rows, kv)
        graph.replay()
        wanted = attention(device, share_prefixes="never").plan(rows, kv).run(q[:32], cache)
        err = float((out[:32].double() - wanted.double()).norm() / wanted.double().norm())
        assert err <= 2 * BOUNDS["bf16"] and bool((out[32:] == 7).all())
