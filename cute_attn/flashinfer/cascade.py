"""Requests that share keys: cascades of levels, and what they are merged with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from cute_attn.api import CompositeAttention, Level, LevelsKV
from cute_attn.flashinfer import arguments
from cute_attn.flashinfer.options import Options
from cute_attn.flashinfer.paged import paged_kv
from cute_attn.flashinfer.shared_prefix import (
    BatchDecodeWithSharedPrefixPagedKVCacheWrapper,
    BatchPrefillWithSharedPrefixPagedKVCacheWrapper,
)
from cute_attn.flashinfer.states import merge_state, merge_state_in_place, merge_states

__all__ = [
    "BatchDecodeWithSharedPrefixPagedKVCacheWrapper",
    "BatchPrefillWithSharedPrefixPagedKVCacheWrapper",
    "MultiLevelCascadeAttentionWrapper",
    "merge_state",
    "merge_state_in_place",
    "merge_states",
]


class MultiLevelCascadeAttentionWrapper:
    """Requests that share keys, level by level from the coarsest: shared keys are read once.

    Positions are true ones, those of a request's keys one level after the other: windows and
    position encodings are what they would be without levels. (FlashInfer counts from 0 in each
    level. Without windows and encodings there is no difference.)

    Args:
        num_levels: levels.
        float_workspace_buffer: its device is where everything lives; memory is allocated.
        kv_layout: "NHD" or "HND".
        use_cuda_graph: for capture.
        others: taken and not used: what graphs read is allocated.

    Raises:
        TypeError, ValueError: naming the argument.
    """

    def __init__(
        self,
        num_levels: int,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf_arr: list[torch.Tensor] | None = None,
        paged_kv_indptr_buf_arr: list[torch.Tensor] | None = None,
        paged_kv_indices_buf_arr: list[torch.Tensor] | None = None,
        paged_kv_last_page_len_buf_arr: list[torch.Tensor] | None = None,
    ) -> None:
        arguments.workspace("float_workspace_buffer", float_workspace_buffer)
        self._kv_layout = arguments.kv_layout(kv_layout)
        self._num_levels, self._use_cuda_graph = num_levels, bool(use_cuda_graph)
        self.device = float_workspace_buffer.device
        self._made: dict[tuple[Any, ...], CompositeAttention] = {}
        self._planned: CompositeAttention | None = None

    @property
    def is_cuda_graph_enabled(self) -> bool:
        """Whether it was made for CUDA graphs."""
        return self._use_cuda_graph

    def reset_workspace_buffer(
        self, float_workspace_buffer: torch.Tensor, int_workspace_buffers: list[torch.Tensor]
    ) -> None:
        """Changes nothing: memory is allocated."""
        arguments.workspace("float_workspace_buffer", float_workspace_buffer)

    def plan(
        self,
        qo_indptr_arr: list[torch.Tensor],
        paged_kv_indptr_arr: list[torch.Tensor],
        paged_kv_indices_arr: list[torch.Tensor],
        paged_kv_last_page_len: list[torch.Tensor],
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: str | torch.dtype = "float16",
        kv_data_type: str | torch.dtype | None = None,
    ) -> None:
        """Decides which thread block does what for one step; run() then serves every layer.

        Waits for the device if index tensors are there, page numbers among them.

        Args:
            qo_indptr_arr: for each level, (num_groups + 1,) query rows of the groups that share
                keys in it; those of the last level are the requests.
            paged_kv_indptr_arr, paged_kv_indices_arr, paged_kv_last_page_len: for each level, the
                keys of its groups.
            causal: of the last level: a request's last query sees its last key.
            others: as for `BatchPrefillWithPagedKVCacheWrapper.plan`.

        Raises:
            TypeError, ValueError, NotImplementedError: naming the argument.
            Others as `cute_attn.CompositeAttention.plan`.
        """
        dtype, _ = arguments.data_types(q_data_type, kv_data_type, None)
        options = Options.checked(
            causal=causal,
            window_left=window_left,
            logits_soft_cap=logits_soft_cap,
            pos_encoding_mode=pos_encoding_mode,
            sm_scale=sm_scale,
            rope_scale=rope_scale,
            rope_theta=rope_theta,
        )
        lists = (
            qo_indptr_arr, paged_kv_indptr_arr, paged_kv_indices_arr, paged_kv_last_page_len
        )  # fmt: skip
        for name, given in zip(_LISTS, lists, strict=True):
            if len(given) != self._num_levels:
                raise ValueError(f"{name} has {len(given)} levels; it takes {self._num_levels}")
        host = _on_host(lists)
        rows = host[-1][0].numpy().astype(np.int64)
        levels = [
            _level(
                i,
                rows,
                one[0].numpy().astype(np.int64),
                paged_kv(one[1], one[2], one[3], page_size),
            )
            for i, one in enumerate(host)
        ]
        variant = options.variant(num_qo_heads)
        sizes = (num_qo_heads, num_kv_heads, head_dim)
        key = (*sizes, dtype, variant, options.sm_scale)
        composite = self._made.get(key)
        if composite is None:
            composite = self._made[key] = CompositeAttention(
                *sizes,
                variant=variant,
                dtype=dtype,
                sm_scale=options.sm_scale,
                kv_layout=self._kv_layout,
                device=self.device,
                cuda_graph=self._use_cuda_graph,
            )
        composite.plan(rows, LevelsKV(levels, rows.size - 1), scalars=options.scalars or None)
        self._planned = composite

    begin_forward = plan

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """Attention of the planned step, for one layer.

        Args:
            q: (query rows, num_qo_heads, head_dim).
            paged_kv_cache: that of all levels; see `BatchPrefillWithPagedKVCacheWrapper.run`.

        Returns:
            out (query rows, num_qo_heads, head_dim).

        Raises:
            TypeError, ValueError, NotImplementedError: naming the argument.
            RuntimeError: not planned.
        """
        if self._planned is None:
            raise RuntimeError("run() before plan(): plan the step first")
        cache = arguments.paged_cache(paged_kv_cache, self._kv_layout)
        out: torch.Tensor = self._planned.run(q, cache)
        return out

    forward = run

    def end_forward(self) -> None:
        """Does nothing; there for callers of begin_forward()."""


_LISTS = (
    "qo_indptr_arr", "paged_kv_indptr_arr", "paged_kv_indices_arr", "paged_kv_last_page_len",
)  # fmt: skip


def _on_host(lists: Sequence[Sequence[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """Index tensors on the host, level by level, in one copy from the device."""
    names = [f"{name}[{i}]" for name, given in zip(_LISTS, lists, strict=True)
             for i in range(len(given))]  # fmt: skip
    tensors = [x for given in lists for x in given]
    found = arguments.to_host(**dict(zip(names, tensors, strict=True)))
    levels = len(lists[0])
    return [found[i::levels] for i in range(levels)]


def _level(number: int, rows: Any, groups: Any, kv: Any) -> Level:
    """A level whose groups own query rows groups[g] .. groups[g + 1]; the requests own those of
    `rows`."""
    begin = np.searchsorted(rows[:-1], groups, side="left")
    if groups[0] != 0 or groups[-1] != rows[-1] or (rows[begin] != groups).any():
        raise ValueError(
            f"qo_indptr_arr[{number}] is {groups.tolist()[:8]}...; its groups must be made of whole"
            " requests, which are those of the last level"
        )
    begin[-1] = rows.size - 1
    counts = np.diff(begin)
    if (counts < 0).any():
        raise ValueError(f"qo_indptr_arr[{number}] decreases")
    return Level(kv, np.arange(rows.size - 1), np.concatenate(([0], np.cumsum(counts))))
