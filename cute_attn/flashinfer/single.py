"""Attention of one request in one call."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from cute_attn.api import single_prefill
from cute_attn.flashinfer import arguments
from cute_attn.flashinfer.masks import mask_tensors
from cute_attn.flashinfer.options import Options
from cute_attn.flashinfer.wrapper import finish

_FP8 = "convert the tensors to float16 or bfloat16"


def single_decode_with_kv_cache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kv_layout: str = "NHD",
    pos_encoding_mode: str = "NONE",
    use_tensor_cores: bool = False,
    q_scale: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    window_left: int = -1,
    logits_soft_cap: float | None = None,
    sm_scale: float | None = None,
    rope_scale: float | None = None,
    rope_theta: float | None = None,
    return_lse: bool = False,
) -> Any:
    """Attention of one query token of one request.

    Args:
        q: (num_qo_heads, head_dim).
        k, v: (kv_len, num_kv_heads, head_dim) for "NHD", (num_kv_heads, kv_len, head_dim) for
            "HND".
        use_tensor_cores: kernels decide for themselves.
        others: as for `single_prefill_with_kv_cache`.

    Returns:
        out (num_qo_heads, head_dim), or (out, lse) with lse (num_qo_heads,) to base 2.

    Raises:
        TypeError, ValueError, NotImplementedError: naming the argument.
        Others as `cute_attn.single_decode`.
    """
    if arguments.tensor("q", q).dim() != 2:
        raise ValueError(f"q has shape {tuple(q.shape)}; it takes (num_qo_heads, head_dim)")
    options = Options.checked(
        causal=True,  # of one token the same as full, and the kernel of other steps
        window_left=window_left,
        logits_soft_cap=logits_soft_cap,
        pos_encoding_mode=pos_encoding_mode,
        sm_scale=sm_scale,
        rope_scale=rope_scale,
        rope_theta=rope_theta,
    )
    scale = arguments.factor(q_scale, k_scale)
    result = _single(q.unsqueeze(0), k, v, options, kv_layout, scale, None, return_lse)
    if return_lse:
        return finish(result[0].squeeze(0), result[1].squeeze(0), v_scale=v_scale)
    return finish(result.squeeze(0), None, v_scale=v_scale)


def single_prefill_with_kv_cache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale_q: torch.Tensor | None = None,
    scale_k: torch.Tensor | None = None,
    scale_v: torch.Tensor | None = None,
    o_dtype: torch.dtype | None = None,
    custom_mask: torch.Tensor | None = None,
    packed_custom_mask: torch.Tensor | None = None,
    causal: bool = False,
    kv_layout: str = "NHD",
    pos_encoding_mode: str = "NONE",
    use_fp16_qk_reduction: bool = False,
    sm_scale: float | None = None,
    window_left: int = -1,
    logits_soft_cap: float | None = None,
    rope_scale: float | None = None,
    rope_theta: float | None = None,
    backend: str = "auto",
    return_lse: bool = False,
    kv_cache_sf: Any = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
) -> Any:
    """Attention of one request: prefill, or append to earlier keys.

    Args:
        q: (q_len, num_qo_heads, head_dim_qk).
        k: (kv_len, num_kv_heads, head_dim_qk) for "NHD", heads first for "HND".
        v: as k with head_dim_vo.
        o_dtype: of the output; default that of q.
        custom_mask: (q_len, kv_len) bool: whether a query sees a key. It goes before causal.
        packed_custom_mask: the same, of `packbits(custom_mask.view(-1), bitorder="little")`.
        causal: the last query sees the last key.
        kv_layout: "NHD" or "HND".
        pos_encoding_mode: "NONE", "ROPE_LLAMA" or "ALIBI".
        use_fp16_qk_reduction: permits what is not done: sums are float32.
        sm_scale: default 1 / sqrt(head_dim_qk).
        window_left: keys kept before a query's position; -1: all.
        logits_soft_cap: bound of the scores; 0 or None: none.
        rope_scale, rope_theta: default 1 and 10000.
        backend: "auto", "fa2" or "fa3"; the kernel is chosen by device and lengths all the same.
        return_lse: also return the log-sum-exp, to base 2.
        k_scale: factor of the softmax scale.
        v_scale: factor of the output.

    Returns:
        out (q_len, num_qo_heads, head_dim_vo), or (out, lse) with lse (q_len, num_qo_heads)
        float32.

    Raises:
        TypeError, ValueError, NotImplementedError: naming the argument.
        Others as `cute_attn.single_prefill`.
    """
    arguments.refuse(
        _FP8, scale_q=scale_q, scale_k=scale_k, scale_v=scale_v, kv_cache_sf=kv_cache_sf
    )
    arguments.backend(backend)
    if arguments.tensor("q", q).dim() != 3:
        raise ValueError(f"q has shape {tuple(q.shape)}; it takes (q_len, num_qo_heads, head_dim)")
    masked = custom_mask is not None or packed_custom_mask is not None
    options = Options.checked(
        causal=causal,
        window_left=window_left,
        logits_soft_cap=logits_soft_cap,
        pos_encoding_mode=pos_encoding_mode,
        sm_scale=sm_scale,
        rope_scale=rope_scale,
        rope_theta=rope_theta,
        masked=masked,
    )
    tensors = None
    if masked:
        kv_len = arguments.tensor("k", k).shape[0 if kv_layout == "NHD" else 1]
        lengths = np.array([q.shape[0]]), np.array([kv_len])
        tensors = mask_tensors(*lengths, custom_mask, packed_custom_mask, q.device)
    scale = arguments.factor(k_scale)
    result = _single(q, k, v, options, kv_layout, scale, tensors, return_lse)
    out, lse = result if return_lse else (result, None)
    wanted = None if o_dtype is None else arguments.dtype_of("o_dtype", o_dtype)
    return finish(out, lse, o_dtype=wanted, v_scale=v_scale)


single_prefill_with_kv_cache_return_lse = functools.partial(
    single_prefill_with_kv_cache, return_lse=True
)


def _single(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    options: Options,
    kv_layout: str,
    scale: float,
    tensors: dict[str, torch.Tensor] | None,
    return_lse: bool,
) -> Any:
    """`cute_attn.single_prefill` with these options; `scale`: factor of the softmax scale."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        arguments.dtyped(name, x)
    sm_scale = options.sm_scale
    if scale != 1.0:
        sm_scale = scale * (q.shape[-1] ** -0.5 if sm_scale is None else sm_scale)
    return single_prefill(
        q,
        k,
        v,
        variant=options.variant(int(q.shape[1])),
        kv_layout=arguments.kv_layout(kv_layout),
        sm_scale=sm_scale,
        scalars=options.scalars,
        tensors=tensors,
        return_lse=return_lse,
    )
