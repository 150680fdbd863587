"""Attention states over disjoint keys, and their merging; log-sum-exps are to base 2."""

from __future__ import annotations

import math

import torch

from cute_attn.api import merge_states as merge_natural
from cute_attn.flashinfer import arguments
from cute_attn.flashinfer.wrapper import LOG2_E

_LN_2 = math.log(2.0)


def merge_states(v: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Merges states of disjoint sets of keys exactly.

    Args:
        v: (tokens, num_states, num_heads, head_dim).
        s: (tokens, num_states, num_heads) float32, log-sum-exps to base 2; -inf: saw no key.

    Returns:
        out (tokens, num_heads, head_dim) in v's dtype, and (tokens, num_heads) float32, to base 2.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    for name, x in (("v", v), ("s", s)):
        arguments.tensor(name, x)
    if v.dim() != 4 or s.dim() != 3:
        raise ValueError(
            f"v has shape {tuple(v.shape)} and s {tuple(s.shape)}; they take (tokens, num_states,"
            " num_heads, head_dim) and (tokens, num_states, num_heads)"
        )
    out, lse = merge_natural(v.transpose(0, 1), (s.float() * _LN_2).transpose(0, 1))
    return out, lse.mul_(LOG2_E)


def merge_state(
    v_a: torch.Tensor, s_a: torch.Tensor, v_b: torch.Tensor, s_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merges two states; see `merge_states`.

    Args:
        v_a, v_b: (tokens, num_heads, head_dim).
        s_a, s_b: (tokens, num_heads) float32, log-sum-exps to base 2.

    Returns:
        out (tokens, num_heads, head_dim) and (tokens, num_heads) float32, to base 2.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    for name, x, like in (("v_b", v_b, v_a), ("s_b", s_b, s_a)):
        if arguments.tensor(name, x).shape != like.shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; it takes {tuple(like.shape)}")
    return merge_states(torch.stack([v_a, v_b], 1), torch.stack([s_a, s_b], 1))


def merge_state_in_place(
    v: torch.Tensor,
    s: torch.Tensor,
    v_other: torch.Tensor,
    s_other: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> None:
    """Merges another state into (v, s); see `merge_state`.

    Args:
        mask: (tokens,) bool: those that are merged; None: all.
    """
    out, lse = merge_state(v, s, v_other, s_other)
    if mask is not None:
        out = torch.where(mask[:, None, None], out, v)
        lse = torch.where(mask[:, None], lse, s)
    v.copy_(out)
    s.copy_(lse)
