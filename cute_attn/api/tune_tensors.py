"""Random tensors of a step that is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from cute_attn.formats import KVFormat, PagedKV, RaggedKV
from cute_attn.tuning import TuneStep

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class StepTensors:
    """What `BatchAttention` takes for a step.

    Attributes:
        qo_indptr: (requests + 1,) query tokens, summed up.
        kv_format: of K and V, pages shuffled.
        q: (tokens, num_qo_heads, head_dim), of the step's dtype.
        caches: what `run` takes after q, several times over.
    """

    qo_indptr: list[int]
    kv_format: KVFormat
    q: torch.Tensor
    caches: list[list[torch.Tensor]]


def step_tensors(step: TuneStep, device: torch.device, *, count: int = 1) -> StepTensors:
    """The tensors of a step, always the same numbers.

    Args:
        step: the step.
        device: where they are.
        count: caches.

    Raises:
        torch.cuda.OutOfMemoryError: the GPU has too little memory for them.
    """
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        empty = torch.empty(shape, dtype=_DTYPES[step.dtype], device=device)
        return empty.normal_(generator=generator)

    rows = [*accumulate(step.q_lens, initial=0)]
    q = normal(rows[-1], step.num_qo_heads, step.head_dim)
    kv_format, shapes = _kv(step)
    caches = [[normal(*shape) for shape in shapes] for _ in range(count)]
    return StepTensors(rows, kv_format, q, caches)


def _kv(step: TuneStep) -> tuple[KVFormat, Sequence[tuple[int, ...]]]:
    """The format of K and V, pages shuffled, and the shapes of their tensors."""
    heads = step.num_kv_heads
    if step.page_size is None:
        tokens = sum(step.kv_lens)
        shapes = [(tokens, heads, step.head_dim), (tokens, heads, step.head_dim_vo)]
        return RaggedKV([*accumulate(step.kv_lens, initial=0)]), shapes
    counts = [-(-keys // step.page_size) for keys in step.kv_lens]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(0))
    pairs = zip(step.kv_lens, counts, strict=True)
    last = [keys - (pages - 1) * step.page_size for keys, pages in pairs]
    kv_format = PagedKV([*accumulate(counts, initial=0)], order.int(), last, step.page_size)
    return kv_format, [(sum(counts), 2, step.page_size, heads, step.head_dim)]
