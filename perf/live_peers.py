"""Peers in the same run, so that clocks and memory are alike: cuDNN (torch), FlashAttention-3.

In prefill they take the tensors of a dense case of ours (equal lengths, ragged KV). Of paged cases
FlashAttention-3 gets contiguous copies of our pages, since the wheel is built without pages: what
it reads is easier to read than what we do. Whatever a peer refuses (a shape, a mask, a missing
library) is skipped by the caller with the reason printed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from perf.harness import Prepared, indptr, keys_of


class Call(Protocol):
    """One call on cache number `index`; gives the output, (..., heads, head_dim_vo)."""

    def __call__(self, index: int = 0) -> torch.Tensor: ...


SECTIONS = ("A", "A16", "B", "K", "M", "W")


class Unsupported(ValueError):
    """The peer has nothing for this case."""


def dense(prepared: Prepared) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v of a case with equal lengths as (batch, seq, heads, head_dim)."""
    case = prepared.case
    if case.page_size is not None or len({*case.q_lens, *case.kv_lens}) != 1:
        raise Unsupported("lengths differ or KV is paged")
    shape = (len(case.q_lens), case.q_lens[0])
    k, v = prepared.caches[0]
    q, k, v = (x.view(*shape, *x.shape[1:]) for x in (prepared.q, k, v))
    return q, k, v


def cudnn(prepared: Prepared) -> Call:
    """torch SDPA with the cuDNN back end alone, on (batch, heads, seq, head_dim) views."""
    case = prepared.case
    if case.window is not None:
        raise Unsupported("a window would need a mask tensor")
    q, k, v = (x.transpose(1, 2) for x in dense(prepared))

    def call(index: int = 0) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=case.is_causal
            )
        return out.transpose(1, 2)

    return call


def fa3(prepared: Prepared) -> Call:
    """FlashAttention-3's forward, of dense cases that of fixed lengths; `load_fa3` first."""
    case = prepared.case
    if case.page_size is not None or case.q_lens != case.kv_lens:
        return fa3_contiguous(prepared)
    q, k, v = dense(prepared)
    options: dict[str, Any] = {
        "softmax_scale": case.head_dim**-0.5,
        "is_causal": case.is_causal and case.window is None,
        "num_splits": 1,
    }
    if case.window is not None:
        options |= {"window_size_left": case.window - 1, "window_size_right": 0}

    def call(index: int = 0) -> torch.Tensor:
        result = torch.ops.fa3_fwd.fwd(q, k, v, **options)
        out: torch.Tensor = result if isinstance(result, torch.Tensor) else result[0]
        return out

    return call


def fa3_contiguous(prepared: Prepared) -> Call:
    """FlashAttention-3's forward over contiguous copies of a case's pages; it chooses splits."""
    case, device = prepared.case, prepared.q.device
    requests = range(len(case.kv_lens))
    caches = []
    for number in range(len(prepared.caches)):
        own = [keys_of(prepared, request, number) for request in requests]
        caches.append(tuple(torch.cat(parts) for parts in zip(*own, strict=True)))
        del own
    options: dict[str, Any] = {
        "softmax_scale": case.head_dim**-0.5,
        "is_causal": case.is_causal,
        "num_splits": 0,
    }
    q = prepared.q
    if len({*case.kv_lens}) == len({*case.q_lens}) == 1:
        q = q.view(len(case.q_lens), -1, *q.shape[1:])
        caches = [tuple(x.view(len(case.kv_lens), -1, *x.shape[1:]) for x in kv) for kv in caches]
    else:
        options |= {
            "cu_seqlens_q": torch.tensor(indptr(case.q_lens), dtype=torch.int32, device=device),
            "cu_seqlens_k": torch.tensor(indptr(case.kv_lens), dtype=torch.int32, device=device),
            "max_seqlen_q": max(case.q_lens),
            "max_seqlen_k": max(case.kv_lens),
        }

    def call(index: int = 0) -> torch.Tensor:
        result = torch.ops.fa3_fwd.fwd(q, *caches[index % len(caches)], **options)
        out: torch.Tensor = result if isinstance(result, torch.Tensor) else result[0]
        return out.view(-1, *out.shape[-2:])

    return call


def load_fa3(library: Path) -> None:
    """Loads the extension of the wheel, `fa3_fwd/_C.abi3.so`.

    Raises:
        OSError: it cannot be loaded.
    """
    torch.ops.load_library(str(library))
