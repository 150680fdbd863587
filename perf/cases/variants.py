"""Variants beside our own plain kernels and FlexAttention (section V).

Prefill, 16 heads, head_dim 128, ragged, with the names of the peers' records; and decode of 64
requests of 8k keys, 32/8 heads, over pages of 16. Section R: StreamingLLM decode, 40 heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from cute_attn import (
    KernelSpec,
    Problem,
    Variant,
    alibi,
    attention_sinks,
    causal,
    choose,
    document_mask,
    full,
    prefix_lm,
    relative_bias,
    rope,
    sigmoid_attention,
    sliding_window,
    soft_cap,
    streaming_llm,
)
from cute_attn.api.dispatch import tiles_per_sm
from cute_attn.scheduler.constants import H200

SHAPES = {"b4 s4096": (4, 4096), "b1 s16384": (1, 16384)}
PLAIN_SHAPES = {"b2 s8192": (2, 8192)}
"""Beside SHAPES, of hooks and of the causal kernel that they are compared with."""
AGAINST_PLAIN = ("causal", "alibi", "relative", "rope", "sigmoid", "sinks", "softcap30")
STREAMING = [(batch, window) for window in (1024, 2048, 4096) for batch in (1, 16, 64)]
"""Requests and keys of section R."""
STREAMING_HEADS, SINKS = 40, 4
HEADS, DIM = 16, 128
WINDOW, DOCUMENT, CAP, REACH = 1024, 700, 30.0, 128
DECODE_REQUESTS, DECODE_KEYS, DECODE_HEADS, DECODE_KV_HEADS = 64, 8192, 32, 8
PAGE_SIZE = 16  # of decode

Keep = Callable[[Any, Any], Any]
"""(query positions, key positions) -> visible."""
Bend = Callable[[torch.Tensor, Any, Any, Any], torch.Tensor]
"""(scores, heads, query positions, key positions) -> scores."""
Rows = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(queries or keys (heads, length, dim), positions (length,)) -> the same, transformed."""


@dataclass(frozen=True)
class VariantCase:
    """A variant at one length, with a dense formula that knows no `Variant`.

    Attributes:
        variant: what is measured.
        keep, bend: the formula.
        rows: what becomes of queries and keys in it.
        sinks: (heads,) logits that take part in the softmax, or None.
        softmax: False: scores are weights.
        scalars: of the variant.
        tensors: of the variant, on the CPU.
    """

    variant: Variant
    keep: Keep
    bend: Bend = field(default=lambda scores, h, i, j: scores)
    rows: Rows = field(default=lambda x, positions: x)
    sinks: torch.Tensor | None = None
    softmax: bool = True
    scalars: dict[str, float | int] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


def _all(i: Any, j: Any) -> Any:
    return (j >= 0) & (i >= 0)


def _past(i: Any, j: Any) -> Any:
    return j <= i


def _turned(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary embedding in halves, base 10,000."""
    half = x.shape[-1] // 2
    frequency = 10000.0 ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    angle = positions.double()[:, None] * frequency
    cosine, sine = angle.cos().to(x), angle.sin().to(x)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)


def streaming_cases(window: int) -> dict[str, VariantCase]:
    """Section R: the cache holds sinks and window; beside it attention without an embedding."""
    return {
        "streaming": VariantCase(
            streaming_llm(),
            _past,
            rows=_turned,
            scalars={"sinks": SINKS, "window": window - SINKS},
        ),
        "plain": VariantCase(causal(), _past),
    }


def variant_cases(requests: int, length: int, heads: int) -> dict[str, VariantCase]:
    """By the peers' names: requests of `length` positions, `heads` query heads."""
    slopes = torch.tensor([2.0 ** (-8.0 / heads * (h + 1)) for h in range(heads)])
    documents = (torch.arange(length, dtype=torch.int32) // DOCUMENT).repeat(requests, 1)
    generator = torch.Generator().manual_seed(7)
    bias = torch.randn(heads, 2 * REACH + 1, generator=generator)
    sinks = torch.linspace(-2, 6, heads)
    prefix = length // 4

    def with_slopes(scores: torch.Tensor, h: Any, i: Any, j: Any) -> torch.Tensor:
        return scores + slopes.to(scores)[h] * (j - i)

    def with_bias(scores: torch.Tensor, h: Any, i: Any, j: Any) -> torch.Tensor:
        return scores + bias.to(scores)[h, (i - j).clamp(-REACH, REACH) + REACH]

    return {
        "full": VariantCase(full(), _all),
        "causal": VariantCase(causal(), _past),
        "softcap30": VariantCase(
            causal() & soft_cap(),
            _past,
            lambda scores, h, i, j: CAP * (scores / CAP).tanh(),
            scalars={"logits_soft_cap": CAP},
        ),
        "alibi": VariantCase(causal() & alibi(heads), _past, with_slopes),
        "window1024": VariantCase(
            causal() & sliding_window(),
            lambda i, j: (j <= i) & (i - j < WINDOW),
            scalars={"window_left": WINDOW - 1},
        ),
        "document700": VariantCase(
            causal() & document_mask(),
            lambda i, j: (j <= i) & (i // DOCUMENT == j // DOCUMENT),
            tensors={"document": documents},
        ),
        "prefixlm": VariantCase(
            prefix_lm(),
            lambda i, j: (j <= i) | (j < prefix),
            scalars={"prefix_length": prefix},
        ),
        "relative": VariantCase(
            causal() & relative_bias(REACH), _past, with_bias, tensors={"bias": bias}
        ),
        "rope": VariantCase(causal() & rope(), _past, rows=_turned),
        "sinks": VariantCase(
            causal() & attention_sinks(), _past, sinks=sinks, tensors={"sink": sinks}
        ),
        "sigmoid": VariantCase(
            causal() & sigmoid_attention(1),  # the default is part of the kernel's name
            _past,
            lambda scores, h, i, j: 1 / (1 + length * (-scores).exp()),
            softmax=False,
            scalars={"sigmoid_bias": -math.log(length)},
        ),
    }


def variant_specs(arch: str) -> list[KernelSpec]:
    """Kernels of sections V and R on a device of `arch`."""
    group = DECODE_HEADS // DECODE_KV_HEADS
    tokens = np.ones(DECODE_REQUESTS, np.int64)
    tiles = tiles_per_sm(tokens, group, DECODE_KV_HEADS, H200.sms)
    found = []
    in_decode = variant_cases(1, 1, DECODE_HEADS)  # ALiBi: slopes by the number of heads
    for name, case in variant_cases(1, 1, HEADS).items():
        prefill = Problem(arch, "bf16", DIM, DIM, 1, case.variant, None)
        found += [choose(prefill, rows=None, long=long) for long in (False, True)]
        decode = Problem(arch, "bf16", DIM, DIM, group, in_decode[name].variant, PAGE_SIZE)
        found.append(choose(decode, rows=group, tiles_per_sm=tiles))
    for batch, window in STREAMING:
        tiles = tiles_per_sm(np.ones(batch, np.int64), 1, STREAMING_HEADS, H200.sms)
        for case in streaming_cases(window).values():
            decode = Problem(arch, "bf16", DIM, DIM, 1, case.variant, PAGE_SIZE)
            found.append(choose(decode, rows=1, tiles_per_sm=tiles))
    return list(dict.fromkeys(found))


def visible_pairs(case: VariantCase, length: int) -> int:
    """(query, key) pairs of a request and head that the mask keeps."""
    keys = torch.arange(length)
    return sum(
        int(case.keep(torch.arange(begin, min(begin + 1024, length))[:, None], keys).sum())
        for begin in range(0, length, 1024)
    )
