"""`KernelClass`: what of a kernel, beside its tile, decides which entries serve it."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import NamedTuple

from cute_attn.variants import Variant


class KernelClass(NamedTuple):
    """Kernels that take the same tiles.

    Attributes:
        dtype: "bf16" or "fp16".
        head_dim_qk, head_dim_vo: elements.
        group: query heads per KV head.
        pages: "ragged"; "64" and "16": page sizes that are a multiple of 64, and of 16 alone;
            "any": other page sizes.
        variant: name of the variant and a digest of its hooks.
    """

    dtype: str
    head_dim_qk: int
    head_dim_vo: int
    group: int
    pages: str
    variant: str


def pages_class(page_size: int | None) -> str:
    """How K and V come: whole boxes, boxes of some rows, or row by row."""
    if page_size is None:
        return "ragged"
    return next((str(n) for n in (64, 16) if page_size % n == 0), "any")


@lru_cache(maxsize=256)
def variant_class(variant: Variant) -> str:
    """The variant's name and eight hex digits of its hooks: names alone are the users' choice."""
    return f"{variant.name}-{hashlib.sha256(repr(variant).encode()).hexdigest()[:8]}"


def kernel_class(
    dtype: str,
    head_dim_qk: int,
    head_dim_vo: int,
    group: int,
    page_size: int | None,
    variant: Variant,
) -> KernelClass:
    """The class of a kernel."""
    return KernelClass(
        dtype, head_dim_qk, head_dim_vo, group, pages_class(page_size), variant_class(variant)
    )
