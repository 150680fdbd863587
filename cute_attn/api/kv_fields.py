"""Fields of argument blocks that say where rows of K and V are."""

from __future__ import annotations

from cute_attn.codegen.attention_params import page_division
from cute_attn.formats import KVViews


def stride_fields(views: KVViews) -> dict[str, int]:
    """Strides of K and V, in elements."""
    return {
        f"{name}_{what}_stride": stride
        for name, strides in (("k", views.k_strides), ("v", views.v_strides))
        for what, stride in vars(strides).items()
    }


def page_fields(page_size: int) -> dict[str, int]:
    """The size of pages, and what divides by it."""
    magic, shift = page_division(page_size)
    return {"page_size": page_size, "page_magic": magic, "page_shift": shift}
