"""Paged caches: lengths, places of new tokens, and appending to them."""

from __future__ import annotations

import torch

from cute_attn.api import DeviceKV, PagedKV, append_paged_kv, checks
from cute_attn.flashinfer import arguments
from cute_attn.flashinfer.unsupported import stand_ins

__getattr__ = stand_ins(__name__)


def get_seq_lens(
    kv_indptr: torch.Tensor, kv_last_page_len: torch.Tensor, page_size: int
) -> torch.Tensor:
    """Keys of each request, (num_requests,).

    Args:
        kv_indptr: (num_requests + 1,), pages.
        kv_last_page_len: (num_requests,).
        page_size: keys per page.
    """
    full = (kv_indptr[1:] - kv_indptr[:-1] - 1).clamp(min=0)
    return full * page_size + kv_last_page_len


def get_batch_indices_positions(
    append_indptr: torch.Tensor,
    seq_lens: torch.Tensor,
    nnz: int,
    batch_indices: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Request and position of each new token. Waits for nothing, and may be captured.

    Args:
        append_indptr: (num_requests + 1,) int32, new tokens of each request.
        seq_lens: (num_requests,) keys of each request after the append.
        nnz: tokens that there is room for.
        batch_indices, positions: (nnz,) int32, to be written.

    Returns:
        batch_indices and positions (nnz,) int32; those past append_indptr[-1] are -1 and 0.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    device = arguments.tensor("append_indptr", append_indptr).device
    for name, given in (("batch_indices", batch_indices), ("positions", positions)):
        if given is not None:
            checks.tensor(name, given, dims=[("nnz", nnz)], dtype=torch.int32, device=device)
    token = torch.arange(nnz, dtype=append_indptr.dtype, device=device)
    request = torch.searchsorted(append_indptr[1:].contiguous(), token, right=True)
    valid = token < append_indptr[-1]
    request = torch.where(valid, request, 0)
    # Where a request's first new token would stand if its rows began at 0.
    first = seq_lens.to(append_indptr.dtype) - append_indptr[1:]
    place = torch.where(valid, token + first[request], 0)
    request = torch.where(valid, request, -1)
    if batch_indices is None:
        batch_indices = request.to(torch.int32)
    else:
        batch_indices.copy_(request)
    positions = place.to(torch.int32) if positions is None else positions.copy_(place)
    return batch_indices, positions


def append_paged_kv_cache(
    append_key: torch.Tensor,
    append_value: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    paged_kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_last_page_len: torch.Tensor,
    kv_layout: str = "NHD",
) -> None:
    """Writes new K and V rows into their places in a paged cache. Waits for nothing where the index
    tensors are on the device of the cache, and may then be captured.

    Args:
        append_key: (nnz, num_kv_heads, head_dim), of the cache's dtype.
        append_value: as append_key with head_dim_vo.
        batch_indices, positions: (nnz,) of `get_batch_indices_positions`.
        paged_kv_cache: one tensor (pages, 2, ...), or a pair.
        kv_indices, kv_indptr, kv_last_page_len: of the cache after the append.
        kv_layout: "NHD" or "HND".

    Raises:
        TypeError, ValueError, NotImplementedError: naming the argument.
    """
    layout = arguments.kv_layout(kv_layout)
    cache = arguments.paged_cache(paged_kv_cache, layout)
    arguments.dtyped("append_key", append_key)
    k_cache, v_cache = cache if isinstance(cache, tuple) else (cache, None)
    page_size = k_cache.shape[(-3 if layout == "NHD" else -2)]
    _append(
        append_key,
        append_value,
        batch_indices,
        positions,
        (k_cache, v_cache),
        (kv_indices, kv_indptr, kv_last_page_len),
        int(page_size),
        layout,
    )


def append_paged_mla_kv_cache(
    append_ckv: torch.Tensor,
    append_kpe: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    ckv_cache: torch.Tensor,
    kpe_cache: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_last_page_len: torch.Tensor,
) -> None:
    """`append_paged_kv_cache` for the latent rows of MLA.

    Args:
        append_ckv, append_kpe: (nnz, 512) and (nnz, 64).
        batch_indices, positions: (nnz,).
        ckv_cache, kpe_cache: (pages, page_size, 512) and (pages, page_size, 64).
        kv_indices, kv_indptr, kv_last_page_len: of the caches after the append.

    Raises:
        TypeError, ValueError, NotImplementedError: naming the argument.
    """
    named = {"append_ckv": append_ckv, "append_kpe": append_kpe}
    for name, x in {**named, "ckv_cache": ckv_cache, "kpe_cache": kpe_cache}.items():
        arguments.dtyped(name, x)
    _append(
        append_ckv.unsqueeze(1),
        append_kpe.unsqueeze(1),
        batch_indices,
        positions,
        (ckv_cache.unsqueeze(2), kpe_cache.unsqueeze(2)),
        (kv_indices, kv_indptr, kv_last_page_len),
        int(ckv_cache.shape[1]),
        "NHD",
    )


def _append(
    key: torch.Tensor,
    value: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor | None],
    tables: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    page_size: int,
    layout: str,
) -> None:
    device = caches[0].device
    indices, indptr, last = (x.to(torch.int32) for x in tables)
    kv_format: DeviceKV | PagedKV
    if all(x.device == device for x in (indices, indptr, last)):
        kv_format = DeviceKV.from_paged(indptr, indices, last, page_size)
    else:
        on_host = arguments.to_host(kv_indptr=indptr, kv_last_page_len=last)
        kv_format = PagedKV(on_host[0], indices, on_host[1], page_size)
    append_paged_kv(
        key,
        value,
        batch_indices.to(device, torch.int32),
        positions.to(device, torch.int32),
        *caches,
        kv_format,
        kv_layout=layout,
    )
