"""`BatchAttention` for any mixture of prefill and decode, and the wrapper with attention sinks."""

from __future__ import annotations

from typing import Any

import torch

from cute_attn.flashinfer import arguments
from cute_attn.flashinfer.options import Options
from cute_attn.flashinfer.paged import paged_kv
from cute_attn.flashinfer.prefill_paged import BatchPrefillWithPagedKVCacheWrapper
from cute_attn.flashinfer.wrapper import PlannedStep, Wrapper


class BatchAttention(Wrapper):
    """FlashInfer's `BatchAttention`: prefill, append and decode over a paged cache in one call.

    Args:
        kv_layout: "NHD" or "HND".
        device: a CUDA device or "cpu".
    """

    def __init__(self, kv_layout: str = "NHD", device: str | torch.device = "cuda") -> None:
        super().__init__(torch.empty(0, dtype=torch.uint8, device=device), kv_layout)

    def plan(
        self,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_indices: torch.Tensor,
        kv_len_arr: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        head_dim_vo: int,
        page_size: int,
        causal: bool = False,
        sm_scale: float | None = None,
        logits_soft_cap: float | None = None,
        q_data_type: torch.dtype = torch.bfloat16,
        kv_data_type: torch.dtype = torch.bfloat16,
        use_profiler: bool = False,
    ) -> None:
        """Decides which thread block does what for one step; run() then serves every layer.

        Waits for the device if row pointers or lengths are there.

        Args:
            qo_indptr, kv_indptr: (num_requests + 1,) integers; kv_indptr counts pages.
            kv_indices: page numbers.
            kv_len_arr: (num_requests,) keys of each request.
            others: as for `BatchPrefillWithPagedKVCacheWrapper.plan`.

        Raises:
            TypeError, ValueError, NotImplementedError: naming the argument.
            Others as `cute_attn.BatchAttention.plan`.
        """
        arguments.refuse(
            "cute_attn.BatchAttention.trace() measures thread blocks",
            use_profiler=use_profiler or None,
        )
        dtype, o_dtype = arguments.data_types(q_data_type, kv_data_type, None)
        options = Options.checked(causal=causal, logits_soft_cap=logits_soft_cap, sm_scale=sm_scale)
        rows, begin, length = arguments.to_host(
            qo_indptr=qo_indptr, kv_indptr=kv_indptr, kv_len_arr=kv_len_arr
        )
        pages = begin[1:] - begin[:-1]
        last = length - (pages - 1).clamp(min=0) * page_size
        self._plan_step(
            PlannedStep(
                qo_indptr=rows,
                kv=paged_kv(begin, arguments.tensor("kv_indices", kv_indices), last, page_size),
                num_qo_heads=num_qo_heads,
                num_kv_heads=num_kv_heads,
                head_dim_qk=head_dim_qk,
                head_dim_vo=head_dim_vo,
                dtype=dtype,
                o_dtype=o_dtype,
                options=options,
            )
        )

    def run(
        self,
        q: torch.Tensor,
        kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        k_scale: float | torch.Tensor | None = None,
        v_scale: float | torch.Tensor | None = None,
        logits_soft_cap: float = 0.0,
        profiler_buffer: torch.Tensor | None = None,
        kv_cache_sf: Any = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention of the planned step, for one layer.

        Args:
            logits_soft_cap: as planned, or 0: that.
            others: as for `BatchPrefillWithPagedKVCacheWrapper.run`.

        Returns:
            out (qo_indptr[-1], num_qo_heads, head_dim_vo), and lse (qo_indptr[-1], num_qo_heads)
            float32, to base 2.

        Raises:
            TypeError, ValueError, NotImplementedError: naming the argument.
            RuntimeError: not planned.
        """
        arguments.refuse("convert the cache to float16 or bfloat16", kv_cache_sf=kv_cache_sf)
        arguments.refuse(
            "cute_attn.BatchAttention.trace() measures thread blocks",
            profiler_buffer=profiler_buffer,
        )
        planned = self._planned().options.logits_soft_cap
        if logits_soft_cap not in (0.0, planned):
            raise ValueError(
                f"logits_soft_cap is {logits_soft_cap}, but {planned} was planned: give it to"
                " plan()"
            )
        result: tuple[torch.Tensor, torch.Tensor] = self._run(
            q,
            arguments.paged_cache(kv_cache, self._kv_layout),
            None,
            out=out,
            lse=lse,
            return_lse=True,
            scale=arguments.factor(k_scale),
            v_scale=v_scale,
        )
        return result


class BatchAttentionWithAttentionSinkWrapper(BatchPrefillWithPagedKVCacheWrapper):
    """`BatchPrefillWithPagedKVCacheWrapper` for models whose query heads have a logit that takes
    part in the softmax and has no value (gpt-oss): run(q, paged_kv_cache, sink, sm_scale).

    What the last seven arguments say is for plan() to say; they are taken and not looked at.
    """

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: torch.Tensor | None = None,
        paged_kv_indptr_buf: torch.Tensor | None = None,
        paged_kv_indices_buf: torch.Tensor | None = None,
        paged_kv_last_page_len_buf: torch.Tensor | None = None,
        custom_mask_buf: torch.Tensor | None = None,
        mask_indptr_buf: torch.Tensor | None = None,
        backend: str = "auto",
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        q_data_type: torch.dtype = torch.bfloat16,
        kv_data_type: torch.dtype = torch.bfloat16,
        head_dim_qk: int = 128,
        head_dim_vo: int = 128,
        window_left: int = -1,
    ) -> None:
        super().__init__(
            float_workspace_buffer,
            kv_layout,
            use_cuda_graph=use_cuda_graph,
            qo_indptr_buf=qo_indptr_buf,
            paged_kv_indptr_buf=paged_kv_indptr_buf,
            paged_kv_indices_buf=paged_kv_indices_buf,
            paged_kv_last_page_len_buf=paged_kv_last_page_len_buf,
            custom_mask_buf=custom_mask_buf,
            mask_indptr_buf=mask_indptr_buf,
            backend=backend,
        )
        self._takes_sink = self._sinks = True
