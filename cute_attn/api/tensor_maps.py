"""Tensor maps of Q, K and V for the Hopper kernels.

A map of K or V counts (head_dim, rows of a page, kv_heads, pages); ragged KV is one page. A TMA box
is one panel of a shared-memory tile (`codegen.smem_tile`) wide and `box_rows` rows of one head
high. Where the kernel's tiles lie by groups, boxes hold all columns (`grouped_kv_map`). A map of Q
counts (head_dim, qo_heads, q_tokens); its box is a panel of all packed rows, or of one token's.
"""

from __future__ import annotations

import torch

from cute_attn.codegen.smem_tile import ELEMENT_BYTES, SWIZZLE_ROWS, panel_columns
from cute_attn.runtime.tensor_map import TensorMapSpec

_DTYPES = {torch.bfloat16: "bfloat16", torch.float16: "float16"}


def q_map(q: torch.Tensor, heads: int, tokens: int) -> TensorMapSpec:
    """The map of Q, but for its address.

    Args:
        q: (q_tokens, num_qo_heads, head_dim), strided.
        heads, tokens: of a box.
    """
    q_tokens, q_heads, dim = q.shape
    size = q.element_size()
    # The stride of a dimension of size 1 says nothing and may be anything; TMA still checks it. The
    # same holds for both if there are no tokens.
    return TensorMapSpec(
        dtype=_DTYPES[q.dtype],
        dims=(dim, q_heads, max(q_tokens, 1)),
        strides_bytes=(
            q.stride(1) * size if q_heads > 1 and q_tokens else 16,
            q.stride(0) * size if q_tokens > 1 else 16,
        ),
        box=(panel_columns(dim), heads, tokens),
        swizzle=panel_columns(dim) * ELEMENT_BYTES,
    )


def page_groups(view: torch.Tensor) -> int:
    """Groups of eight rows from a page to the next; 0 if that is no whole number.

    Args:
        view: (pages, page_size, kv_heads, head_dim), strided.
    """
    pages, rows, *_ = view.shape
    step = SWIZZLE_ROWS * view.stride(1)
    if pages <= 1:
        return rows // SWIZZLE_ROWS
    return view.stride(0) // step if step and view.stride(0) % step == 0 else 0


def grouped_kv_map(view: torch.Tensor, box_rows: int) -> TensorMapSpec:
    """The map of K or V in pages whose boxes hold all columns, but for its address: (columns of a
    panel, 8 rows, panels, kv_heads, groups of the pool), or without `page_groups` (columns of a
    panel, rows of a page, panels, kv_heads, pages), with boxes of one group.

    Args:
        view: (pages, page_size, kv_heads, head_dim), strided; head_dim is whole panels.
        box_rows: rows per TMA box.
    """
    pages, rows, heads, dim = view.shape
    size, step = view.element_size(), view.stride(1)
    groups = page_groups(view)
    if groups:
        count, distance = (max(pages, 1) - 1) * groups + rows // SWIZZLE_ROWS, SWIZZLE_ROWS * step
        in_group, box = SWIZZLE_ROWS, box_rows // SWIZZLE_ROWS
    else:
        count, distance, in_group, box = pages, view.stride(0), rows, 1
    panel = panel_columns(dim)
    return TensorMapSpec(
        dtype=_DTYPES[view.dtype],
        dims=(panel, in_group, dim // panel, max(heads, 1), count),
        strides_bytes=(
            step * size,
            panel * size,
            view.stride(2) * size if heads > 1 else 16,
            distance * size if count > 1 else 16,
        ),
        box=(panel, SWIZZLE_ROWS, dim // panel, 1, box),
        swizzle=panel * ELEMENT_BYTES,
    )


def kv_map(view: torch.Tensor, box_rows: int) -> TensorMapSpec:
    """The map of K or V, but for its address.

    Args:
        view: (pages, page_size, kv_heads, head_dim), strided.
        box_rows: rows per TMA box.
    """
    pages, rows, heads, dim = view.shape
    sizes = (rows, heads, pages)
    steps = (view.stride(1), view.stride(2), view.stride(0))
    size = view.element_size()
    # As for q: the stride of a dimension of size 1 says nothing.
    strides = tuple(step * size if n > 1 else 16 for n, step in zip(sizes, steps, strict=True))
    return TensorMapSpec(
        dtype=_DTYPES[view.dtype],
        dims=(dim, *(max(n, 1) for n in sizes)),
        strides_bytes=strides,
        box=(panel_columns(dim), box_rows, 1, 1),
        swizzle=panel_columns(dim) * ELEMENT_BYTES,
    )
