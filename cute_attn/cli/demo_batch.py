"""The demo's input: real steps, scaled where a CPU must run them, and tensors of their lengths."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from cute_attn.api import PagedKV
from cute_attn.workloads import Step, load_steps

PAGE_SIZE = 16
HEAD_DIM = 128
_FIRST = ("azure-code-300", "azure-chat-900", "azure-chat-500", "mooncake-1400")
"""Taken first: a batch led by prefill, one led by decodes, decodes alone, very long requests."""


@dataclass(frozen=True)
class Heads:
    """Head counts of a layer."""

    qo: int
    kv: int

    def __str__(self) -> str:
        return f"{self.qo}/{self.kv}"


HEADS = Heads(32, 8)
SMALL_HEADS = Heads(8, 2)


def pick_steps(count: int) -> list[Step]:
    """`count` of the sixteen steps, unlike ones first."""
    steps = load_steps()
    first = [step for name in _FIRST for step in steps if step.name == name]
    return [*first, *(step for step in steps if step not in first)][:count]


def scale_down(step: Step, *, max_requests: int = 8, max_keys: int = 1024) -> tuple[Step, int]:
    """A step that a CPU runs in a second: fewer requests, all lengths divided by one number.

    Keeps the longest prefill chunks and evenly chosen others, sorted by length.

    Returns:
        the step, and what lengths were divided by.
    """
    by_rows = sorted(step.requests, reverse=True)
    prefill = [r for r in by_rows if r[0] > 1][: max_requests // 2]
    others = sorted(r for r in by_rows if r not in prefill)
    count = min(max_requests - len(prefill), len(others))
    chosen = np.linspace(0, len(others) - 1, count).round().astype(int)
    kept = [*prefill, *(others[i] for i in chosen)]
    divisor = max(1, -(-max(keys for _, keys in kept) // max_keys))
    requests = []
    for rows, keys in kept:
        fewer = max(1, rows // divisor)
        requests.append((fewer, max(fewer, keys // divisor)))
    return Step(step.name, tuple(requests)), divisor


@dataclass(frozen=True)
class Batch:
    """Tensors of one step.

    Attributes:
        step: the lengths.
        heads: head counts.
        qo_indptr: (requests + 1,) int64 on the host.
        pages: page numbers of each request, in order.
        kv_format: the same for the planner; page numbers on the device of the cache.
        q: (q_tokens, qo_heads, HEAD_DIM).
        cache: (pages, 2, PAGE_SIZE, kv_heads, HEAD_DIM); what no request owns is NaN.
    """

    step: Step
    heads: Heads
    qo_indptr: np.ndarray[tuple[int], np.dtype[np.int64]]
    pages: list[torch.Tensor]
    kv_format: PagedKV
    q: torch.Tensor
    cache: torch.Tensor

    @property
    def num_bytes(self) -> int:
        """Bytes that attention must move: K and V of all requests, q and out."""
        kv = 2 * sum(self.step.kv_lens) * self.heads.kv
        q_and_out = 2 * self.q.shape[0] * self.heads.qo
        return (kv + q_and_out) * HEAD_DIM * self.q.element_size()

    @property
    def flops(self) -> float:
        """4 HEAD_DIM per visible (query, key) pair and query head; causal, counted exactly."""
        pairs = sum(q * kv - q * (q - 1) // 2 for q, kv in self.step.requests)
        return 4.0 * HEAD_DIM * self.heads.qo * pairs


def cache_bytes(step: Step, heads: Heads) -> int:
    """Bytes of a bf16 cache that holds a step."""
    pages = sum(-(-keys // PAGE_SIZE) for keys in step.kv_lens) + 1
    return pages * 2 * PAGE_SIZE * heads.kv * HEAD_DIM * 2


def make_batch(step: Step, heads: Heads, device: torch.device, *, seed: int = 0) -> Batch:
    """Random bf16 tensors of a step's lengths, pages in random order."""
    generator = torch.Generator(device).manual_seed(seed)
    num_pages = [-(-keys // PAGE_SIZE) for keys in step.kv_lens]
    indptr = np.concatenate([[0], np.cumsum(num_pages)])
    total = int(indptr[-1])
    order = torch.randperm(total + 1, generator=generator, device=device).to(torch.int32)
    pages = [order[begin:end] for begin, end in pairwise(indptr)]
    last = [(keys - 1) % PAGE_SIZE + 1 for keys in step.kv_lens]

    cache = torch.empty(
        total + 1, 2, PAGE_SIZE, heads.kv, HEAD_DIM, dtype=torch.bfloat16, device=device
    )
    cache.normal_(generator=generator)
    # Nothing may depend on what no request owns.
    cache[int(order[total])] = torch.nan
    for own, used in zip(pages, last, strict=True):
        cache[own[-1].long(), :, used:] = torch.nan
    q = torch.empty(sum(step.q_lens), heads.qo, HEAD_DIM, dtype=torch.bfloat16, device=device)
    q.normal_(generator=generator)
    return Batch(
        step=step,
        heads=heads,
        qo_indptr=np.concatenate([[0], np.cumsum(step.q_lens)]).astype(np.int64),
        pages=pages,
        kv_format=PagedKV(indptr, order[:total], last, PAGE_SIZE),
        q=q,
        cache=cache,
    )
