"""`torch.ops.cute_attn.attention`: what `attention` and its kin are while a model is traced.

    attention(Tensor q, Tensor k, Tensor v, str variant, float? sm_scale, str[]? scalar_names,
              Scalar[]? scalar_values, str[]? tensor_names, Tensor[]? tensors, bool return_lse)
        -> (Tensor out, Tensor lse)

lse is empty without `return_lse`.
"""

from __future__ import annotations

import torch

from cute_attn.api import checks
from cute_attn.api.one_shot import attention
from cute_attn.api.torch_ops import LIBRARY, implement, refuse_gradients

LIBRARY.define(
    "attention(Tensor q, Tensor k, Tensor v, str variant='full', float? sm_scale=None,"
    " str[]? scalar_names=None, Scalar[]? scalar_values=None, str[]? tensor_names=None,"
    " Tensor[]? tensors=None, bool return_lse=False) -> (Tensor, Tensor)"
)


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    variant: str = "full",
    sm_scale: float | None = None,
    scalar_names: list[str] | None = None,
    scalar_values: list[float | int] | None = None,
    tensor_names: list[str] | None = None,
    tensors: list[torch.Tensor] | None = None,
    return_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    result = attention(
        q,
        k,
        v,
        variant=variant,
        sm_scale=sm_scale,
        scalars=dict(zip(scalar_names or (), scalar_values or (), strict=True)),
        tensors=dict(zip(tensor_names or (), tensors or (), strict=True)) or None,
        return_lse=return_lse,
    )
    return result if return_lse else (result, q.new_empty(0, dtype=torch.float32))


def _attention_fake(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    variant: str = "full",
    sm_scale: float | None = None,
    scalar_names: list[str] | None = None,
    scalar_values: list[float | int] | None = None,
    tensor_names: list[str] | None = None,
    tensors: list[torch.Tensor] | None = None,
    return_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    refuse_gradients(q=q, k=k, v=v)
    lse = q.new_empty(q.shape[:-1] if return_lse else 0, dtype=torch.float32)
    dtype = checks.out_dtype(q.dtype)
    return q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=dtype), lse


implement("attention", _attention, _attention_fake)
