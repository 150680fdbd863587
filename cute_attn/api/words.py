"""e4m3 tensors as kernels take them: as words of two numbers.

Copies, strides and tensor maps then are those of 16-bit elements, and the kernels share their code
(hopper/include/cute_attn/hopper/fp8.hpp).
"""

from __future__ import annotations

from dataclasses import replace

import torch

from cute_attn.api import checks
from cute_attn.formats import KVViews
from cute_attn.formats.views import Strides


def words(x: torch.Tensor) -> torch.Tensor:
    """x, or a view of half as many columns of 16 bits if it is e4m3; rows start at 16 bytes."""
    return x.view(torch.bfloat16) if x.dtype is checks.E4M3 else x


def words_of_kv(views: KVViews) -> KVViews:
    """The same of K and V."""
    if views.k.dtype is not checks.E4M3:
        return views

    def halved(strides: Strides) -> Strides:
        return Strides(*(stride // 2 for stride in vars(strides).values()))

    return replace(
        views,
        k=words(views.k),
        v=words(views.v),
        k_strides=halved(views.k_strides),
        v_strides=halved(views.v_strides),
    )
