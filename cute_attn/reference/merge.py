"""Merging of attention states: (out, lse) pairs over disjoint sets of keys, combined exactly.

A state of a set of keys is its normalised output and the log-sum-exp of its scores; states merge by
weights exp(lse - max). Empty states have lse -inf and weigh nothing.
(FlashInfer, arXiv 2501.01005, section 2.2.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def merge_partials(out: Array, lse: Array) -> tuple[Array, Array]:
    """Merges partial results, in index order.

    Args:
        out: (num_partials, rows, head_dim_vo) normalised outputs.
        lse: (num_partials, rows) base-2 log-sum-exp; -inf = the partial saw no key for this row.

    Returns:
        out (rows, head_dim_vo) and lse (rows,) in base 2; 0 and -inf where all partials are empty.
    """
    top = lse.max(axis=0)
    seen = np.isfinite(top)
    weights = np.exp2(lse - np.where(seen, top, 0))
    total = np.zeros_like(top)
    merged = np.zeros_like(out[0])
    for weight, part in zip(weights, out, strict=True):
        total += weight
        merged += weight[:, None] * part
    safe = np.where(seen, total, 1).astype(total.dtype)
    return merged / safe[:, None], np.where(seen, np.log2(safe) + top, -np.inf).astype(lse.dtype)


def merge_states(v: Array, lse: Array) -> tuple[Array, Array]:
    """Merges attention states over disjoint sets of keys.

    Args:
        v: (tokens, num_states, num_heads, head_dim) outputs, any float dtype.
        lse: (tokens, num_states, num_heads) natural log-sum-exp.

    Returns:
        out (tokens, num_heads, head_dim) in v's dtype and lse (tokens, num_heads) float32.

    Raises:
        ValueError: shapes do not fit.
    """
    if v.ndim != 4 or lse.shape != v.shape[:3]:
        raise ValueError(
            f"v has shape {v.shape} and lse {lse.shape}; they take (tokens, num_states, num_heads, "
            "head_dim) and (tokens, num_states, num_heads)"
        )
    if v.shape[1] == 0:
        raise ValueError("v holds no states to merge")
    tokens, states, heads, dim = v.shape
    wide = np.result_type(v.dtype, np.float32)
    partial_out = np.moveaxis(v, 1, 0).reshape(states, tokens * heads, dim).astype(wide)
    partial_lse = np.moveaxis(lse, 1, 0).reshape(states, tokens * heads).astype(wide)
    out, merged = merge_partials(partial_out, partial_lse * wide.type(np.log2(np.e)))
    natural = (merged * wide.type(np.log(2))).astype(np.float32)
    return out.reshape(tokens, heads, dim).astype(v.dtype), natural.reshape(tokens, heads)


def merge_rows(v: Array, lse: Array, state_indptr: Array, states: Array) -> tuple[Array, Array]:
    """Merges the states of each token, which lie in rows that a list names.

    Args:
        v: (num_states, num_heads, head_dim) outputs, float32 or float64.
        lse: (num_states, num_heads) natural log-sum-exp.
        state_indptr: (tokens + 1,) the states of token t are rows
            states[state_indptr[t] : state_indptr[t + 1]]; a token without any: 0 and -inf.
        states: row numbers of v and lse.

    Returns:
        out (tokens, num_heads, head_dim) and lse (tokens, num_heads) in v's dtype.
    """
    counts = np.diff(state_indptr)
    most, (_, heads, dim) = max(int(counts.max(initial=0)), 1), v.shape
    outs = np.zeros((most, counts.size, heads, dim), v.dtype)
    lses = np.full((most, counts.size, heads), -np.inf, v.dtype)
    for number in range(most):
        some = np.flatnonzero(counts > number)
        rows = states[state_indptr[some] + number]
        outs[number, some], lses[number, some] = v[rows], lse[rows] * np.log2(np.e)
    out, merged = merge_partials(
        outs.reshape(most, counts.size * heads, dim), lses.reshape(most, counts.size * heads)
    )
    natural = (merged * np.log(2)).astype(v.dtype)
    return out.reshape(counts.size, heads, dim), natural.reshape(counts.size, heads)
