"""Keys and values of one request, gathered into NumPy arrays: for the executor and for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cute_attn.formats.base import KVFormat
from cute_attn.formats.views import KVViews

Array = npt.NDArray[Any]


def as_numpy(x: Any) -> Array:
    """A CPU tensor or NumPy array as NumPy; bfloat16 and float8, which it lacks, become float32."""
    if isinstance(x, np.ndarray):
        return x
    if hasattr(x, "detach"):
        x = x.detach()
    if any(name in str(getattr(x, "dtype", "")) for name in ("bfloat16", "float8")):
        x = x.float()
    return np.asarray(x)


def gather_kv(
    kv_format: KVFormat, views: KVViews, request: int, begin: int = 0, end: int | None = None
) -> tuple[Array, Array]:
    """Keys and values [begin, end) of one request.

    Args:
        kv_format: the format; its page table must be on the host.
        views: from `kv_views`, `paged_views` or `ragged_views`; on the CPU.
        request: caller's index.
        begin, end: keys to take, from the request's first; default all.

    Returns:
        keys (n, num_kv_heads, head_dim_qk) and values (n, num_kv_heads, head_dim_vo). Copies, or
        views of ragged arrays.
    """
    length = int(kv_format.kv_len[request])
    end = length if end is None else min(end, length)
    begin = min(begin, end)
    if not kv_format.paged:
        rows = slice(
            int(kv_format.kv_start[request]) + begin, int(kv_format.kv_start[request]) + end
        )
        return as_numpy(views.k[rows]), as_numpy(views.v[rows])
    size = kv_format.page_size
    first = begin // size
    pages = kv_format.pages_of(request)[first : -(-end // size)]
    rows = slice(begin - first * size, end - first * size)
    taken = []
    for x in (views.k, views.v):
        array = as_numpy(x[pages])
        taken.append(array.reshape(-1, *array.shape[2:])[rows])
    return taken[0], taken[1]
