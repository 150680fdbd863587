"""`BatchPrefillWithRaggedKVCacheWrapper`: batches whose keys are the rows of one array."""

from __future__ import annotations

import functools
from typing import Any

import torch

from cute_attn.api import RaggedKV
from cute_attn.flashinfer import arguments
from cute_attn.flashinfer.masks import FixedTensors, step_tensors
from cute_attn.flashinfer.options import Options
from cute_attn.flashinfer.paged import copy_to_buffers
from cute_attn.flashinfer.wrapper import PlannedStep, Wrapper, invariant

_FP4 = "convert keys and values to float16 or bfloat16"


class BatchPrefillWithRaggedKVCacheWrapper(Wrapper):
    """Attention of requests whose keys lie in one array, request after request.

    Arguments are FlashInfer's; see `Wrapper` for those of the constructor. With use_cuda_graph the
    number of requests is that of qo_indptr_buf, less one.

    Raises:
        TypeError, ValueError, NotImplementedError: naming the argument.
    """

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: torch.Tensor | None = None,
        kv_indptr_buf: torch.Tensor | None = None,
        custom_mask_buf: torch.Tensor | None = None,
        mask_indptr_buf: torch.Tensor | None = None,
        backend: str = "auto",
        jit_args: list[Any] | None = None,
        jit_kwargs: dict[str, Any] | None = None,
    ) -> None:
        batch_size = 0
        if use_cuda_graph:
            for name, buffer in (
                ("qo_indptr_buf", qo_indptr_buf),
                ("kv_indptr_buf", kv_indptr_buf),
            ):
                arguments.tensor(name, buffer)
            assert qo_indptr_buf is not None and kv_indptr_buf is not None
            batch_size = len(qo_indptr_buf) - 1
            if len(kv_indptr_buf) != batch_size + 1:
                raise ValueError(
                    f"kv_indptr_buf has {len(kv_indptr_buf)} elements; it takes {batch_size + 1},"
                    " as qo_indptr_buf"
                )
        super().__init__(
            float_workspace_buffer,
            kv_layout,
            use_cuda_graph=use_cuda_graph,
            fixed_batch_size=batch_size,
            backend=backend,
            jit_args=jit_args,
        )
        given = {"mask_bits": custom_mask_buf} if custom_mask_buf is not None else {}
        self._fixed = FixedTensors(given) if use_cuda_graph else None
        self._custom_mask_buf, self._mask_indptr_buf = custom_mask_buf, mask_indptr_buf
        self._qo_indptr_buf, self._kv_indptr_buf = qo_indptr_buf, kv_indptr_buf

    def plan(
        self,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        head_dim_vo: int | None = None,
        custom_mask: torch.Tensor | None = None,
        packed_custom_mask: torch.Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
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
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        seq_lens: torch.Tensor | None = None,
        seq_lens_q: torch.Tensor | None = None,
        max_token_per_sequence: int | None = None,
        max_sequence_kv: int | None = None,
        v_indptr: torch.Tensor | None = None,
        o_indptr: torch.Tensor | None = None,
    ) -> None:
        """Decides which thread block does what for one step; run() then serves every layer.

        Args:
            qo_indptr, kv_indptr: (num_requests + 1,) integers. Those on a device are waited for.
            others: as for `BatchPrefillWithPagedKVCacheWrapper.plan`.

        Raises:
            TypeError, ValueError, NotImplementedError: naming the argument.
            Others as `cute_attn.BatchAttention.plan`.
        """
        arguments.refuse(
            "values are where keys are",
            v_indptr=v_indptr,
            o_indptr=o_indptr,
        )
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
        rows, begin = arguments.to_host(qo_indptr=qo_indptr, kv_indptr=kv_indptr)
        if self._use_cuda_graph:
            copy_to_buffers(
                self,
                self._fixed_batch_size,
                non_blocking,
                _qo_indptr_buf=qo_indptr,
                _kv_indptr_buf=kv_indptr,
            )
        else:
            self._qo_indptr_buf, self._kv_indptr_buf = qo_indptr, kv_indptr
        kv = RaggedKV(begin)
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

    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *args: Any,
        q_scale: float | torch.Tensor | None = None,
        k_scale: float | torch.Tensor | None = None,
        v_scale: float | torch.Tensor | None = None,
        o_scale: float | torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
        kv_cache_sf: Any = None,
    ) -> Any:
        """Attention of the planned step, for one layer.

        Args:
            q: (qo_indptr[-1], num_qo_heads, head_dim_qk).
            k: (kv_indptr[-1], num_kv_heads, head_dim_qk) for "NHD", heads first for "HND".
            v: as k with head_dim_vo.
            args: (sink, sm_scale) for a wrapper with attention sinks.
            q_scale, k_scale: factors of the softmax scale.
            v_scale: factor of the output.
            out, lse: to be written.
            return_lse: also return the log-sum-exp, to base 2.
            enable_pdl: kernels decide for themselves.

        Returns:
            out (qo_indptr[-1], num_qo_heads, head_dim_vo), or (out, lse) with lse
            (qo_indptr[-1], num_qo_heads) float32.

        Raises:
            TypeError, ValueError, NotImplementedError: naming the argument.
            RuntimeError: not planned.
        """
        arguments.refuse(_FP4, kv_cache_sf=kv_cache_sf)
        arguments.refuse("outputs are not quantised", o_scale=o_scale)
        sinks, sm_scale = self._sink_arguments(args, None)
        return self._run(
            q,
            arguments.dtyped("k", k),
            v,
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
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
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
        return self.run(q, k, v, return_lse=return_lse)

    forward_return_lse = functools.partialmethod(forward, return_lse=True)
