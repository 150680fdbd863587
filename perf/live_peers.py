"""Peers in the same run, so that clocks are alike: cuDNN through torch, and FlashAttention-3.

They take the tensors of a dense case of ours (equal lengths, ragged KV). Whatever one of them
refuses (a shape, a mask, a missing library) is skipped by the caller with the reason printed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from perf.harness import Prepared

Call = Callable[[], torch.Tensor]
"""One call; gives the output, (batch, seq, heads, head_dim_vo)."""

SECTIONS = ("A", "A16", "M", "W")


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

    def call() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=case.is_causal
            )
        return out.transpose(1, 2)

    return call


def fa3(prepared: Prepared) -> Call:
    """FlashAttention-3's fixed-length forward; `load_fa3` first."""
    case = prepared.case
    q, k, v = dense(prepared)
    options: dict[str, Any] = {
        "softmax_scale": case.head_dim**-0.5,
        "is_causal": case.is_causal and case.window is None,
        "num_splits": 1,
    }
    if case.window is not None:
        options |= {"window_size_left": case.window - 1, "window_size_right": 0}

    def call() -> torch.Tensor:
        result = torch.ops.fa3_fwd.fwd(q, k, v, **options)
        out: torch.Tensor = result if isinstance(result, torch.Tensor) else result[0]
        return out

    return call


def load_fa3(library: Path) -> None:
    """Loads the extension of the wheel, `fa3_fwd/_C.abi3.so`.

    Raises:
        OSError: it cannot be loaded.
    """
    torch.ops.load_library(str(library))
