"""Tensors in e4m3 for `BatchAttention(dtype=torch.float8_e4m3fn)`: scales, and a rotation that
spreads outliers.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from cute_attn.api import checks

E4M3_MAX = 448.0
"""The largest number of e4m3."""


def quantize_e4m3(
    x: torch.Tensor, *, per_head: bool = False
) -> tuple[torch.Tensor, torch.Tensor | float]:
    """x in e4m3, and what its numbers are to be multiplied with.

    Args:
        x: (tokens, heads, head_dim), any floating dtype.
        per_head: a scale for each head rather than one for all.

    Returns:
        numbers of x's shape, at most 448 in size, rounded to the nearest; and the scale: a float
        (which waits for the device), or (heads,) float32: that of the finite numbers, 1 if there
        are none but zeros. NaN stays NaN, and infinities become 448.

    Raises:
        TypeError, ValueError: x is no floating tensor of three dimensions.
    """
    _floating(x)
    if x.dim() != 3:
        raise ValueError(f"x has shape {tuple(x.shape)}; it takes (tokens, heads, head_dim)")
    wide = x.float()
    finite = wide.abs().nan_to_num(nan=0.0, posinf=0.0)
    top = finite.amax(dim=(0, 2)) if len(x) else wide.new_zeros(x.shape[1])
    if not per_head:
        top = top.amax() if top.numel() else wide.new_zeros(())
    least = torch.finfo(torch.float32).tiny  # a quotient may be smaller, and then 0
    scale = torch.where(top > 0, (top / E4M3_MAX).clamp(min=least), torch.ones_like(top))
    divisor = scale[:, None] if per_head else scale
    # A quotient may be rounded beyond the end, where the cast gives NaN.
    numbers = (wide / divisor).clamp(-E4M3_MAX, E4M3_MAX).to(checks.E4M3)
    return numbers, scale if per_head else float(scale)


def rotate_heads(x: torch.Tensor, *, seed: int = 0) -> torch.Tensor:
    """Every row of head_dim elements turned by a random Hadamard matrix: signs, then a
    Walsh-Hadamard transform.

    Queries and keys turned alike have the scores that they had, but what was a few large columns is
    spread over all of them, so that a common scale loses less (incoherent processing: Shah et al.,
    FlashAttention-3, 2024, section 3.3).

    Args:
        x: (..., head_dim), head_dim a power of two.
        seed: of the signs; the same for queries and keys.

    Returns:
        x's shape and dtype.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    _floating(x)
    dim = int(x.shape[-1]) if x.dim() else 0
    if dim < 1 or dim & (dim - 1):
        raise ValueError(f"x has shape {tuple(x.shape)}; the last size must be a power of two")
    return (x.float() @ _rotation(dim, seed, x.device)).to(x.dtype)


@lru_cache(maxsize=16)
def _rotation(dim: int, seed: int, device: torch.device) -> torch.Tensor:
    """(dim, dim) float32, orthogonal."""
    signs = torch.randint(0, 2, (dim,), generator=torch.Generator().manual_seed(seed)) * 2 - 1
    hadamard = torch.ones(1, 1)
    while hadamard.shape[0] < dim:
        top = torch.cat([hadamard, hadamard], 1)
        hadamard = torch.cat([top, torch.cat([hadamard, -hadamard], 1)])
    rotation: torch.Tensor = signs[:, None] * hadamard * dim**-0.5
    return rotation.to(device)


def _floating(x: torch.Tensor) -> None:
    """Raises TypeError unless x is a floating tensor."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        kind = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
        raise TypeError(f"x is a {kind}; it takes a floating tensor")
