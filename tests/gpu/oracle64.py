"""The oracle on a device: dense float64 softmax in torch, and the same error measures.

`tests/oracle.py` is the definition; this is a second, faster text of it (5000 keys, many heads),
compared with it in test_oracle64.py. It imports nothing from `cute_attn`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

_MAX_SCORES = 1 << 26  # scores held at a time


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window_left: int | None = None,
    soft_cap: float | None = None,
    sm_scale: float | None = None,
    seen: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of one request; the last query stands at the last key.

    Args:
        q: (q_len, num_qo_heads, head_dim).
        k, v: (kv_len, num_kv_heads, head_dim).
        causal, window_left, soft_cap: masks and logits; the cap comes before the masks.
        sm_scale: default 1 / sqrt(head_dim).
        seen: (q_len, kv_len) bools, a further mask.

    Returns:
        out (q_len, num_qo_heads, head_dim) and lse (q_len, num_qo_heads), float64, natural log;
        0 and -inf for rows that see nothing.
    """
    (q_len, qo_heads, dim), (kv_len, kv_heads, _) = q.shape, k.shape
    scale = 1 / math.sqrt(dim) if sm_scale is None else sm_scale
    group = qo_heads // kv_heads
    out = torch.zeros((q_len, qo_heads, v.shape[-1]), dtype=torch.float64, device=q.device)
    lse = torch.full((q_len, qo_heads), -math.inf, dtype=torch.float64, device=q.device)
    if kv_len == 0 or q_len == 0:
        return out, lse
    keys = k.double().permute(1, 2, 0)  # (kv_heads, dim, kv)
    values = v.double().transpose(0, 1)  # (kv_heads, kv, dim)
    key_positions = torch.arange(kv_len, device=q.device)
    step = max(1, _MAX_SCORES // (kv_len * qo_heads))
    for begin in range(0, q_len, step):
        rows = q[begin : begin + step].double()
        n = rows.shape[0]
        stacked = rows.view(n, kv_heads, group, dim).permute(1, 2, 0, 3)
        s = (stacked.reshape(kv_heads, group * n, dim) @ keys) * scale
        if soft_cap is not None:
            s = soft_cap * torch.tanh(s / soft_cap)
        positions = torch.arange(begin, begin + n, device=q.device) + kv_len - q_len
        hidden = torch.zeros((n, kv_len), dtype=torch.bool, device=q.device)
        if causal:
            hidden |= key_positions > positions[:, None]
        if window_left is not None:
            hidden |= key_positions < positions[:, None] - window_left
        if seen is not None:
            hidden |= ~seen[begin : begin + n]
        s.view(kv_heads, group, n, kv_len).masked_fill_(hidden, -math.inf)
        total = torch.logsumexp(s, dim=-1, keepdim=True)
        p = torch.exp(s - torch.where(total > -math.inf, total, torch.zeros_like(total)))
        part = (p @ values).view(kv_heads, group, n, -1).permute(2, 0, 1, 3)
        out[begin : begin + n] = part.reshape(n, qo_heads, -1)
        lse[begin : begin + n] = total.view(kv_heads, group, n).permute(2, 0, 1).reshape(n, -1)
    return out, lse


def attend_batch(
    q: torch.Tensor,
    q_lens: Sequence[int],
    keys: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    *,
    causal: bool = False,
    window_left: int | None = None,
    soft_cap: float | None = None,
    sm_scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`attend` for every request; q (q_tokens, num_qo_heads, head_dim) holds their queries in
    order."""
    outs, lses = [], []
    for rows, k, v in zip(q.split(list(q_lens)), keys, values, strict=True):
        out, lse = attend(
            rows, k, v, causal=causal, window_left=window_left, soft_cap=soft_cap, sm_scale=sm_scale
        )
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs), torch.cat(lses)


def errors(
    out: torch.Tensor, lse: torch.Tensor | None, want: torch.Tensor, want_lse: torch.Tensor
) -> tuple[float, float, float, bool]:
    """(Frobenius-relative error, worst row, largest lse difference, empty rows exact?).

    A row's error is relative to its norm, or to a tenth of the typical one if that is larger. NaN
    anywhere makes the error NaN. Empty rows: where want_lse is -inf, out must be exactly 0 and lse
    -inf.
    """
    empty = torch.isneginf(want_lse)
    exact = ~(out[empty] != 0).any()
    diff = (out.double() - want).norm(dim=-1)
    size = want.norm(dim=-1)
    typical = size.square().mean().sqrt() if size.numel() else size.sum()
    typical = torch.where(typical > 0, typical, torch.ones_like(typical))
    frobenius = diff.norm() / torch.where(size.norm() > 0, size.norm(), torch.ones_like(typical))
    rows = diff / torch.maximum(size, 0.1 * typical)
    worst = rows.max() if rows.numel() else rows.sum()
    far = torch.zeros((), dtype=torch.float64, device=out.device)
    if lse is not None:
        exact &= (torch.isneginf(lse) == empty).all()
        gap = (lse.double() - want_lse)[~empty].abs()
        far = gap.max() if gap.numel() else far
    numbers = torch.stack([frobenius, worst, far, exact.double()]).tolist()
    return numbers[0], numbers[1], numbers[2], bool(numbers[3])
