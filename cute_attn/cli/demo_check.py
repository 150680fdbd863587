"""The demo's check: a dense float64 softmax over the gathered keys, and the errors against it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from cute_attn.cli.demo_batch import Batch

MAX_ERROR = 4e-3
MAX_ROW_ERROR = 2e-2
MAX_LSE_ERROR = 1e-3
"""Bounds for bf16: of the whole output (Frobenius norm, relative), of its worst row, of the lse."""

_MAX_SCORES = 1 << 25  # held at a time


@dataclass(frozen=True)
class Errors:
    """How far a result is from the dense softmax.

    Attributes:
        relative: Frobenius norm of the difference over that of the expected output.
        worst_row: the same of the worst (token, head) row, rows of at least a tenth of the typical
            norm.
        lse: largest absolute difference.
    """

    relative: float
    worst_row: float
    lse: float

    @property
    def passed(self) -> bool:
        """Within the bounds; NaN is not."""
        return (
            self.relative <= MAX_ERROR
            and self.worst_row <= MAX_ROW_ERROR
            and self.lse <= MAX_LSE_ERROR
        )


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention of one request by its definition, in float64.

    Args:
        q: (q_len, qo_heads, head_dim); the last query sees the last key.
        k, v: (kv_len, kv_heads, head_dim).

    Returns:
        out (q_len, qo_heads, head_dim) and lse (q_len, qo_heads), natural logarithm.
    """
    (q_len, qo_heads, head_dim), (kv_len, kv_heads, _) = q.shape, k.shape
    group = qo_heads // kv_heads
    keys, values = k.double().movedim(1, 0), v.double().movedim(1, 0)  # (kv_heads, kv_len, dim)
    positions = torch.arange(kv_len, device=q.device)
    rows = max(1, _MAX_SCORES // (qo_heads * kv_len))
    outs, lses = [], []
    for begin in range(0, q_len, rows):
        part = q[begin : begin + rows].double()
        count = part.shape[0]
        own = part.view(count, kv_heads, group, head_dim).permute(1, 0, 2, 3)
        scores = own.reshape(kv_heads, count * group, head_dim) @ keys.mT / math.sqrt(head_dim)
        at = kv_len - q_len + begin + torch.arange(count, device=q.device)
        hidden = positions > at.repeat_interleave(group)[:, None]
        scores.masked_fill_(hidden, -torch.inf)
        lse = scores.logsumexp(-1)  # (kv_heads, count * group)
        out = (scores - lse[..., None]).exp_() @ values
        outs.append(out.view(kv_heads, count, group, -1).permute(1, 0, 2, 3).flatten(1, 2))
        lses.append(lse.view(kv_heads, count, group).permute(1, 0, 2).flatten(1, 2))
    return torch.cat(outs), torch.cat(lses)


def compare(batch: Batch, out: torch.Tensor, lse: torch.Tensor) -> Errors:
    """Errors of a batch's output against `dense`, request by request."""
    difference, expected_norm, lse_errors = [], [], []
    for index, (pages, keys) in enumerate(zip(batch.pages, batch.step.kv_lens, strict=True)):
        rows = slice(int(batch.qo_indptr[index]), int(batch.qo_indptr[index + 1]))
        own = batch.cache[pages.long()]  # (pages, 2, page_size, kv_heads, dim)
        k, v = (own[:, which].flatten(0, 1)[:keys] for which in (0, 1))
        expected, expected_lse = dense(batch.q[rows], k, v)
        difference.append((out[rows].double() - expected).norm(dim=-1).flatten())
        expected_norm.append(expected.norm(dim=-1).flatten())
        lse_errors.append((lse[rows].double() - expected_lse).abs().max())
    apart, size = torch.cat(difference), torch.cat(expected_norm)
    typical = size.square().mean().sqrt()
    return Errors(
        relative=float(apart.norm() / size.norm()),
        worst_row=float((apart / size.clamp_min(0.1 * typical)).max()),
        lse=float(torch.stack(lse_errors).max()),
    )
