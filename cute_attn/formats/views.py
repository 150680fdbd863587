"""How K and V lie in memory: one tensor or a pair, NHD or HND, strided, brought to named strides.

Kernels get pointers and element strides, so every layout is the same to them; the executor gets
views in (token, head, dim) order. Nothing is copied. Strides and offsets are Python integers here
and 64-bit in kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cute_attn.formats.base import KVFormat
from cute_attn.formats.errors import device_type, one_of

LAYOUTS = ("NHD", "HND")


@dataclass(frozen=True)
class Strides:
    """Element strides of one of K and V; `page` is 0 for ragged KV."""

    page: int
    token: int
    head: int


@dataclass(frozen=True)
class KVViews:
    """K and V as kernels and executor see them.

    Attributes:
        k, v: (pages, page_size, num_kv_heads, head_dim), or ragged (tokens, num_kv_heads,
            head_dim); views of what was given.
        k_strides, v_strides: element strides; the last dimension is contiguous.
        num_pages: pages in the cache; 0 for ragged KV.
        page_size: keys per page; 0 for ragged KV.
    """

    k: Any
    v: Any
    k_strides: Strides
    v_strides: Strides
    num_pages: int
    page_size: int

    @property
    def num_kv_heads(self) -> int:
        return int(self.k.shape[-2])

    @property
    def head_dim_qk(self) -> int:
        return int(self.k.shape[-1])

    @property
    def head_dim_vo(self) -> int:
        return int(self.v.shape[-1])


def element_strides(array: Any) -> tuple[int, ...]:
    """Strides in elements of a tensor or NumPy array."""
    if callable(getattr(array, "stride", None)):
        return tuple(int(s) for s in array.stride())
    return tuple(int(s) // array.itemsize for s in array.strides)


def split_cache(cache: Any) -> tuple[Any, Any]:
    """(k, v) of a cache given as a pair or as one tensor (pages, 2, ...)."""
    if isinstance(cache, (tuple, list)):
        if len(cache) != 2:
            raise ValueError(f"the cache is a {type(cache).__name__} of {len(cache)}; it takes 2")
        return cache[0], cache[1]
    if len(cache.shape) != 5 or cache.shape[1] != 2:
        raise ValueError(
            f"the cache has shape {tuple(cache.shape)}; it takes one tensor (pages, 2, ., ., "
            "head_dim) or a pair (k, v) of (pages, ., ., head_dim)"
        )
    return cache[:, 0], cache[:, 1]


def paged_views(cache: Any, layout: str = "NHD") -> KVViews:
    """Views of a paged cache.

    Args:
        cache: one tensor (pages, 2, page_size, num_kv_heads, head_dim), or a pair (k, v) of
            (pages, page_size, num_kv_heads, head_dim). For "HND" heads come before page_size.
        layout: "NHD" or "HND".

    Raises:
        TypeError, ValueError: dtype, device, rank, shape or stride of k and v.
    """
    k, v = split_cache(cache)
    shape = ("pages", "page_size", "num_kv_heads", "head_dim")
    k, v = _in_nhd(k, v, layout, shape)
    page_size = int(k.shape[1])
    return KVViews(k, v, _strides(k), _strides(v), int(k.shape[0]), page_size)


def ragged_views(k: Any, v: Any, layout: str = "NHD") -> KVViews:
    """Views of ragged K and V, (tokens, num_kv_heads, head_dim) or "HND" with heads first.

    Raises:
        TypeError, ValueError: dtype, device, rank, shape or stride of k and v.
    """
    k, v = _in_nhd(k, v, layout, ("tokens", "num_kv_heads", "head_dim"))
    return KVViews(k, v, _strides(k), _strides(v), 0, 0)


def kv_views(kv_format: KVFormat, k: Any, v: Any = None, layout: str = "NHD") -> KVViews:
    """Views of the K and V that `kv_format` describes, checked against it.

    Args:
        kv_format: the format.
        k: K, or a whole paged cache if v is None: one tensor (pages, 2, ...) or a pair.
        v: V, or None.
        layout: "NHD" or "HND".

    Raises:
        TypeError, ValueError: k and v are inconsistent, too small for the format, or have another
            page size than planned.
    """
    block_sparse = kv_format.paged and not kv_format.has_positions
    if kv_format.paged and not block_sparse:
        views = paged_views(k if v is None else (k, v), layout)
        if views.page_size != kv_format.page_size:
            raise ValueError(
                f"the cache has pages of {views.page_size} keys but page_size is "
                f"{kv_format.page_size} (layout {layout!r})"
            )
        kv_format.check_num_pages(views.num_pages)
        return views
    if v is None:
        raise ValueError("v is None; ragged KV takes k and v")
    views = ragged_views(k, v, layout)
    tokens = int(views.k.shape[0])
    if tokens < kv_format.num_rows:
        raise ValueError(f"k has {tokens} rows but the format describes {kv_format.num_rows}")
    if not block_sparse:
        return views
    if tokens != kv_format.num_rows:
        raise ValueError(f"k has {tokens} rows but num_cols is {kv_format.num_rows}")
    # Column blocks are pages of the same memory: splitting a dimension makes a view.
    pages = tokens // kv_format.page_size
    k, v = (x.reshape(pages, kv_format.page_size, *x.shape[1:]) for x in (views.k, views.v))
    return KVViews(k, v, _strides(k), _strides(v), pages, kv_format.page_size)


def _in_nhd(k: Any, v: Any, layout: str, dims: tuple[str, ...]) -> tuple[Any, Any]:
    """Checks k and v against each other and puts tokens before heads."""
    one_of("kv_layout", layout, LAYOUTS)
    expected = dims
    if layout == "HND":
        expected = (*dims[:-3], dims[-2], dims[-3], dims[-1])
    for name, x in (("k", k), ("v", v)):
        if len(x.shape) != len(dims):
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}; layout {layout!r} takes "
                f"({', '.join(expected)})"
            )
        strides = element_strides(x)
        if x.shape[-1] > 1 and strides[-1] != 1:
            raise ValueError(f"{name} has strides {strides}; the last dimension must be contiguous")
    if tuple(k.shape[:-1]) != tuple(v.shape[:-1]):
        raise ValueError(
            f"k has shape {tuple(k.shape)} and v {tuple(v.shape)}; only head_dim may differ"
        )
    if k.dtype != v.dtype:
        raise TypeError(f"k is {k.dtype} and v is {v.dtype}; they must be the same")
    if device_type(k) != device_type(v) or (device_type(k) != "cpu" and k.device != v.device):
        raise ValueError(f"k is on {k.device} and v on {v.device}; they must be together")
    if layout == "HND":
        k, v = k.swapaxes(-3, -2), v.swapaxes(-3, -2)
    return k, v


def _strides(x: Any) -> Strides:
    strides = element_strides(x)
    return Strides(strides[0] if len(strides) == 4 else 0, strides[-3], strides[-2])
