"""The common serving case for tests of behaviour: 8/2 heads, head_dim 128, bf16, causal."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from cute_attn import BatchAttention
from tests.gpu import oracle64
from tests.gpu.batches import Batch, make_batch
from tests.gpu.check import BOUNDS, LSE_BOUND, ROW_BOUND
from tests.gpu.grid import FAMILIES, Case

QO_HEADS, KV_HEADS, DIM = 8, 2, 128
DTYPE = torch.bfloat16
PAGE_SIZE = 16

EVERYTHING = [
    (1, 5000), (129, 1024), (0, 17), (1, 1), (97, 97), (1, 0), (17, 2), (1, 129), (5, 900),
]  # fmt: skip
"""Decodes, a prefill, chunks, empty requests and more queries than keys."""


def serving_case(*, page_size: int = PAGE_SIZE, memory: str = "packed", seed: int = 0) -> Case:
    """The case; its requests are given to `serving_batch`."""
    return Case(
        family=FAMILIES[0],
        schedule="",
        variant="causal",
        page_size=page_size,
        table="csr" if page_size else "ragged",
        device_table=False,
        memory=memory,
        layout="NHD",
        batch="decode",
        lse=True,
        num_kv_heads=KV_HEADS,
        window_left=0,
        soft_cap=0.0,
        seed=seed,
    )


def serving_batch(
    requests: list[tuple[int, int]],
    device: torch.device,
    *,
    page_size: int = PAGE_SIZE,
    memory: str = "packed",
    seed: int = 0,
) -> Batch:
    """Tensors for (q_len, kv_len) pairs, poisoned; memory "combined": one tensor of K and V."""
    case = serving_case(page_size=page_size, memory=memory, seed=seed)
    return make_batch(case, device, requests=requests)


def serving_attention(device: torch.device, **options: Any) -> BatchAttention:
    """The wrapper."""
    return BatchAttention(QO_HEADS, KV_HEADS, DIM, dtype=DTYPE, device=device, **options)


def random_requests(seed: int, count: int, longest_q: int, longest_kv: int) -> list[Any]:
    """(q_len, kv_len) pairs: decodes with longest_q = 1, else any mix; some are empty."""
    rng = random.Random(seed)
    pairs = []
    for _ in range(count):
        q = rng.choice((1, 1, rng.randint(0, longest_q)))
        pairs.append((q, rng.choice((0, rng.randint(1, longest_kv), rng.randint(1, 64)))))
    return pairs


def assert_chain(calls: Sequence[Callable[..., Any]], batch: Batch, *, captured: bool) -> None:
    """Calls whose output is the queries of the next, with nothing between them, give the bits of
    calls with the device idle between them.

    Args:
        calls: `run` of planned wrappers.
        batch: what they were planned for.
        captured: in a replayed CUDA graph.
    """
    alone = [batch.q]
    for call in calls:
        alone.append(call(alone[-1], *batch.kv))
        torch.cuda.synchronize()
    assert all(out.isfinite().all() for out in alone)
    chain = [batch.q, *(torch.empty_like(batch.q) for _ in calls)]

    def run() -> None:
        for call, queries, out in zip(calls, chain[:-1], chain[1:], strict=True):
            call(queries, *batch.kv, out=out)

    run()  # argument blocks and tensor maps, before a capture
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
    for _ in range(3):
        for out in chain[1:]:
            out.fill_(torch.nan)
        torch.cuda.synchronize()
        graph.replay() if captured else run()
        torch.cuda.synchronize()
        for link, (got, want) in enumerate(zip(chain, alone, strict=True)):
            assert torch.equal(got, want), f"link {link}"


def assert_right(
    batch: Batch, out: torch.Tensor, lse: torch.Tensor | None = None, q: torch.Tensor | None = None
) -> float:
    """Compares with the oracle; returns the error.

    Args:
        batch: what was run.
        out, lse: results.
        q: queries, where they are not the batch's.
    """
    want, want_lse = oracle64.attend_batch(
        batch.q if q is None else q,
        batch.q_lens,
        batch.keys,
        batch.values,
        causal=True,
        **batch.oracle_options,
    )
    err, row, far, exact = oracle64.errors(out, lse, want, want_lse)
    bound = BOUNDS["fp16" if out.dtype == torch.float16 else "bf16"]
    assert err <= bound and row <= ROW_BOUND and far <= LSE_BOUND, (err, row, far)
    assert exact
    return err
