"""All variants that are run against their dense formulas, their outputs and kernels."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from cute_attn import (
    BatchAttention,
    KernelSpec,
    PagedKV,
    Problem,
    RaggedKV,
    choose,
)
from cute_attn.api.dispatch import tiles_per_sm
from cute_attn.scheduler.constants import H200
from tests.gpu.score_cases import (
    SCORE_CASES,
)
from tests.gpu.variant_case import (
    HEADS,
    KV_HEADS,
    LENGTHS,
    ROW_LENGTHS,
    dense,
    random,
)
from tests.gpu.vector_cases import (
    VECTOR_CASES,
)

CASES = {**SCORE_CASES, **VECTOR_CASES}
ROW_CASES = [name for name, x in SCORE_CASES.items() if x.state or x.finish or not x.softmax]
"""Those that act on rows."""
PAGE_SIZES = (None, 1, 16)
"""Of their KV, and of that of the built-in variants."""
BUILT_IN = (
    "full", "causal", "window", "both_sides", "chunks", "prefix", "soft_cap", "alibi", "documents",
    "relative", "custom", "tree", "forgetting",
)  # fmt: skip
"""Cases of built-in variants that act on scores; and one that was planned by nobody."""
BUILT_IN_VECTORS = tuple(
    f"{name}_{page_size or 'ragged'}"
    for page_size in PAGE_SIZES
    for name in (
        "rope", "rope_partly", "rope_llama3", "rope_yarn", "rope_at", "rope_sections",
        "qk_norm_rope", "streaming",
    )
)  # fmt: skip
"""Cases of those that transform rows, each in every KV format already."""
EVERYWHERE = [
    *itertools.product(BUILT_IN, LENGTHS, PAGE_SIZES),
    *itertools.product(ROW_CASES, ROW_LENGTHS, PAGE_SIZES),
    *((name, phase, CASES[name].page_size) for name in BUILT_IN_VECTORS for phase in LENGTHS),
]
"""Case, phase and tokens per page of what every kernel family runs."""


PAGED = frozenset(list(SCORE_CASES)[::2])
"""Those with pages of 16 keys; the others are ragged."""


def page_size_of(name: str) -> int | None:
    """Tokens per page of a case; None: ragged."""
    return 16 if name in PAGED else CASES[name].page_size


def outputs(
    name: str,
    phase: str,
    device: torch.device,
    dtype: torch.dtype,
    *,
    schedule: str | None = None,
    with_plan: bool = True,
    page_size: int | None = -1,
    batch_invariant: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor]:
    """(out, lse, their dense counterparts) of one case; lse is None without softmax.

    Args:
        name: of CASES.
        phase: of ROW_LENGTHS.
        device, dtype: of q, k and v.
        schedule: kernel family, or None.
        with_plan: tensors are given to plan(), else to run().
        page_size: None: ragged; -1: that of the case.
        batch_invariant: as of `BatchAttention`.
    """
    case, (q_len, kv_len) = CASES[name], ROW_LENGTHS[phase]
    rows, keys = ([0, *itertools.accumulate(x)] for x in (q_len, kv_len))
    q = random(0, rows[-1], HEADS, case.dim).to(device, dtype)
    k, v = (random(s, keys[-1], KV_HEADS, case.dim).to(device, dtype) for s in (1, 2))
    given = {**case.tensors, **case.of_lengths(q_len, kv_len)}
    tensors = {name: x.to(device) for name, x in given.items()}
    batch = BatchAttention(
        HEADS,
        KV_HEADS,
        case.dim,
        dtype=dtype,
        variant=case.variant,
        device=device,
        schedule=schedule,
        batch_invariant=batch_invariant,
    )
    if page_size == -1:
        page_size = page_size_of(name)
    kv_format, cache = RaggedKV(keys), (k, v)
    if page_size is not None:
        kv_format, cache = pages(k, v, keys, page_size)
    planned = tensors if with_plan else None
    batch.plan(rows, kv_format, scalars=case.scalars, tensors=planned)
    later = None if with_plan else tensors
    result = batch.run(q, *cache, return_lse=case.softmax, tensors=later)
    out, lse = result if case.softmax else (result, None)
    wanted = [
        dense(q[begin:end], k[keys[b] : keys[b + 1]], v[keys[b] : keys[b + 1]], b, case)
        for b, (begin, end) in enumerate(itertools.pairwise(rows))
    ]
    return out, lse, torch.cat([x for x, _ in wanted]), torch.cat([x for _, x in wanted])


def pages(
    k: torch.Tensor, v: torch.Tensor, keys: list[int], size: int
) -> tuple[PagedKV, tuple[torch.Tensor, ...]]:
    """The same keys in pages of `size`, the pages of a request from the back to the front."""
    lengths = np.diff(keys)
    pages = -(-lengths // size)
    indptr = np.concatenate([[0], np.cumsum(pages)])
    cache = k.new_zeros(int(indptr[-1]), 2, size, *k.shape[1:])
    indices: list[int] = []
    for b, count in enumerate(pages.tolist()):
        own = list(range(int(indptr[b]), int(indptr[b]) + count))[::-1]
        indices += own
        for n, page in enumerate(own):
            rows = slice(keys[b] + size * n, min(keys[b] + size * n + size, keys[b + 1]))
            used = rows.stop - rows.start
            cache[page, 0, :used], cache[page, 1, :used] = k[rows], v[rows]
    last = (lengths - size * (pages - 1)).clip(min=1).tolist()  # of no page: not looked at
    return PagedKV(indptr.tolist(), indices, last, size), (cache,)


def kernels(arch: str) -> list[KernelSpec]:
    """Every kernel that the cases take on a GPU, `ampere_tile` included."""
    specs = []
    for name, case in CASES.items():
        group, dim = HEADS // KV_HEADS, case.dim
        everywhere = list(dict.fromkeys(size for own, _, size in EVERYWHERE if own == name))
        for page_size in everywhere or [page_size_of(name)]:
            problem = Problem(arch, "bf16", dim, dim, group, case.variant, page_size)
            for q_len, _ in ROW_LENGTHS.values():
                rows = max(q_len) * HEADS // KV_HEADS
                tiles = tiles_per_sm(np.array(q_len), rows, KV_HEADS, H200.sms)
                specs.append(choose(problem, rows=rows, tiles_per_sm=tiles))
                if everywhere and arch == "sm_90a":
                    specs.append(choose(problem, rows=rows, schedule="hopper_tile"))
            specs.append(choose(problem, rows=None, schedule="ampere_tile"))
    return list(dict.fromkeys(specs))
