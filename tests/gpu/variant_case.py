"""A variant with a dense formula in float64 that knows no `Variant`; run on any device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from cute_attn import Variant

HEADS, KV_HEADS, DIM, LONGEST = 8, 2, 64, 400
LENGTHS = {
    "prefill": ([300, 130], [300, 130]),
    "append": ([90, 33, 129], [400, 333, 129]),
    "decode": ([1, 1, 1], [400, 1, 138]),
}
"""(q_len, kv_len) of the requests."""
ROW_LENGTHS = {
    **LENGTHS,
    "empty": ([17, 40, 20], [0, 17, 138]),
    "empty_decode": ([1, 1, 2], [0, 138, 1]),
}
"""The same for hooks on rows, which rows without keys have as well."""

Dense = Callable[..., Any]


@dataclass
class VariantCase:
    """A variant.

    Attributes:
        variant: the program.
        keep: the mask of the dense formula, of (b, h, i, j); None: all.
        bend: the score of it, of (s, b, h, i, j); None: as it is.
        state: its log-sum-exp, of (lse, b, h, i); None: as it is.
        finish: its output, of (out, b, h, i, d); None: as it is.
        softmax: False: scores are weights.
        scalars, tensors: of the variant.
        of_lengths: further tensors, from (q_len, kv_len) of the requests.
        query, key, value: what becomes of rows in the dense formula, of (x, b, positions): x
            (heads, positions, dim); None: nothing.
        dim: head_dim.
        page_size: None: ragged.
    """

    variant: Variant
    keep: Dense | None = None
    bend: Dense | None = None
    state: Dense | None = None
    finish: Dense | None = None
    softmax: bool = True
    scalars: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    of_lengths: Callable[[list[int], list[int]], dict[str, torch.Tensor]] = lambda q, kv: {}
    query: Dense | None = None
    key: Dense | None = None
    value: Dense | None = None
    dim: int = DIM
    page_size: int | None = None


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def seen(b: Any, h: Any, i: Any, j: Any) -> Any:
    return j <= i


def on(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return tensor.to(like.device)


def dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: int, case: VariantCase
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse of one request, (length, heads, dim), the last query at the last key; lse is 0
    without softmax. Products take rows of the dtype of q, so transformed rows are rounded to it."""
    dtype = q.dtype
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    at = torch.arange(k.shape[1], device=q.device)
    if case.query is not None:
        q = case.query(q, b, at[k.shape[1] - q.shape[1] :]).to(dtype).double()
    if case.key is not None:
        k = case.key(k, b, at).to(dtype).double()
    if case.value is not None:
        v = case.value(v, b, at).to(dtype).double()
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 0) for x in (k, v))
    i = torch.arange(q.shape[1], device=q.device)[:, None] + k.shape[1] - q.shape[1]
    j = torch.arange(k.shape[1], device=q.device)[None, :]
    h = torch.arange(HEADS, device=q.device)[:, None, None]
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if case.bend is not None:
        scores = case.bend(scores, b, h, i, j)
    if case.keep is not None:
        hidden = ~case.keep(b, h, i, j).expand(scores.shape)
        scores = scores.masked_fill(hidden, -torch.inf if case.softmax else 0)
    lse, p = torch.zeros_like(q[..., 0]), scores
    if case.softmax:
        lse = scores.logsumexp(-1)
        if case.state is not None:
            lse = case.state(lse, b, h[..., 0], i[:, 0])
        p = (scores - lse.nan_to_num(neginf=0.0)[..., None]).exp()
    out = p @ v
    if case.finish is not None:
        out = case.finish(out, b, h, i, torch.arange(v.shape[-1], device=q.device))
    return out.transpose(0, 1), lse.transpose(0, 1)
