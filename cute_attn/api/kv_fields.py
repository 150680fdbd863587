"""Fields of argument blocks that say where rows of K and V are."""

from __future__ import annotations

from dataclasses import replace

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


def latent_views(views: KVViews) -> KVViews:
    """Latent rows in two: `v` their first columns, which are the values, `k` the others.

    Raises:
        ValueError: k is whole rows, and v is no view of them.
    """
    dim = views.v.shape[-1]
    if views.k.shape[-1] < dim:
        return views  # they are apart already
    values = views.k[..., :dim]
    same = values.data_ptr() == views.v.data_ptr() or values.numel() == 0
    if not same or views.k_strides != views.v_strides:
        raise ValueError(
            f"v is no view of k; with head dims ({views.k.shape[-1]}, {dim}) it takes"
            f" k[..., :{dim}], as rows are read once, or k without these columns"
        )
    return replace(views, k=views.k[..., dim:])
