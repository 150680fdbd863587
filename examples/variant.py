"""A variant of your own: StreamingLLM's attention sinks with ALiBi biases, as two functions.

They are functions of positions, traced once: the C++ of the kernels, the NumPy evaluation for the
CPU and the band of keys that are visible at all come from that. The kernel is generated and
compiled here, GPU or not; the result is checked against a dense softmax.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from cute_attn import Problem, Variant, attention, build, choose

HEADS, HEAD_DIM, LENGTH = 8, 64, 200
SINKS, WINDOW = 4, 32


def visible(
    b: Any, h: Any, q_idx: Any, kv_idx: Any, *, sinks: int = SINKS, window: int = WINDOW
) -> Any:
    """The first `sinks` keys, and the last `window` up to the query's position."""
    return (kv_idx <= q_idx) & ((kv_idx < sinks) | (kv_idx > q_idx - window))


def biased(
    score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, alibi: float = 8.0 / HEADS
) -> Any:
    """ALiBi: head h subtracts 2^(-alibi (h + 1)) per token of distance."""
    slope = torch.exp2(-alibi * (h + 1))
    return score - slope * (q_idx - kv_idx)


SINKS_ALIBI = Variant("sinks_alibi", mask=visible, logits=biased)


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
    end = lines.index("}", next(i for i, line in enumerate(lines) if line.startswith("// Logits:")))
    print("\n".join(lines[start : end + 1]))
    return 0 if error < 4e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
