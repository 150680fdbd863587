"""A variant of your own: StreamingLLM's attention sinks with ALiBi biases, as two hooks.

A hook is one C++ expression for the kernels and one NumPy function for the CPU, over positions. The
kernel for it is generated and compiled here, GPU or not; the result is checked against a dense
softmax.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

from cute_attn import Problem, Variant, attention, build, choose
from cute_attn.variants import Band, Hook, Scalar

HEADS, HEAD_DIM, LENGTH = 8, 64, 200
SINKS, WINDOW = 4, 32


def visible(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, sinks: int, window: int, **_: Any) -> Any:
    """The first `sinks` keys, and the last `window` up to the query's position."""
    return (kv_idx <= q_idx) & ((kv_idx < sinks) | (kv_idx > q_idx - window))


def biased(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, alibi: float, **_: Any) -> Any:
    """ALiBi: head h subtracts 2^(-alibi (h + 1)) per token of distance."""
    return score - np.exp2(-alibi * (h + 1)) * (q_idx - kv_idx)


SINKS_ALIBI = Variant(
    "sinks_alibi",
    mask=Hook(
        "sinks and window",
        "kv_idx <= q_idx && (kv_idx < sinks || kv_idx > q_idx - window)",
        visible,
    ),
    logits=Hook("ALiBi", "score - exp2f(-alibi * float(h + 1)) * float(q_idx - kv_idx)", biased),
    scalars=(
        Scalar("sinks", "i32", SINKS, "first keys that stay visible"),
        Scalar("window", "i32", WINDOW, "last keys that are visible"),
        Scalar("alibi", "f32", 8.0 / HEADS, "ALiBi's slope exponent, 8 / heads"),
    ),
    band=Band(right=0),  # nothing after the query: KV blocks there are never read
    band_is_mask=False,  # inside the band the mask still has to be asked
)


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same by its definition, (length, heads, head_dim) in float64."""
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    i, j = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)[None, :]
    slopes = 2.0 ** (-8.0 / HEADS * (torch.arange(HEADS)[:, None, None] + 1))
    scores = q @ k.mT / HEAD_DIM**0.5 - slopes * (i - j)
    keep = (j <= i) & ((j < SINKS) | (j > i - WINDOW))
    out: torch.Tensor = scores.masked_fill(~keep, -torch.inf).softmax(-1) @ v
    return out.transpose(0, 1)


def main() -> int:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)
    shape = (1, LENGTH, HEADS, HEAD_DIM)
    q, k, v = (torch.randn(shape, generator=generator).to(torch.bfloat16) for _ in range(3))
    out = attention(q.to(device), k.to(device), v.to(device), variant=SINKS_ALIBI)
    expected = dense(q[0], k[0], v[0])
    error = float((out[0].cpu().double() - expected).norm() / expected.norm())
    print(f"{device}: error against a dense softmax {error:.1e}")

    problem = Problem("sm_80", "bf16", HEAD_DIM, HEAD_DIM, 1, SINKS_ALIBI, page_size=None)
    kernel = build(choose(problem, rows=None))
    print(f"{kernel.name}: {kernel.resources.registers} registers")
    lines = kernel.source.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("// Mask:"))
    print("\n".join(lines[start : start + 12]))
    return 0 if error < 4e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
