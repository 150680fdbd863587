"""Writing new keys and values into a paged cache, with or without rotary embedding of the keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cute_attn.formats import KVFormat, KVViews, as_numpy

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding (Su et al., arXiv 2104.09864).

    Attributes:
        theta: base of the frequencies.
        scale: positions are divided by it (linear interpolation).
        rotary_dim: leading elements that are rotated; None = all.
        interleaved: pairs are (0, 1), (2, 3), ... instead of (i, i + rotary_dim / 2).
    """

    theta: float = 10000.0
    scale: float = 1.0
    rotary_dim: int | None = None
    interleaved: bool = False

    def rotate(self, x: Array, positions: Array) -> Array:
        """Rotated copy of x (tokens, heads, head_dim) for positions (tokens,), at least float32."""
        dim = x.shape[-1] if self.rotary_dim is None else self.rotary_dim
        if dim % 2 or not 0 < dim <= x.shape[-1]:
            raise ValueError(f"rotary_dim is {dim}; it takes an even number up to {x.shape[-1]}")
        half = dim // 2
        frequency = self.theta ** (-np.arange(half) / half)
        angle = (positions[:, None] / self.scale * frequency)[:, None, :]
        cos, sin = np.cos(angle), np.sin(angle)
        out = x.astype(np.result_type(x.dtype, np.float32))
        first, second = slice(0, half), slice(half, dim)
        if self.interleaved:
            first, second = slice(0, dim, 2), slice(1, dim, 2)
        a, b = x[..., first].astype(np.float64), x[..., second].astype(np.float64)
        out[..., first] = a * cos - b * sin
        out[..., second] = b * cos + a * sin
        return out


def append_paged_kv(
    k_new: Any,
    v_new: Any,
    append_indptr: Any,
    kv_format: KVFormat,
    views: KVViews,
    *,
    rope: Rope | None = None,
) -> None:
    """Writes new keys and values at the end of each request, in place.

    Args:
        k_new, v_new: (new_tokens, num_kv_heads, head_dim_qk / head_dim_vo).
        append_indptr: (num_requests + 1,); request i gets rows append_indptr[i:i+2]. They become
            its last keys: `kv_format` describes the cache after the append.
        kv_format: paged, page table on the host.
        views: of the cache, from `kv_views`; what they view is written.
        rope: rotates the new keys by their positions.

    Raises:
        ValueError: more new tokens than keys, or shapes that do not fit.
    """
    if not kv_format.paged:
        raise ValueError(f"kv_format is {kv_format!r}; only a paged cache can be appended to")
    indptr = np.asarray(append_indptr, np.int64)
    counts = np.diff(indptr)
    if counts.size != kv_format.num_requests:
        raise ValueError(
            f"append_indptr describes {counts.size} requests but the format has "
            f"{kv_format.num_requests}"
        )
    if (counts > kv_format.kv_len).any():
        at = int((counts > kv_format.kv_len).argmax())
        raise ValueError(
            f"append_indptr gives request {at} {counts[at]} new tokens but the format says it has "
            f"{kv_format.kv_len[at]} keys after the append"
        )
    for name, new, cache in (("k_new", k_new, views.k), ("v_new", v_new, views.v)):
        expected = (int(indptr[-1]), *cache.shape[2:])
        if tuple(new.shape) != expected:
            raise ValueError(f"{name} has shape {tuple(new.shape)}; it takes {expected}")
    request = np.repeat(np.arange(counts.size), counts)
    token = np.arange(int(indptr[-1])) - indptr[request]
    position = kv_format.kv_len[request] - counts[request] + token
    pages = kv_format.page_table[kv_format.kv_start[request] + position // kv_format.page_size]
    rows = position % kv_format.page_size
    if rope is not None:
        k_new = _like(rope.rotate(as_numpy(k_new), position), views.k)
    views.k[pages, rows] = k_new
    views.v[pages, rows] = v_new


def _like(array: Array, model: Any) -> Any:
    """`array` as the kind and dtype of `model`, a NumPy array or a tensor."""
    if isinstance(model, np.ndarray):
        return array.astype(model.dtype)
    return model.new_tensor(array)
