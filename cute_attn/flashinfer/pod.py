"""A prefill and a batch of decodes: two calls in one, for callers of POD-Attention's names."""

from __future__ import annotations

from typing import Any

import torch

from cute_attn.flashinfer import arguments
from cute_attn.flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper
from cute_attn.flashinfer.prefill_paged import BatchPrefillWithPagedKVCacheWrapper
from cute_attn.flashinfer.single import single_prefill_with_kv_cache


class PODWithPagedKVCacheWrapper(BatchDecodeWithPagedKVCacheWrapper):
    """The prefill of one request with keys of its own, and decodes over a paged cache.

    They run one after the other. Over one cache, `BatchAttention` takes both in a call that
    overlaps them.

    Args:
        others: as for `BatchDecodeWithPagedKVCacheWrapper`.
    """

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        paged_kv_indptr_buffer: torch.Tensor | None = None,
        paged_kv_indices_buffer: torch.Tensor | None = None,
        paged_kv_last_page_len_buffer: torch.Tensor | None = None,
        jit_args: list[Any] | None = None,
    ) -> None:
        super().__init__(
            float_workspace_buffer,
            kv_layout,
            use_cuda_graph,
            paged_kv_indptr_buffer=paged_kv_indptr_buffer,
            paged_kv_indices_buffer=paged_kv_indices_buffer,
            paged_kv_last_page_len_buffer=paged_kv_last_page_len_buffer,
            jit_args=jit_args,
        )

    def plan(  # type: ignore[override]
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        q_data_type: str | torch.dtype | None = "float16",
        kv_data_type: str | torch.dtype | None = None,
        data_type: str | torch.dtype | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        non_blocking: bool = True,
    ) -> None:
        """Plans the decodes; arguments as for `BatchDecodeWithPagedKVCacheWrapper.plan`."""
        super().plan(
            indptr,
            indices,
            last_page_len,
            num_qo_heads,
            num_kv_heads,
            head_dim,
            page_size,
            pos_encoding_mode=pos_encoding_mode,
            window_left=window_left,
            q_data_type=q_data_type,
            kv_data_type=kv_data_type,
            data_type=data_type,
            sm_scale=sm_scale,
            rope_scale=rope_scale,
            rope_theta=rope_theta,
            non_blocking=non_blocking,
        )

    begin_forward = plan  # type: ignore[assignment]

    def run(  # type: ignore[override]
        self,
        q_p: torch.Tensor,
        k_p: torch.Tensor,
        v_p: torch.Tensor,
        q_d: torch.Tensor,
        paged_kv_cache_d: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        custom_mask_p: torch.Tensor | None = None,
        packed_custom_mask_p: torch.Tensor | None = None,
        causal_p: bool = False,
        kv_layout_p: str = "NHD",
        pos_encoding_mode_p: str = "NONE",
        sm_scale_p: float | None = None,
        window_left_p: int = -1,
        rope_scale_p: float | None = None,
        rope_theta_p: float | None = None,
        return_lse_p: bool = False,
        custom_mask_d: torch.Tensor | None = None,
        packed_custom_mask_d: torch.Tensor | None = None,
        causal_d: bool = False,
        kv_layout_d: str = "NHD",
        pos_encoding_mode_d: str = "NONE",
        sm_scale_d: float | None = None,
        window_left_d: int = -1,
        rope_scale_d: float | None = None,
        rope_theta_d: float | None = None,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        return_lse_d: bool = False,
        use_fp16_qk_reduction: bool = False,
        enable_pdl: bool | None = None,
        *args: Any,
    ) -> tuple[Any, Any]:
        """The prefill, and the planned decodes.

        Args:
            those of the prefill (_p): as for `single_prefill_with_kv_cache`.
            those of the decodes (_d), and the scales: as for
                `BatchDecodeWithPagedKVCacheWrapper.run`. What plan() has said goes before
                pos_encoding_mode_d, sm_scale_d, window_left_d, rope_scale_d, rope_theta_d,
                causal_d and kv_layout_d.

        Returns:
            results of the prefill and of the decodes.
        """
        arguments.refuse(
            "a decode sees all keys of its request",
            custom_mask_d=custom_mask_d,
            packed_custom_mask_d=packed_custom_mask_d,
        )
        prefill = single_prefill_with_kv_cache(
            q_p,
            k_p,
            v_p,
            custom_mask=custom_mask_p,
            packed_custom_mask=packed_custom_mask_p,
            causal=causal_p,
            kv_layout=kv_layout_p,
            pos_encoding_mode=pos_encoding_mode_p,
            sm_scale=sm_scale_p,
            window_left=window_left_p,
            rope_scale=rope_scale_p,
            rope_theta=rope_theta_p,
            return_lse=return_lse_p,
        )
        decodes = super().run(
            q_d,
            paged_kv_cache_d,
            *args,
            q_scale=q_scale,
            k_scale=k_scale,
            v_scale=v_scale,
            return_lse=return_lse_d,
        )
        return prefill, decodes


