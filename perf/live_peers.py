"""Peers in the same run, so that clocks are alike: cuDNN through torch, and FlashAttention-3.

They take the tensors of a case of ours: cuDNN dense ones (equal lengths, ragged KV),
FlashAttention-3 pages as well. Whatever one of them refuses (a shape, a mask, a missing library) is
skipped by the caller with the reason printed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from perf.harness import Prepared, indptr

Call = Callable[[int], torch.Tensor]
"""One call on cache number i; gives the output, (batch, seq, heads, head_dim_vo) or (tokens, heads,
head_dim_vo). Dense cases have one cache."""

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

    def call(_: int) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=case.is_causal
            )
        return out.transpose(1, 2)

    return call


def fa3(prepared: Prepared) -> Call:
    """FlashAttention-3's forward, of fixed length or over pages; `load_fa3` first."""
    case = prepared.case
    options: dict[str, Any] = {
        "softmax_scale": case.head_dim**-0.5,
        "is_causal": case.is_causal and case.window is None,
    }
    if case.window is not None:
        options |= {"window_size_left": case.window - 1, "window_size_right": 0}
    if prepared.pages is None:
        q, k, v = dense(prepared)
        caches = [(k, v)]
        options["num_splits"] = 1
    else:
        q, device = prepared.q, prepared.q.device
        caches = [(cache[:, 0], cache[:, 1]) for (cache,) in prepared.caches]
        table = torch.nn.utils.rnn.pad_sequence(prepared.pages, batch_first=True)
        options |= {
            "cu_seqlens_q": torch.tensor(indptr(case.q_lens), dtype=torch.int32, device=device),
            "max_seqlen_q": max(case.q_lens),
            "seqused_k": torch.tensor(case.kv_lens, dtype=torch.int32, device=device),
            "page_table": table.to(device, torch.int32),
            "num_splits": 0,  # its own choice
        }

    def call(index: int) -> torch.Tensor:
        result = torch.ops.fa3_fwd.fwd(q, *caches[index % len(caches)], **options)
        out: torch.Tensor = result if isinstance(result, torch.Tensor) else result[0]
        return out

    return call


def load_fa3(library: Path) -> None:
    """Loads the extension of the wheel, `fa3_fwd/_C.abi3.so`.

    Raises:
        OSError: it cannot be loaded.
    """
    torch.ops.load_library(str(library))
