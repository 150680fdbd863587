"""Multi-head latent attention over a paged cache."""

from __future__ import annotations

from typing import Any

import torch

from cute_attn.api.mla import LATENT_DIM, ROTARY_DIM, joined_queries
from cute_attn.flashinfer import arguments
from cute_attn.flashinfer.options import Options
from cute_attn.flashinfer.paged import paged_kv
from cute_attn.flashinfer.unsupported import stand_ins
from cute_attn.flashinfer.wrapper import LOG2_E, PlannedStep, Wrapper

__getattr__ = stand_ins(__name__)


class BatchMLAPagedAttentionWrapper(Wrapper):
    """Attention over latent rows: all heads share one KV head, whose keys are rows of ckv and kpe
    and whose values are those of ckv.

    Args:
        float_workspace_buffer: as for the other wrappers.
        use_cuda_graph: for capture; kv_indices is then read from the user's buffer when kernels
            run, and the batch size is that of qo_indptr.
        qo_indptr, kv_indptr, kv_indices, kv_len_arr: the user's buffers, with use_cuda_graph.
        backend: "auto", "fa2" or "fa3"; the kernel is chosen by the device all the same.
    """

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        use_cuda_graph: bool = False,
        qo_indptr: torch.Tensor | None = None,
        kv_indptr: torch.Tensor | None = None,
        kv_indices: torch.Tensor | None = None,
        kv_len_arr: torch.Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        buffers = {
            "qo_indptr": qo_indptr,
            "kv_indptr": kv_indptr,
            "kv_indices": kv_indices,
            "kv_len_arr": kv_len_arr,
        }
        if use_cuda_graph:
            for name, buffer in buffers.items():
                arguments.tensor(name, buffer)
        size = len(buffers["kv_len_arr"]) if use_cuda_graph else 0  # type: ignore[arg-type]
        super().__init__(
            float_workspace_buffer,
            "NHD",
            use_cuda_graph=use_cuda_graph,
            fixed_batch_size=size,
            backend=backend,
        )
        self._buffers = buffers

    def plan(
        self,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_indices: torch.Tensor,
        kv_len_arr: torch.Tensor,
        num_heads: int,
        head_dim_ckv: int,
        head_dim_kpe: int,
        page_size: int,
        causal: bool,
        sm_scale: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
        use_profiler: bool = False,
    ) -> None:
        """Decides which thread block does what for one step; run() then serves every layer.

        Waits for the device if row pointers or lengths are there.

        Args:
            qo_indptr, kv_indptr: (num_requests + 1,) integers; kv_indptr counts pages, and may be
                longer.
            kv_indices: page numbers.
            kv_len_arr: (num_requests,) keys of each request.
            num_heads: query heads.
            head_dim_ckv, head_dim_kpe: 512 and 64.
            page_size: tokens per page.
            causal: the last query of a request sees its last key, the one before one key less.
            sm_scale: of the heads before absorption, 1 / sqrt(192) for DeepSeek's.
            q_data_type, kv_data_type: the same.

        Raises:
            TypeError, ValueError, NotImplementedError: naming the argument.
            Others as `cute_attn.BatchAttention.plan`.
        """
        arguments.refuse(
            "cute_attn.BatchAttention.trace() measures thread blocks",
            use_profiler=use_profiler or None,
        )
        if (head_dim_ckv, head_dim_kpe) != (LATENT_DIM, ROTARY_DIM):
            raise NotImplementedError(
                f"head_dim_ckv is {head_dim_ckv} and head_dim_kpe {head_dim_kpe}; cute_attn takes"
                f" {LATENT_DIM} and {ROTARY_DIM}"
            )
        dtype, o_dtype = arguments.data_types(q_data_type, kv_data_type, None)
        rows, begin, length = arguments.to_host(
            qo_indptr=qo_indptr, kv_indptr=kv_indptr, kv_len_arr=kv_len_arr
        )
        if len(begin) <= len(length):
            raise ValueError(
                f"kv_indptr has {len(begin)} entries; {len(length)} requests (kv_len_arr) take one"
                " more than there are of them"
            )
        begin = begin[: len(length) + 1]  # kv_len_arr says how many requests there are
        pages = begin[1:] - begin[:-1]
        last = length - (pages - 1).clamp(min=0) * page_size
        self._plan_step(
            PlannedStep(
                qo_indptr=rows,
                kv=paged_kv(begin, self._indices(kv_indices), last, page_size),
                num_qo_heads=num_heads,
                num_kv_heads=1,
                head_dim_qk=LATENT_DIM + ROTARY_DIM,
                head_dim_vo=LATENT_DIM,
                dtype=dtype,
                o_dtype=o_dtype,
                options=Options.checked(causal=causal, sm_scale=sm_scale),
            )
        )

    def _indices(self, kv_indices: torch.Tensor) -> torch.Tensor:
        """Page numbers, in graph mode in the user's buffer, which captured kernels read."""
        given = arguments.tensor("kv_indices", kv_indices)
        if not self._use_cuda_graph:
            return given
        buffer = self._buffers["kv_indices"]
        assert buffer is not None
        if len(given) > len(buffer):
            raise ValueError(
                f"kv_indices has {len(given)} pages; the buffer for graphs holds {len(buffer)}"
            )
        buffer[: len(given)].copy_(given, non_blocking=True)
        return buffer[: len(given)]

    def run(
        self,
        q_nope: torch.Tensor,
        q_pe: torch.Tensor,
        ckv_cache: torch.Tensor,
        kpe_cache: torch.Tensor,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        profiler_buffer: torch.Tensor | None = None,
        kv_len: torch.Tensor | None = None,
        page_table: torch.Tensor | None = None,
        return_lse_base_on_e: bool = False,
        o_scale: float | None = None,
        *,
        ckv_scale: Any = None,
        ckv_scale_arr: Any = None,
        kpe_scale: Any = None,
    ) -> Any:
        """Attention of the planned step, for one layer.

        Args:
            q_nope, q_pe: (q_tokens, num_heads, 512) and (q_tokens, num_heads, 64); copied into one
                tensor (`cute_attn.BatchMLA` takes them as one).
            ckv_cache, kpe_cache: (pages, page_size, 512) and (pages, page_size, 64), strided.
            out: (q_tokens, num_heads, 512), to be written.
            lse: (q_tokens, num_heads) float32, to be written, whether it is returned or not.
            return_lse: also return the log-sum-exp.
            kv_len, page_table: must be None: plan() has them.
            return_lse_base_on_e: natural logarithm instead of base 2.

        Returns:
            out, or (out, lse).

        Raises:
            TypeError, ValueError, NotImplementedError: naming the argument.
            RuntimeError: not planned.
        """
        arguments.refuse(
            "cute_attn.BatchAttention.trace() measures thread blocks",
            profiler_buffer=profiler_buffer,
        )
        arguments.refuse("they are given to plan()", kv_len=kv_len, page_table=page_table)
        arguments.refuse(
            "caches and outputs have no scales",
            o_scale=o_scale,
            ckv_scale=ckv_scale,
            ckv_scale_arr=ckv_scale_arr,
            kpe_scale=kpe_scale,
        )
        for name, x in {"ckv_cache": ckv_cache, "kpe_cache": kpe_cache}.items():
            if arguments.dtyped(name, x).dim() != 3:
                raise ValueError(
                    f"{name} has shape {tuple(x.shape)}; it takes (pages, page_size, columns)"
                )
        q = joined_queries(arguments.dtyped("q_nope", q_nope), arguments.dtyped("q_pe", q_pe))
        result = self._run(
            q,
            kpe_cache.unsqueeze(2),
            ckv_cache.unsqueeze(2),
            out=out,
            lse=lse,
            return_lse=return_lse,
        )
        logs = result[1] if return_lse else lse
        if logs is not None and return_lse_base_on_e:
            logs.div_(LOG2_E)
        return result
