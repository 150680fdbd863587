"""The oracle: attention as a dense float64 softmax over the gathered keys, one request at a time.

It knows nothing of plans, tiles or formats and imports nothing from `cute_attn`; the CPU executor
and the kernels are both checked against it. Masks and positions are written here a second time on
purpose. Tensors (of any dtype and device) are converted to float64 NumPy arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
Mask = Callable[[Any, Any], Any]
"""(query position, key position) -> visible?, on integer arrays that broadcast."""

_MAX_SCORES = 1 << 22  # scores held at a time


def to64(x: Any) -> F64:
    """Tensor or array as float64 NumPy."""
    if hasattr(x, "detach"):
        x = x.detach().double().cpu().numpy()
    return np.asarray(x, np.float64)


def mask_of(name: str, window_left: int | None = None) -> Mask | None:
    """The mask of a name: "full", "causal", "window" (left only) or "causal_window"."""
    if name == "full":
        return None
    if name == "causal":
        return lambda q, k: k <= q
    assert window_left is not None, f"mask {name!r} needs window_left"
    left = window_left
    if name == "window":
        return lambda q, k: k >= q - left
    if name == "causal_window":
        return lambda q, k: (k <= q) & (k >= q - left)
    raise ValueError(f"unknown mask {name!r}")


def attend(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Mask | None = None,
    sm_scale: float | None = None,
    soft_cap: float | None = None,
    weight: Callable[[F64], F64] | None = None,
    sinks: Any = None,
    output: Callable[[F64, Any, Any], F64] | None = None,
    q_pos: int | None = None,
    kv_pos: int = 0,
) -> tuple[F64, F64]:
    """Attention of one request.

    Args:
        q: (q_len, num_qo_heads, head_dim_qk).
        k, v: (kv_len, num_kv_heads, head_dim_qk) and (kv_len, num_kv_heads, head_dim_vo).
        mask: visible pairs of positions; None = all.
        sm_scale: default 1 / sqrt(head_dim_qk).
        soft_cap: scores s become cap * tanh(s / cap), before the mask.
        weight: instead of a softmax: visible keys weigh weight(score). lse is then 0.
        sinks: (num_qo_heads,) logits that take part in the softmax and have no value.
        output: last of all, out (rows, head_dim_vo) of a head becomes output(out, head, positions),
            positions (rows, 1).
        q_pos, kv_pos: positions of the first query and key; by default the last query stands at the
            last key.

    Returns:
        out (q_len, num_qo_heads, head_dim_vo) and lse (q_len, num_qo_heads), natural log. A row
        that sees nothing: 0 and -inf, or the sink.
    """
    q, k, v = to64(q), to64(k), to64(v)
    (q_len, qo_heads, head_dim), (kv_len, kv_heads, _) = q.shape, k.shape
    scale = 1 / math.sqrt(head_dim) if sm_scale is None else sm_scale
    first = kv_len - q_len + kv_pos if q_pos is None else q_pos
    group = qo_heads // kv_heads
    out = np.zeros((q_len, qo_heads, v.shape[-1]))
    lse = np.full((q_len, qo_heads), -np.inf)
    key_positions = kv_pos + np.arange(kv_len)
    step = max(1, _MAX_SCORES // max(1, kv_len))
    for head in range(qo_heads):
        keys, values = k[:, head // group], v[:, head // group]
        for begin in range(0, q_len, step):
            rows = slice(begin, min(begin + step, q_len))
            s = q[rows, head] @ keys.T * scale
            if soft_cap is not None:
                s = soft_cap * np.tanh(s / soft_cap)
            positions = (first + np.arange(rows.start, rows.stop))[:, None]
            visible = np.ones(s.shape, bool)
            if mask is not None:
                visible = np.broadcast_to(mask(positions, key_positions[None, :]), s.shape)
            if weight is not None:
                out[rows, head] = np.where(visible, weight(s), 0.0) @ values
                lse[rows, head] = 0.0
            else:
                sink = -np.inf if sinks is None else float(sinks[head])
                s = np.where(visible, s, -np.inf)
                top = s.max(axis=1, initial=sink)
                seen = top > -np.inf
                base = np.where(seen, top, 0.0)
                p = np.exp(s - base[:, None])
                total = p.sum(axis=1) + np.exp(sink - base)
                safe = np.where(seen, total, 1.0)
                out[rows, head] = (p @ values) / safe[:, None]
                lse[rows, head] = np.where(seen, top + np.log(safe), -np.inf)
            if output is not None:
                out[rows, head] = output(out[rows, head], head, positions)
    return out, lse


def attend_batch(
    q: Any, qo_indptr: Any, keys: Sequence[Any], values: Sequence[Any], **options: Any
) -> tuple[F64, F64]:
    """`attend` for every request of a batch.

    Args:
        q: (q_tokens, num_qo_heads, head_dim_qk); request i owns rows qo_indptr[i:i+2].
        keys, values: one array per request.
        options: of `attend`; q_pos and kv_pos may be sequences with one number per request.
    """
    indptr = [int(x) for x in qo_indptr]
    outs, lses = [], []
    for i, (k, v) in enumerate(zip(keys, values, strict=True)):
        own = {n: x[i] if isinstance(x, Sequence) else x for n, x in options.items()}
        out, lse = attend(q[indptr[i] : indptr[i + 1]], k, v, **own)
        outs.append(out)
        lses.append(lse)
    return np.concatenate(outs), np.concatenate(lses)


def gather_paged(
    k_cache: Any, v_cache: Any, pages: Any, length: int, layout: str = "NHD"
) -> tuple[F64, F64]:
    """Keys and values of one request from a paged cache, page by page.

    Args:
        k_cache, v_cache: (pages, page_size, heads, dim) for "NHD", (pages, heads, page_size, dim)
            for "HND".
        pages: page numbers of the request, in order.
        length: keys.
    """
    token_axis = 0 if layout == "NHD" else 1
    gathered = []
    for cache in (k_cache, v_cache):
        page_size = int(cache.shape[1 + token_axis])
        used = to64(cache[[int(page) for page in pages[: -(-length // page_size)]]])
        rows = np.moveaxis(used, 1 + token_axis, 1)  # (pages, page_size, heads, dim)
        gathered.append(rows.reshape(-1, *rows.shape[2:])[:length])
    return gathered[0], gathered[1]


def relative_error(got: Any, expected: F64) -> float:
    """Frobenius norm of the difference over that of the expected array (or 1 if that is 0)."""
    difference = float(np.linalg.norm(to64(got) - expected))
    return difference / (float(np.linalg.norm(expected)) or 1.0)


def worst_row_error(got: Any, expected: F64) -> float:
    """Largest error of a row (last axis), relative to its norm or to the typical row's."""
    difference = np.linalg.norm(to64(got) - expected, axis=-1)
    size = np.linalg.norm(expected, axis=-1)
    floor = float(np.sqrt(np.mean(size**2))) or 1.0
    return float((difference / np.maximum(size, 0.1 * floor)).max(initial=0.0))


def lse_error(got: Any, expected: F64) -> float:
    """Largest absolute difference of two lse arrays; inf if they differ in where they are -inf."""
    got = to64(got)
    empty = np.isneginf(expected)
    if not np.array_equal(np.isneginf(got), empty):
        return math.inf
    return float(np.abs(got[~empty] - expected[~empty]).max(initial=0.0))
