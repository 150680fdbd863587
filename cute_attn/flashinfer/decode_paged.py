"""`BatchDecodeWithPagedKVCacheWrapper`: the newest tokens of requests over a paged cache."""

from __future__ import annotations

import functools
from typing import Any

import torch

from cute_attn.flashinfer import arguments
from cute_attn.flashinfer.options import Options
from cute_attn.flashinfer.paged import PagedBuffers, paged_kv
from cute_attn.flashinfer.wrapper import PlannedStep, Wrapper, invariant, named_arguments

_FP4 = "convert the cache to float16 or bfloat16"
_TRTLLM = "it belongs to a backend for other GPUs"


class BatchDecodeWithPagedKVCacheWrapper(Wrapper):
    """Attention of the newest tokens of requests over a paged cache.

    Arguments are FlashInfer's; see `Wrapper` for those of the constructor. use_tensor_cores is kept
    as a property: kernels decide for themselves. With use_cuda_graph the buffers are memory that
    plan() copies its index tensors to; kernels read page numbers there.

    Raises:
        TypeError, ValueError, NotImplementedError: naming the argument.
    """

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: torch.Tensor | None = None,
        paged_kv_indices_buffer: torch.Tensor | None = None,
        paged_kv_last_page_len_buffer: torch.Tensor | None = None,
        backend: str = "auto",
        jit_args: list[Any] | None = None,
    ) -> None:
        self._buffers = PagedBuffers(
            use_cuda_graph,
            paged_kv_indptr_buffer=paged_kv_indptr_buffer,
            paged_kv_indices_buffer=paged_kv_indices_buffer,
            paged_kv_last_page_len_buffer=paged_kv_last_page_len_buffer,
        )
        super().__init__(
            float_workspace_buffer,
            kv_layout,
            use_cuda_graph=use_cuda_graph,
            fixed_batch_size=self._buffers.batch_size,
            backend=backend,
            jit_args=jit_args,
        )
        self._use_tensor_cores = bool(use_tensor_cores)
        self._q_len_per_req, self._num_rows = 1, 0
        self._paged_kv_indptr_buf = paged_kv_indptr_buffer
        self._paged_kv_indices_buf = paged_kv_indices_buffer
        self._paged_kv_last_page_len_buf = paged_kv_last_page_len_buffer

    @property
    def use_tensor_cores(self) -> bool:
        """As the constructor was given it."""
        return self._use_tensor_cores

    def plan(
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
        logits_soft_cap: float | None = None,
        q_data_type: str | torch.dtype | None = "float16",
        kv_data_type: str | torch.dtype | None = None,
        o_data_type: str | torch.dtype | None = None,
        data_type: str | torch.dtype | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        non_blocking: bool = True,
        block_tables: torch.Tensor | None = None,
        seq_lens: torch.Tensor | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        q_len_per_req: int = 1,
        window_right: int = 0,
    ) -> None:
        """Decides which thread block does what for one step; run() then serves every layer.

        Waits for the device if row pointers or last_page_len are there.

        Args:
            indptr: (num_requests + 1,) integers, of indices.
            indices: page numbers.
            last_page_len: (num_requests,) integers.
            num_qo_heads, num_kv_heads, head_dim, page_size: sizes.
            pos_encoding_mode: "NONE", "ROPE_LLAMA" (keys in the cache are not rotated) or "ALIBI".
            window_left: keys kept before a query's position; -1: all.
            logits_soft_cap: bound of the scores; 0 or None: none.
            q_data_type, kv_data_type, o_data_type, data_type: torch.float16 or torch.bfloat16;
                kv_data_type, or data_type in its place, as q_data_type.
            sm_scale: default 1 / sqrt(head_dim).
            rope_scale, rope_theta: default 1 and 10000.
            non_blocking: of copies to buffers of the user.
            block_tables, seq_lens: say again what the index tensors say; not looked at.
            fixed_split_size, disable_split_kv: if one is given, results have the same bits whatever
                a request is batched with (docs/batch_invariance.md). The size is our own.
            q_len_per_req: query tokens of every request; with more than one they are causal.
            window_right: 0.

        Raises:
            TypeError, ValueError, NotImplementedError: naming the argument.
            Others as `cute_attn.BatchAttention.plan`.
        """
        self._plan(
            arguments.to_host(indptr=indptr, last_page_len=last_page_len),
            (indptr, indices, last_page_len),
            (num_qo_heads, num_kv_heads, head_dim, page_size),
            pos_encoding_mode=pos_encoding_mode,
            window_left=window_left,
            logits_soft_cap=logits_soft_cap,
            data_types=(q_data_type, data_type if kv_data_type is None else kv_data_type),
            o_data_type=o_data_type,
            sm_scale=sm_scale,
            rope_scale=rope_scale,
            rope_theta=rope_theta,
            non_blocking=non_blocking,
            batch_invariant=invariant(fixed_split_size, disable_split_kv),
            q_len_per_req=q_len_per_req,
            window_right=window_right,
        )

    begin_forward = plan

    def _plan(
        self,
        on_host: list[torch.Tensor],
        tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        sizes: tuple[int, int, int, int],
        *,
        pos_encoding_mode: str,
        window_left: int,
        logits_soft_cap: float | None,
        data_types: tuple[str | torch.dtype | None, str | torch.dtype | None],
        o_data_type: str | torch.dtype | None,
        sm_scale: float | None,
        rope_scale: float | None,
        rope_theta: float | None,
        non_blocking: bool,
        batch_invariant: bool,
        q_len_per_req: int,
        window_right: int = 0,
    ) -> None:
        """plan() for (indptr, last_page_len) on the host."""
        if window_right:
            arguments.refuse("in decode no key is behind a query", window_right=window_right)
        if q_len_per_req < 1:
            raise ValueError(f"q_len_per_req is {q_len_per_req}; it takes 1 or more")
        dtype, o_dtype = arguments.data_types(*data_types, o_data_type)
        options = Options.checked(
            causal=True,  # of one token the same as full, and the kernel of mixed batches
            window_left=window_left,
            logits_soft_cap=logits_soft_cap,
            pos_encoding_mode=pos_encoding_mode,
            sm_scale=sm_scale,
            rope_scale=rope_scale,
            rope_theta=rope_theta,
        )
        indptr, indices, last_page_len = tensors
        pages = self._buffers.hold(
            self,
            indices,
            non_blocking,
            _paged_kv_indptr_buf=indptr,
            _paged_kv_last_page_len_buf=last_page_len,
        )
        num_qo_heads, num_kv_heads, head_dim, page_size = sizes
        self._q_len_per_req = q_len_per_req
        self._num_rows = q_len_per_req * (len(on_host[0]) - 1)
        self._plan_step(
            PlannedStep(
                qo_indptr=q_len_per_req * torch.arange(len(on_host[0]), dtype=torch.int64),
                kv=paged_kv(on_host[0], pages, on_host[1], page_size, stays=self._buffers.stay),
                num_qo_heads=num_qo_heads,
                num_kv_heads=num_kv_heads,
                head_dim_qk=head_dim,
                head_dim_vo=head_dim,
                dtype=dtype,
                o_dtype=o_dtype,
                options=options,
                batch_invariant=batch_invariant,
            )
        )

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
        q_len_per_req: int | None = None,
        skip_softmax_threshold_scale_factor: float | None = None,
        kv_cache_sf: Any = None,
    ) -> Any:
        """Attention of the planned step, for one layer. Never waits, but for scales on a device.

        Args:
            q: (num_requests * q_len_per_req, num_qo_heads, head_dim).
            q_len_per_req: as planned.
            others: as for `BatchPrefillWithPagedKVCacheWrapper.run`.

        Returns:
            out (num_requests * q_len_per_req, num_qo_heads, head_dim), or (out, lse) with lse
            (num_requests * q_len_per_req, num_qo_heads) float32, to base 2.

        Raises:
            TypeError, ValueError, NotImplementedError: naming the argument.
            RuntimeError: not planned.
        """
        self._planned()
        if kv_cache_sf is not None:
            arguments.refuse(_FP4, kv_cache_sf=kv_cache_sf)
        if (factor := skip_softmax_threshold_scale_factor) is not None:
            arguments.refuse(_TRTLLM, skip_softmax_threshold_scale_factor=factor)
        if window_left is not None:
            self._check_window(window_left)
        if q_len_per_req is not None and q_len_per_req != self._q_len_per_req:
            raise ValueError(
                f"q_len_per_req is {q_len_per_req}, but {self._q_len_per_req} was planned: give it"
                " to plan()"
            )
        if arguments.tensor("q", q).shape[0] != self._num_rows:
            raise ValueError(
                f"q has {q.shape[0]} rows; the plan has {self._num_rows}, with q_len_per_req ="
                f" {self._q_len_per_req}"
            )
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
        pos_encoding_mode: str = "NONE",
        q_scale: float | torch.Tensor | None = None,
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
            causal=True,
            pos_encoding_mode=pos_encoding_mode,
            window_left=window_left,
            logits_soft_cap=logits_soft_cap,
            sm_scale=sm_scale,
            rope_scale=rope_scale,
            rope_theta=rope_theta,
        )
        return self.run(
            q,
            paged_kv_cache,
            q_scale=q_scale,
            k_scale=k_scale,
            v_scale=v_scale,
            return_lse=return_lse,
        )

    forward_return_lse = functools.partialmethod(forward, return_lse=True)


class _Sizer(BatchDecodeWithPagedKVCacheWrapper):
    """Checks the arguments of plan(), and plans nothing."""

    def _plan_step(self, step: PlannedStep) -> None:
        self._step = step
