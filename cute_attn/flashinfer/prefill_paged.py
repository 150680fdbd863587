"""`BatchPrefillWithPagedKVCacheWrapper`: prefill, append and mixed batches over a paged cache."""

from __future__ import annotations

import functools
from typing import Any

import torch

from cute_attn.flashinfer import arguments
from cute_attn.flashinfer.masks import FixedTensors, step_tensors
from cute_attn.flashinfer.options import Options
from cute_attn.flashinfer.paged import PagedBuffers, paged_kv
from cute_attn.flashinfer.wrapper import PlannedStep, Wrapper, invariant, named_arguments

_FP4 = "convert the cache to float16 or bfloat16"
_TRTLLM = "it belongs to a backend for other GPUs"


class BatchPrefillWithPagedKVCacheWrapper(Wrapper):
    """Attention of requests with any number of query tokens over a paged cache.

    Arguments are FlashInfer's; see `Wrapper` for those of the constructor. With use_cuda_graph the
    buffers are memory that plan() copies its index tensors to; kernels read page numbers there.

    Raises:
        TypeError, ValueError, NotImplementedError: naming the argument.
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
        jit_args: list[Any] | None = None,
        jit_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self._buffers = PagedBuffers(
            use_cuda_graph,
            qo_indptr_buf=qo_indptr_buf,
            paged_kv_indptr_buf=paged_kv_indptr_buf,
            paged_kv_indices_buf=paged_kv_indices_buf,
            paged_kv_last_page_len_buf=paged_kv_last_page_len_buf,
        )
        super().__init__(
            float_workspace_buffer,
            kv_layout,
            use_cuda_graph=use_cuda_graph,
            fixed_batch_size=self._buffers.batch_size,
            backend=backend,
            jit_args=jit_args,
        )
        given = {"mask_bits": custom_mask_buf} if custom_mask_buf is not None else {}
        self._fixed = FixedTensors(given) if use_cuda_graph else None
        self._custom_mask_buf, self._mask_indptr_buf = custom_mask_buf, mask_indptr_buf
        self._qo_indptr_buf = qo_indptr_buf
        self._paged_kv_indptr_buf = paged_kv_indptr_buf
        self._paged_kv_indices_buf = paged_kv_indices_buf
        self._paged_kv_last_page_len_buf = paged_kv_last_page_len_buf

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: torch.Tensor | None = None,
        packed_custom_mask: torch.Tensor | None = None,
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
        o_data_type: str | torch.dtype | None = None,
        non_blocking: bool = True,
        prefix_len_ptr: torch.Tensor | None = None,
        token_pos_in_items_ptr: torch.Tensor | None = None,
        token_pos_in_items_len: int = 0,
        max_item_len_ptr: torch.Tensor | None = None,
        seq_lens: torch.Tensor | None = None,
        seq_lens_q: torch.Tensor | None = None,
        block_tables: torch.Tensor | None = None,
        max_token_per_sequence: int | None = None,
        max_sequence_kv: int | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
    ) -> None:
        """Decides which thread block does what for one step; run() then serves every layer.

        Waits for the device if row pointers or last_page_len are there.

        Args:
            qo_indptr, paged_kv_indptr: (num_requests + 1,) integers.
            paged_kv_indices: page numbers.
            paged_kv_last_page_len: (num_requests,) integers.
            num_qo_heads, num_kv_heads, head_dim_qk, page_size, head_dim_vo: sizes.
            custom_mask: (sum of q_len * kv_len,) bool: whether a query sees a key. It goes before
                causal.
            packed_custom_mask: the same, of `segment_packbits(..., bitorder="little")`.
            causal: the last query of a request sees its last key.
            pos_encoding_mode: "NONE", "ROPE_LLAMA" (keys in the cache are not rotated) or "ALIBI".
            use_fp16_qk_reduction: permits what is not done: sums are float32.
            sm_scale: default 1 / sqrt(head_dim_qk).
            window_left: keys kept before a query's position; -1: all.
            logits_soft_cap: bound of the scores; 0 or None: none.
            rope_scale, rope_theta: default 1 and 10000.
            q_data_type, kv_data_type, o_data_type: torch.float16 or torch.bfloat16; kv_data_type as
                q_data_type.
            prefix_len_ptr, token_pos_in_items_ptr, token_pos_in_items_len: of multi-item scoring,
                with causal; max_item_len_ptr is not needed.
            non_blocking: of copies to buffers of the user.
            seq_lens, seq_lens_q, block_tables, max_token_per_sequence, max_sequence_kv: say again
                what the index tensors say, for other backends; not looked at.
            fixed_split_size, disable_split_kv: if one is given, results have the same bits whatever
                a request is batched with (docs/batch_invariance.md). The size is our own.

        Raises:
            TypeError, ValueError, NotImplementedError: naming the argument.
            Others as `cute_attn.BatchAttention.plan`.
        """
        dtype, o_dtype = arguments.data_types(q_data_type, kv_data_type, o_data_type)
        masked = custom_mask is not None or packed_custom_mask is not None
        options = Options.checked(
            causal=causal,
            window_left=window_left,
            logits_soft_cap=logits_soft_cap,
            pos_encoding_mode=pos_encoding_mode,
            sm_scale=sm_scale,
            rope_scale=rope_scale,
            rope_theta=rope_theta,
            masked=masked,
            items=prefix_len_ptr is not None and not masked,
        )
        rows, begin, last = arguments.to_host(
            qo_indptr=qo_indptr,
            paged_kv_indptr=paged_kv_indptr,
            paged_kv_last_page_len=paged_kv_last_page_len,
        )
        indices = self._buffers.hold(
            self,
            paged_kv_indices,
            non_blocking,
            _qo_indptr_buf=qo_indptr,
            _paged_kv_indptr_buf=paged_kv_indptr,
            _paged_kv_last_page_len_buf=paged_kv_last_page_len,
        )
        kv = paged_kv(begin, indices, last, page_size, stays=self._buffers.stay)
        tensors = step_tensors(
            rows,
            kv.kv_len,
            (custom_mask, packed_custom_mask),
            (prefix_len_ptr, token_pos_in_items_ptr, token_pos_in_items_len),
            self._fixed,
            self.device,
        )
        self._plan_step(
            PlannedStep(
                qo_indptr=rows,
                kv=kv,
                num_qo_heads=num_qo_heads,
                num_kv_heads=num_kv_heads,
                head_dim_qk=head_dim_qk,
                head_dim_vo=head_dim_qk if head_dim_vo is None else head_dim_vo,
                dtype=dtype,
                o_dtype=o_dtype,
                options=options,
                tensors=tensors,
                batch_invariant=invariant(fixed_split_size, disable_split_kv),
            )
        )

    begin_forward = plan

    def workspace_size(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """(bytes of the float workspace, of the int workspace) that suffice for plan().

        The int workspace is not used; its size is the least that a buffer can have. A float
        workspace that is smaller is not used either: memory is then allocated.

        Args:
            args, kwargs: as for plan(), without non_blocking.

        Raises:
            As plan().
        """
        sizer = _Sizer(self._float_workspace_buffer, self._kv_layout)
        sizer.plan(**named_arguments(sizer.plan, args), **kwargs)
        return self._sizes(sizer._planned())

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        *args: Any,
        q_scale: float | torch.Tensor | None = None,
        k_scale: float | torch.Tensor | None = None,
        v_scale: float | torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        sinks: torch.Tensor | None = None,
        kv_cache_sf: Any = None,
        skip_softmax_threshold_scale_factor: float | None = None,
        use_fp16_softmax: bool | None = None,
        uses_spcompress: bool | None = None,
    ) -> Any:
        """Attention of the planned step, for one layer. Never waits, but for scales on a device.

        Args:
            q: (qo_indptr[-1], num_qo_heads, head_dim_qk).
            paged_kv_cache: one tensor (pages, 2, page_size, num_kv_heads, head_dim) for "NHD",
                (pages, 2, num_kv_heads, page_size, head_dim) for "HND"; or a pair without the 2.
                A dimension of pages may be missing where they hold one key.
            args: (sink, sm_scale) for a wrapper with attention sinks.
            q_scale, k_scale: factors of the softmax scale.
            v_scale: factor of the output.
            out, lse: to be written.
            return_lse: also return the log-sum-exp, to base 2.
            enable_pdl: kernels decide for themselves.
            window_left: as planned.
            sinks: (num_qo_heads,) logits that take part in the softmax. The first run with or
                without them after one of the other kind plans again, so not during capture.

        Returns:
            out (qo_indptr[-1], num_qo_heads, head_dim_vo), or (out, lse) with lse
            (qo_indptr[-1], num_qo_heads) float32.

        Raises:
            TypeError, ValueError, NotImplementedError: naming the argument.
            RuntimeError: not planned.
        """
        if kv_cache_sf is not None:
            arguments.refuse(_FP4, kv_cache_sf=kv_cache_sf)
        if (factor := skip_softmax_threshold_scale_factor) is not None:
            arguments.refuse(_TRTLLM, skip_softmax_threshold_scale_factor=factor)
        if use_fp16_softmax or uses_spcompress:
            given = {"use_fp16_softmax": use_fp16_softmax, "uses_spcompress": uses_spcompress}
            arguments.refuse(_TRTLLM, **{name: value or None for name, value in given.items()})
        if window_left is not None:
            self._check_window(window_left)
        sm_scale = None
        if args or self._takes_sink:
            sinks, sm_scale = self._sink_arguments(args, sinks)
        return self._run(
            q,
            arguments.paged_cache(paged_kv_cache, self._kv_layout),
            None,
            out=out,
            lse=lse,
            return_lse=return_lse,
            scale=arguments.factor(q_scale, k_scale),
            v_scale=v_scale,
            sinks=sinks,
            sm_scale=sm_scale,
        )

    run_return_lse = functools.partialmethod(run, return_lse=True)

    def forward(
        self,
        q: torch.Tensor,
        paged_kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        k_scale: float | torch.Tensor | None = None,
        v_scale: float | torch.Tensor | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        *,
        return_lse: bool = False,
    ) -> Any:
        """run() with options of its own (the older name); others than planned are planned again."""
        self._with_options(
            causal=causal,
            pos_encoding_mode=pos_encoding_mode,
            window_left=window_left,
            logits_soft_cap=logits_soft_cap,
            sm_scale=sm_scale,
            rope_scale=rope_scale,
            rope_theta=rope_theta,
        )
        return self.run(q, paged_kv_cache, k_scale=k_scale, v_scale=v_scale, return_lse=return_lse)

    forward_return_lse = functools.partialmethod(forward, return_lse=True)


class _Sizer(BatchPrefillWithPagedKVCacheWrapper):
    """Checks the arguments of plan(), and plans nothing."""

    def _plan_step(self, step: PlannedStep) -> None:
        self._step = step
