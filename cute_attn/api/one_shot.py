"""Attention in one call, without a wrapper object: dense batches and single requests.

These plan by themselves and remember the plan of the last shapes, so that repeated calls with equal
shapes only launch. A serving loop is better off with `BatchAttention`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import torch

from cute_attn.api import checks
from cute_attn.api.batch import BatchAttention
from cute_attn.api.dispatch import named_variant
from cute_attn.formats import RaggedKV
from cute_attn.variants import Variant


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    variant: str | Variant = "full",
    sm_scale: float | None = None,
    scalars: Mapping[str, float | int] | None = None,
    tensors: Mapping[str, torch.Tensor] | None = None,
    return_lse: bool = False,
) -> Any:
    """Attention of a dense batch.

    In `torch.compile` and `torch.export` it is one operator, `torch.ops.cute_attn.attention`, if
    `variant` is a name.

    Args:
        q: (batch, q_len, num_qo_heads, head_dim), bf16 or fp16 (on the CPU also float32); a tensor,
            or an array of another library (CuPy, JAX, NumPy) that DLPack can pass on.
        k: (batch, kv_len, num_kv_heads, head_dim).
        v: (batch, kv_len, num_kv_heads, head_dim_vo).
        variant: "full", "causal", "sliding_window", "soft_cap" or a `Variant`.
        sm_scale: softmax scale; default 1 / sqrt(head_dim).
        scalars: numbers that the variant reads.
        tensors: tensors that the variant reads, by name.
        return_lse: also return the log-sum-exp; not for variants without softmax.

    A tensor whose batch stride is not length * token stride is copied first.

    Returns:
        out (batch, q_len, num_qo_heads, head_dim_vo) in q's dtype, or (out, lse) with lse (batch,
        q_len, num_qo_heads) float32, natural logarithm.

    Raises:
        TypeError, ValueError: a tensor is wrong.
        RuntimeError: a tensor requires grad while grad mode is on: there is no backward.
        UnsupportedSpecError: no kernel for this device, dtype and head_dim.
    """
    if torch.compiler.is_compiling():
        return _as_operator(q, k, v, variant, sm_scale, scalars, tensors, return_lse)
    q, k, v = checks.from_dlpack(q=q, k=k, v=v).values()
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}; it takes (batch, seq, heads, head_dim)"
            )
        if x.shape[0] != q.shape[0]:
            raise ValueError(f"{name} has batch {x.shape[0]}, q has {q.shape[0]}")
    if k.shape[1] != v.shape[1]:
        raise ValueError(f"k has {k.shape[1]} keys, v has {v.shape[1]}")
    batch, q_len = int(q.shape[0]), int(q.shape[1])
    planned = _planned(
        _wrapper(q, k, v, variant, sm_scale), batch, q_len, int(k.shape[1]), _frozen(scalars)
    )
    flat = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    result = planned.run(*flat, return_lse=return_lse, tensors=tensors)
    if not return_lse:
        return result.unflatten(0, (batch, q_len))
    return tuple(x.unflatten(0, (batch, q_len)) for x in result)


def single_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    variant: str | Variant = "causal",
    kv_layout: str = "NHD",
    sm_scale: float | None = None,
    scalars: Mapping[str, float | int] | None = None,
    tensors: Mapping[str, torch.Tensor] | None = None,
    return_lse: bool = False,
) -> Any:
    """Attention of one request: prefill, or append to earlier keys.

    Args:
        q: (q_len, num_qo_heads, head_dim); the last query stands at the last key.
        k: (kv_len, num_kv_heads, head_dim), or (num_kv_heads, kv_len, head_dim) for "HND".
        v: as k with head_dim_vo.
        variant, sm_scale, scalars, tensors, return_lse: as in `attention`.
        kv_layout: "NHD" or "HND".

    Returns:
        out (q_len, num_qo_heads, head_dim_vo), or (out, lse) with lse (q_len, num_qo_heads).

    Raises:
        as `attention`.
    """
    checks.one_of("kv_layout", kv_layout, ("NHD", "HND"))
    if torch.compiler.is_compiling():
        if kv_layout == "HND":
            k, v = k.transpose(0, 1), v.transpose(0, 1)
        one = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
        result = _as_operator(*one, variant, sm_scale, scalars, tensors, return_lse)
        return tuple(x.squeeze(0) for x in result) if return_lse else result.squeeze(0)
    q, k, v = checks.from_dlpack(q=q, k=k, v=v).values()
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 3:
            takes = "(q_len, heads, head_dim)" if name == "q" else f"three dimensions, {kv_layout}"
            raise ValueError(f"{name} has shape {tuple(x.shape)}; it takes {takes}")
    kv_len = int(k.shape[0 if kv_layout == "NHD" else 1])
    wrapper = _wrapper(q, k, v, variant, sm_scale, kv_layout)
    planned = _planned(wrapper, 1, int(q.shape[0]), kv_len, _frozen(scalars))
    return planned.run(q, k, v, return_lse=return_lse, tensors=tensors)


def single_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    variant: str | Variant = "causal",
    kv_layout: str = "NHD",
    sm_scale: float | None = None,
    scalars: Mapping[str, float | int] | None = None,
    tensors: Mapping[str, torch.Tensor] | None = None,
    return_lse: bool = False,
) -> Any:
    """Attention of one query token of one request.

    Args:
        q: (num_qo_heads, head_dim).
        k, v, variant, kv_layout, sm_scale, scalars, tensors, return_lse: as in
            `single_prefill`.

    Returns:
        out (num_qo_heads, head_dim_vo), or (out, lse) with lse (num_qo_heads,).

    Raises:
        as `attention`.
    """
    if not torch.compiler.is_compiling():
        (q,) = checks.from_dlpack(q=q).values()
    if q.dim() != 2:
        raise ValueError(f"q has shape {tuple(q.shape)}; it takes (num_qo_heads, head_dim)")
    result = single_prefill(
        q.unsqueeze(0),
        k,
        v,
        variant=variant,
        kv_layout=kv_layout,
        sm_scale=sm_scale,
        scalars=scalars,
        tensors=tensors,
        return_lse=return_lse,
    )
    return tuple(x.squeeze(0) for x in result) if return_lse else result.squeeze(0)


def _as_operator(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    variant: str | Variant,
    sm_scale: float | None,
    scalars: Mapping[str, float | int] | None,
    tensors: Mapping[str, torch.Tensor] | None,
    return_lse: bool,
) -> Any:
    """A node of the graph that is being traced. See `one_shot_op`."""
    if not isinstance(variant, str):
        raise TypeError("variant is a Variant; a traced call takes a name (or BatchAttention.plan)")
    scalars, tensors = scalars or {}, tensors or {}
    names = list(scalars), list(scalars.values()), list(tensors), list(tensors.values())
    result = torch.ops.cute_attn.attention(q, k, v, variant, sm_scale, *names, return_lse)
    return result if return_lse else result[0]


def _wrapper(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    variant: str | Variant,
    sm_scale: float | None,
    kv_layout: str = "NHD",
) -> tuple[Any, ...]:
    """Arguments of the `BatchAttention` that serves these tensors."""
    heads = -2 if kv_layout == "NHD" else -3
    stream = torch.cuda.current_stream(q.device).cuda_stream if q.is_cuda else None
    return (
        int(q.shape[-2]),
        int(k.shape[heads]),
        int(q.shape[-1]),
        int(v.shape[-1]),
        q.dtype,
        named_variant(variant),
        sm_scale,
        kv_layout,
        q.device,
        stream,
    )


def _frozen(scalars: Mapping[str, float | int] | None) -> tuple[tuple[str, float | int], ...]:
    return tuple(sorted(scalars.items())) if scalars else ()


@lru_cache(maxsize=32)
def _planned(
    wrapper: tuple[Any, ...],
    batch: int,
    q_len: int,
    kv_len: int,
    scalars: tuple[tuple[str, float | int], ...],
) -> BatchAttention:
    """A wrapper, planned for one shape on one stream."""
    heads, kv_heads, dim, dim_vo, dtype, variant, sm_scale, kv_layout, device, stream = wrapper
    make = partial(
        BatchAttention,
        heads,
        kv_heads,
        dim,
        head_dim_vo=dim_vo,
        dtype=dtype,
        variant=variant,
        sm_scale=sm_scale,
        kv_layout=kv_layout,
        device=device,
    )
    workspace = _workspace(device, stream, make().workspace_size()) if stream is not None else None
    requests = range(batch + 1)
    return make(workspace=workspace).plan(
        [i * q_len for i in requests],
        RaggedKV([i * kv_len for i in requests]),
        scalars=dict(scalars),
    )


@lru_cache(maxsize=8)
def _workspace(device: torch.device, stream: int, size: int) -> torch.Tensor:
    """(size,) bytes; the wrappers of one stream take turns with it."""
    return torch.empty(size, dtype=torch.uint8, device=device)
