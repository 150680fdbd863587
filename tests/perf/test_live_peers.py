"""Peers of the same run: what FlashAttention-3 is given for a case over pages."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch

from perf import harness, live_peers
from perf.cases import Case

CPU = torch.device("cpu")


def fwd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    softmax_scale: float,
    is_causal: bool,
    num_splits: int,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
) -> tuple[torch.Tensor, None]:
    """The extension's forward by its contract: (batch, seq, ...) or (tokens, ...) with offsets."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(len(q)) + len(k) - len(q)
        return harness.reference(q, k, v, positions, is_causal).to(q.dtype)

    if cu_seqlens_q is None or cu_seqlens_k is None:
        assert q.ndim == k.ndim == v.ndim == 4
        return torch.stack([attend(*one) for one in zip(q, k, v, strict=True)]), None
    q_lens, k_lens = (x.diff().tolist() for x in (cu_seqlens_q, cu_seqlens_k))
    assert (max(q_lens), max(k_lens)) == (max_seqlen_q, max_seqlen_k)
    parts = zip(q.split(q_lens), k.split(k_lens), v.split(k_lens), strict=True)
    return torch.cat([attend(*one) for one in parts]), None


@pytest.mark.parametrize(
    ("q_lens", "kv_lens"),
    [((1, 1, 1), (40, 40, 40)), ((3, 3), (48, 48)), ((1, 1, 1), (40, 7, 90))],
    ids=["decode", "few tokens", "lengths differ"],
)
def test_contiguous_copies_hold_the_keys(
    q_lens: Sequence[int], kv_lens: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.ops, "fa3_fwd", SimpleNamespace(fwd=fwd), raising=False)
    monkeypatch.setattr(harness, "cache_count", lambda case: 2)
    case = Case("C", "", tuple(q_lens), tuple(kv_lens), 4, 2, 16, 16, True)
    prepared = harness.prepare(case, rotate=True, device=CPU)
    call = live_peers.fa3_contiguous(prepared)
    assert harness.relative_error(prepared, call()) < 4e-3
    assert harness.relative_error(prepared, call(1)) > 0.1  # another cache
    assert torch.equal(call(2), call(0))
