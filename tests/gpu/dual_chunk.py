"""Dual-chunk attention of examples/, and its definition: one softmax over all earlier keys."""

from __future__ import annotations

import importlib.util
from itertools import accumulate, pairwise, product
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

from cute_attn import KernelSpec, Problem, RaggedKV, choose
from cute_attn.api.dispatch import tiles_per_sm
from cute_attn.scheduler.constants import H200
from tests.gpu.variant_case import HEADS, KV_HEADS, LENGTHS, random
from tests.gpu.variant_cases import PAGE_SIZES, pages
from tests.gpu.vector_cases import turned

DIM, CHUNK, LONGEST, THETA = 128, 48, 70, 1e5


def example() -> ModuleType:
    """The example, as a module."""
    path = Path(__file__).parents[2] / "examples" / "dual_chunk.py"
    spec = importlib.util.spec_from_file_location("dual_chunk_example", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse of one request, float64; rotated rows are rounded to the dtype of q."""
    dtype, group = q.dtype, q.shape[1] // k.shape[1]
    i = torch.arange(len(k) - len(q), len(k), device=q.device)
    j = torch.arange(len(k), device=q.device)
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))

    def at(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return turned(x, positions, theta=THETA).to(dtype).double()

    keys = at(k, j % CHUNK).repeat_interleave(group, 0)
    own, following = i % CHUNK, (i % CHUNK + CHUNK).clamp(max=LONGEST - 1)
    last = torch.full_like(i, LONGEST - 1)
    by_distance = torch.stack([at(q, positions) @ keys.mT for positions in (own, following, last)])
    apart = (i[:, None] // CHUNK - j // CHUNK).clamp(0, 2)
    scores = by_distance.gather(0, apart.expand(1, *by_distance.shape[1:]))[0] * DIM**-0.5
    scores = scores.masked_fill(j > i[:, None], -torch.inf)
    out = scores.softmax(-1) @ v.repeat_interleave(group, 0)
    return out.transpose(0, 1), scores.logsumexp(-1).transpose(0, 1)


def outputs(
    phase: str,
    page_size: int | None,
    device: torch.device,
    dtype: torch.dtype,
    schedule: str | None = None,
) -> tuple[torch.Tensor, ...]:
    """(out, lse, their dense counterparts) for LENGTHS[phase]."""
    q_len, kv_len = LENGTHS[phase]
    rows, keys = ([0, *accumulate(x)] for x in (q_len, kv_len))
    q = random(0, rows[-1], HEADS, DIM).to(device, dtype)
    k, v = (random(s, keys[-1], KV_HEADS, DIM).to(device, dtype) for s in (1, 2))
    kv_format, cache = RaggedKV(keys), (k, v)
    if page_size is not None:
        kv_format, cache = pages(k, v, keys, page_size)
    attention = example().DualChunkAttention(
        CHUNK, LONGEST, HEADS, KV_HEADS, DIM, dtype=dtype, device=device, schedule=schedule
    )
    attention.plan(rows, kv_format, theta=THETA)
    out, lse = attention.run(q, *cache)
    wanted = [
        dense(q[begin:end], k[first:last], v[first:last])
        for (begin, end), (first, last) in zip(pairwise(rows), pairwise(keys), strict=True)
    ]
    return out, lse, torch.cat([x for x, _ in wanted]), torch.cat([x for _, x in wanted])


def kernels(arch: str) -> list[KernelSpec]:
    """What `outputs` takes on a GPU, `ampere_tile` included."""
    specs, group = [], HEADS // KV_HEADS
    for variant, page_size in product(example().dual_chunk(CHUNK, LONGEST), PAGE_SIZES):
        problem = Problem(arch, "bf16", DIM, DIM, group, variant, page_size)
        for q_len, _ in LENGTHS.values():
            tiles = tiles_per_sm(np.array(q_len), max(q_len) * group, KV_HEADS, H200.sms)
            specs.append(choose(problem, rows=max(q_len) * group, tiles_per_sm=tiles))
        specs.append(choose(problem, rows=None, schedule="ampere_tile"))
    return list(dict.fromkeys(specs))
