"""Batches behind one prefix that lies in tensors of its own: FlashInfer's older calls."""

from __future__ import annotations

import torch

from cute_attn.flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper
from cute_attn.flashinfer.prefill_paged import BatchPrefillWithPagedKVCacheWrapper
from cute_attn.flashinfer.single import single_prefill_with_kv_cache
from cute_attn.flashinfer.states import merge_state


class BatchDecodeWithSharedPrefixPagedKVCacheWrapper:
    """Decode of requests that share a prefix, which is given at run() as tensors of its own.

    An older call; `MultiLevelCascadeAttentionWrapper` takes several levels of one cache.

    Args:
        float_workspace_buffer, kv_layout: as for `BatchDecodeWithPagedKVCacheWrapper`.
    """

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD") -> None:
        self._kv_layout = kv_layout
        self._own = BatchDecodeWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout)

    def reset_workspace_buffer(
        self, float_workspace_buffer: torch.Tensor, int_workspace_buffer: torch.Tensor
    ) -> None:
        """See `Wrapper.reset_workspace_buffer`."""
        self._own.reset_workspace_buffer(float_workspace_buffer, int_workspace_buffer)

    def begin_forward(
        self,
        unique_kv_indptr: torch.Tensor,
        unique_kv_indices: torch.Tensor,
        unique_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        data_type: str | torch.dtype = "float16",
    ) -> None:
        """Plans what each request has for itself; see `BatchDecodeWithPagedKVCacheWrapper.plan`."""
        self._own.plan(
            unique_kv_indptr,
            unique_kv_indices,
            unique_kv_last_page_len,
            num_qo_heads,
            num_kv_heads,
            head_dim,
            page_size,
            q_data_type=data_type,
            kv_data_type=data_type,
        )

    def forward(
        self,
        q: torch.Tensor,
        k_shared: torch.Tensor,
        v_shared: torch.Tensor,
        unique_kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """Attention over the shared keys and each request's own.

        Args:
            q: (num_requests, num_qo_heads, head_dim).
            k_shared, v_shared: (keys, num_kv_heads, head_dim), heads first for "HND".
            unique_kv_cache: of the requests' own keys.

        Returns:
            (num_requests, num_qo_heads, head_dim).
        """
        shared = single_prefill_with_kv_cache(
            q, k_shared, v_shared, kv_layout=self._kv_layout, return_lse=True
        )
        return merge_state(*shared, *self._own.run(q, unique_kv_cache, return_lse=True))[0]

    def end_forward(self) -> None:
        """Does nothing."""


class BatchPrefillWithSharedPrefixPagedKVCacheWrapper:
    """As `BatchDecodeWithSharedPrefixPagedKVCacheWrapper`, with any number of query tokens."""

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD") -> None:
        self._kv_layout = kv_layout
        self._own = BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout)

    def reset_workspace_buffer(
        self, float_workspace_buffer: torch.Tensor, int_workspace_buffer: torch.Tensor
    ) -> None:
        """See `Wrapper.reset_workspace_buffer`."""
        self._own.reset_workspace_buffer(float_workspace_buffer, int_workspace_buffer)

    def begin_forward(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
    ) -> None:
        """Plans what each request has for itself, in float16."""
        self._own.plan(
            qo_indptr,
            paged_kv_indptr,
            paged_kv_indices,
            paged_kv_last_page_len,
            num_qo_heads,
            num_kv_heads,
            head_dim,
            page_size,
        )

    def forward(
        self,
        q: torch.Tensor,
        k_shared: torch.Tensor,
        v_shared: torch.Tensor,
        unique_kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        causal: bool = False,
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
    ) -> torch.Tensor:
        """Attention over the shared keys and each request's own.

        Args:
            q: (query rows, num_qo_heads, head_dim).
            k_shared, v_shared, unique_kv_cache: as for decode.
            causal: a request's last query sees its last key; all see the shared ones.
            sm_scale: default 1 / sqrt(head_dim).
            rope_scale, rope_theta: without effect: positions are not encoded.

        Returns:
            (query rows, num_qo_heads, head_dim).
        """
        shared = single_prefill_with_kv_cache(
            q, k_shared, v_shared, kv_layout=self._kv_layout, sm_scale=sm_scale, return_lse=True
        )
        own = self._own.forward_return_lse(q, unique_kv_cache, causal=causal, sm_scale=sm_scale)
        return merge_state(*shared, *own)[0]

    def end_forward(self) -> None:
        """Does nothing."""
