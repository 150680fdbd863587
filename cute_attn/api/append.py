"""Appending new keys and values to a paged cache, on the way rotating the keys if wanted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch

from cute_attn.api import checks
from cute_attn.api.dispatch import AMPERE_DECODE, emitter_arch
from cute_attn.api.kernel import Kernel
from cute_attn.api.kv_fields import page_fields, stride_fields
from cute_attn.api.small_kernels import ready
from cute_attn.codegen.kernels import ROPE_STYLES, append_grid, emit_append, rope_steps
from cute_attn.formats import (
    BlockTableKV,
    DeviceKV,
    KVFormat,
    KVViews,
    PagedKV,
    as_numpy,
    paged_views,
)
from cute_attn.reference import Rope
from cute_attn.runtime.device import device_info


@dataclass(frozen=True)
class RoPE:
    """Rotary position embedding of the new keys (Su et al., "RoFormer", arXiv 2104.09864).

    Attributes:
        style: which elements of a key turn together: "half_split" (i and i + head_dim / 2) or
            "interleaved" (2 i and 2 i + 1).
        theta: base of the frequencies.
        scale: positions are divided by it (linear interpolation).
    """

    style: str = "half_split"
    theta: float = 10000.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        checks.one_of("style", self.style, ROPE_STYLES)
        for name in ("theta", "scale"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} is {value}; it takes a positive number")


def append_paged_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor | None,
    kv_format: KVFormat,
    *,
    kv_layout: str = "NHD",
    rope: RoPE | None = None,
) -> None:
    """Writes new K and V rows into their places in a paged cache.

    Row i belongs to request batch_indices[i], at position positions[i] of it; its page must already
    be in the page table. A negative batch index skips the row (padding in a captured graph).
    Nothing waits for the device; page numbers, batch indices and positions that live there are not
    checked.

    Args:
        key: (tokens, num_kv_heads, head_dim), bf16 or fp16 as the cache; rows may be strided.
        value: (tokens, num_kv_heads, head_dim_vo).
        batch_indices: (tokens,) int32 on the device of key.
        positions: (tokens,) int32 on the device of key, below 2^31.
        k_cache: (pages, page_size, num_kv_heads, head_dim) for NHD, (pages, num_kv_heads,
            page_size, head_dim) for HND; or the whole cache (pages, 2, ...) with v_cache None.
        v_cache: as k_cache with head_dim_vo; its strides may differ.
        kv_format: `PagedKV`, `BlockTableKV` or `DeviceKV` that describes the cache after the
            append. Its tables are used in place if they are on the device, else copied there.
        kv_layout: "NHD" or "HND".
        rope: rotate the new keys by their positions. The angle is exact for any position, the
            rotation is computed in float32. Not for attention with a variant that rotates keys
            itself (`cute_attn.rope`, `streaming_llm`): its cache holds keys that are not rotated.

    Raises:
        TypeError, ValueError: a tensor is wrong; the cache is untouched.
        RuntimeError: the first use of a kernel during CUDA graph capture, or a tensor requires grad
            while grad mode is on: there is no backward.
    """
    checks.one_of("kv_layout", kv_layout, ("NHD", "HND"))
    if not isinstance(kv_format, PagedKV | BlockTableKV | DeviceKV) or not kv_format.paged:
        raise TypeError(
            f"kv_format is a {type(kv_format).__name__}; it takes PagedKV, BlockTableKV, or a"
            " DeviceKV with a page table"
        )
    if rope is not None and not isinstance(rope, RoPE):
        raise TypeError(f"rope is a {type(rope).__name__}; it takes RoPE or None")
    if torch.is_grad_enabled():
        given = {"key": key, "value": value, "k_cache": k_cache, "v_cache": v_cache}
        checks.no_gradients(**{n: x for n, x in given.items() if isinstance(x, torch.Tensor)})
    views = _views(k_cache, v_cache, kv_layout, kv_format)
    _check_rows(key, value, batch_indices, positions, views)
    if key.device.type == "cpu":
        on_host = kv_format.on_host() if isinstance(kv_format, DeviceKV) else kv_format
        _append_on_cpu(key, value, batch_indices, positions, views, on_host, rope)
    elif key.shape[0]:
        with torch.cuda.device(key.device):
            _launch(key, value, batch_indices, positions, views, kv_format, rope)


def _views(
    k_cache: torch.Tensor, v_cache: torch.Tensor | None, layout: str, kv_format: KVFormat
) -> KVViews:
    views = paged_views(k_cache if v_cache is None else (k_cache, v_cache), layout)
    if views.page_size != kv_format.page_size:
        raise ValueError(
            f"k_cache has pages of {views.page_size} tokens (layout {layout}); kv_format says"
            f" {kv_format.page_size}"
        )
    kv_format.check_num_pages(views.num_pages)
    return views


def _check_rows(
    key: torch.Tensor,
    value: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    views: KVViews,
) -> None:
    dtype, device = views.k.dtype, views.k.device
    tokens = int(key.shape[0]) if isinstance(key, torch.Tensor) and key.dim() else None
    for name, rows, dim in (("key", key, views.head_dim_qk), ("value", value, views.head_dim_vo)):
        dims = (("tokens", tokens), ("num_kv_heads", views.num_kv_heads), ("head_dim", dim))
        checks.tensor(name, rows, dims=dims, dtype=dtype, device=device)
        checks.vector_rows(name, rows)
    for name, numbers in (("batch_indices", batch_indices), ("positions", positions)):
        checks.tensor(name, numbers, dims=[("tokens", tokens)], dtype=torch.int32, device=device)
        checks.contiguous(name, numbers)
    known = list(checks.DTYPE_NAMES) if device.type == "cpu" else [torch.bfloat16, torch.float16]
    if dtype not in known:
        raise TypeError(f"k_cache has dtype {dtype}; it takes {', '.join(map(str, known))}")
    checks.vector_rows("k_cache", views.k)
    checks.vector_rows("v_cache", views.v)


def _launch(
    key: torch.Tensor,
    value: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    views: KVViews,
    kv_format: KVFormat,
    rope: RoPE | None,
) -> None:
    device = key.device
    arch = emitter_arch(device_info(device.index).arch, AMPERE_DECODE)
    kernel = _kernel(
        arch,
        checks.DTYPE_NAMES[key.dtype],
        views.head_dim_qk,
        views.head_dim_vo,
        rope.style if rope else None,
    )
    arguments = kernel.arguments()
    table = _on_device(kv_format.page_table, device)
    if isinstance(kv_format, DeviceKV):
        if kv_format.kv_indptr is not None:
            arguments.set(page_begin=_on_device(kv_format.kv_indptr, device).data_ptr())
        else:
            arguments.set(pages_per_request=kv_format.table_stride)
    elif isinstance(kv_format, PagedKV):
        begin = _on_device(kv_format.kv_start.astype(np.int32), device)
        arguments.set(page_begin=begin.data_ptr())
    else:
        per_request = int(kv_format.kv_start[1]) if kv_format.num_requests > 1 else 0
        arguments.set(pages_per_request=per_request)
    if rope is not None:
        steps = _steps(rope, views.head_dim_qk, device)
        arguments.set(rope_steps=steps.data_ptr())
    arguments.set(
        key=key.data_ptr(),
        value=value.data_ptr(),
        k_cache=views.k.data_ptr(),
        v_cache=views.v.data_ptr(),
        batch_indices=batch_indices.data_ptr(),
        positions=positions.data_ptr(),
        page_table=table.data_ptr(),
        key_token_stride=key.stride(0),
        key_head_stride=key.stride(1),
        value_token_stride=value.stride(0),
        value_head_stride=value.stride(1),
        num_kv_heads=views.num_kv_heads,
        **stride_fields(views),
        **page_fields(views.page_size),
    )
    stream = torch.cuda.current_stream(device).cuda_stream
    kernel.launch(append_grid(int(key.shape[0])), stream, arguments, device.index)


def _on_device(table: Any, device: torch.device) -> torch.Tensor:
    """A host array as a device tensor (asynchronous copy); a device tensor as it is."""
    if isinstance(table, torch.Tensor):
        if table.device != device:
            raise TypeError(f"the page table is on {table.device}; it takes {device} or the host")
        return table
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "append_paged_kv during CUDA graph capture needs the page table on the device:"
            " DeviceKV, or BlockTableKV with a device tensor"
        )
    return torch.from_numpy(table).pin_memory().to(device, non_blocking=True)


@lru_cache(maxsize=64)
def _steps(rope: RoPE, head_dim: int, device: torch.device) -> torch.Tensor:
    """(head_dim / 2,) int64, see `rope_steps`; copied to the device once."""
    steps = rope_steps(head_dim, rope_theta=rope.theta, rope_scale=rope.scale)
    return torch.from_numpy(steps.view(np.int64)).to(device)


@cache
def _kernel(arch: str, dtype: str, head_dim_qk: int, head_dim_vo: int, rope: str | None) -> Kernel:
    return ready(emit_append(arch, dtype, head_dim_qk, head_dim_vo, rope))


def _append_on_cpu(
    key: torch.Tensor,
    value: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    views: KVViews,
    kv_format: KVFormat,
    rope: RoPE | None,
) -> None:
    """On the CPU the numbers can be looked at, so they are checked first."""
    requests, places = batch_indices.numpy(), positions.numpy()
    used = requests >= 0
    if used.any() and int(requests.max()) >= kv_format.num_requests:
        raise ValueError(
            f"batch_indices holds {int(requests.max())}; kv_format has {kv_format.num_requests}"
            " requests"
        )
    requests, places = requests[used].astype(np.int64), places[used].astype(np.int64)
    wrong = (places < 0) | (places >= kv_format.kv_len[requests])
    if wrong.any():
        at = int(wrong.argmax())
        raise ValueError(
            f"positions holds {places[at]} for request {requests[at]}, which has"
            f" {kv_format.kv_len[requests[at]]} keys after the append"
        )
    pages = kv_format.page_table[kv_format.kv_start[requests] + places // kv_format.page_size]
    rows = torch.from_numpy(places % kv_format.page_size)
    chosen = torch.from_numpy(used)
    new_key = key[chosen]
    if rope is not None:
        reference = Rope(rope.theta, rope.scale, interleaved=rope.style == "interleaved")
        turned = reference.rotate(as_numpy(new_key), places)
        new_key = torch.from_numpy(turned).to(key.dtype)
    pages = torch.from_numpy(pages.astype(np.int64))
    views.k[pages, rows] = new_key
    views.v[pages, rows] = value[chosen]