class BatchPODWithPagedKVCacheWrapper:
    """Prefills and decodes over paged caches, one batch after the other.

    Over one cache, `BatchAttention` takes both in a call that overlaps them.

    Args:
        float_workspace_buffer, kv_layout: as for `BatchPrefillWithPagedKVCacheWrapper`.
    """

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD") -> None:
        self._prefill, self._decode = (
            BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout) for _ in "pd"
        )

    @property
    def is_cuda_graph_enabled(self) -> bool:
        """False."""
        return False

    def plan(
        self,
        qo_indptr_p: torch.Tensor,
        kv_indptr_p: torch.Tensor,
        kv_indices_p: torch.Tensor,
        last_page_len_p: torch.Tensor,
        qo_indptr_d: torch.Tensor,
        kv_indptr_d: torch.Tensor,
        kv_indices_d: torch.Tensor,
        last_page_len_d: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        q_data_type: str | torch.dtype = "float16",
        kv_data_type: str | torch.dtype | None = None,
        data_type: str | torch.dtype | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        non_blocking: bool = True,
    ) -> None:
        """Plans both batches; arguments as for `BatchPrefillWithPagedKVCacheWrapper.plan`."""
        self._options = {
            "pos_encoding_mode": pos_encoding_mode,
            "window_left": window_left,
            "sm_scale": sm_scale,
            "rope_scale": rope_scale,
            "rope_theta": rope_theta,
        }
        sizes = (num_qo_heads, num_kv_heads, head_dim, page_size)
        keys = data_type if kv_data_type is None else kv_data_type
        batches = (
            (self._prefill, (qo_indptr_p, kv_indptr_p, kv_indices_p, last_page_len_p)),
            (self._decode, (qo_indptr_d, kv_indptr_d, kv_indices_d, last_page_len_d)),
        )
        for wrapper, tensors in batches:
            wrapper.plan(
                *tensors,
                *sizes,
                q_data_type=q_data_type,
                kv_data_type=keys,
                non_blocking=non_blocking,
                pos_encoding_mode=pos_encoding_mode,
                window_left=window_left,
                sm_scale=sm_scale,
                rope_scale=rope_scale,
                rope_theta=rope_theta,
            )

    begin_forward = plan

    def run(
        self,
        q_p: torch.Tensor,
        paged_kv_cache_p: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        q_d: torch.Tensor,
        paged_kv_cache_d: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        custom_mask_p: torch.Tensor | None = None,
        packed_custom_mask_p: torch.Tensor | None = None,
        causal_p: bool = False,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        return_lse: bool = False,
        use_fp16_qk_reduction: bool = False,
        enable_pdl: bool | None = None,
    ) -> tuple[Any, Any]:
        """Both batches.

        Args:
            causal_p: of the prefills.
            others: as for `BatchPrefillWithPagedKVCacheWrapper.run`.

        Returns:
            results of the prefills and of the decodes.
        """
        arguments.refuse(
            "BatchPrefillWithPagedKVCacheWrapper.plan() takes masks",
            custom_mask_p=custom_mask_p,
            packed_custom_mask_p=packed_custom_mask_p,
        )
        self._prefill._with_options(causal=causal_p, **self._options)
        scales: dict[str, Any] = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
        return (
            self._prefill.run(q_p, paged_kv_cache_p, return_lse=return_lse, **scales),
            self._decode.run(q_d, paged_kv_cache_d, return_lse=return_lse, **scales),
        )

    def end_forward(self) -> None:
        """Does nothing; there for callers of begin_forward()."""
