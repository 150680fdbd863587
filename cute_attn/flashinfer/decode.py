"""Decode: one query token, or a few, of each request."""

from __future__ import annotations

import torch

from cute_attn.flashinfer import arguments
from cute_attn.flashinfer.decode_paged import BatchDecodeWithPagedKVCacheWrapper
from cute_attn.flashinfer.single import single_decode_with_kv_cache
from cute_attn.flashinfer.unsupported import stand_ins
from cute_attn.flashinfer.wrapper import invariant

__all__ = [
    "BatchDecodeWithPagedKVCacheWrapper",
    "CUDAGraphBatchDecodeWithPagedKVCacheWrapper",
    "fast_decode_plan",
    "single_decode_with_kv_cache",
]

__getattr__ = stand_ins(__name__)


class CUDAGraphBatchDecodeWithPagedKVCacheWrapper(BatchDecodeWithPagedKVCacheWrapper):
    """`BatchDecodeWithPagedKVCacheWrapper` for CUDA graphs: plan, capture run(), and plan again
    before each replay.

    Raises:
        TypeError, ValueError: naming the argument.
    """

    def __init__(
        self,
        workspace_buffer: torch.Tensor,
        indptr_buffer: torch.Tensor,
        indices_buffer: torch.Tensor,
        last_page_len_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_tensor_cores: bool = False,
    ) -> None:
        super().__init__(
            workspace_buffer,
            kv_layout,
            use_cuda_graph=True,
            use_tensor_cores=use_tensor_cores,
            paged_kv_indptr_buffer=indptr_buffer,
            paged_kv_indices_buffer=indices_buffer,
            paged_kv_last_page_len_buffer=last_page_len_buffer,
        )


def fast_decode_plan(
    self: BatchDecodeWithPagedKVCacheWrapper,
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
    q_data_type: str | torch.dtype | None = None,
    kv_data_type: str | torch.dtype | None = None,
    data_type: str | torch.dtype | None = None,
    sm_scale: float | None = None,
    rope_scale: float | None = None,
    rope_theta: float | None = None,
    non_blocking: bool = True,
    fixed_split_size: int | None = None,
    disable_split_kv: bool = False,
    q_len_per_req: int = 1,
    global_override_indptr_cpu: torch.Tensor | None = None,
) -> None:
    """`plan` of a decode wrapper, for row pointers that are known on the host.

    With pages of one key nothing then waits for the device.

    Args:
        self: the wrapper.
        global_override_indptr_cpu: (num_requests + 1,) indptr on the host.
        others: as for `BatchDecodeWithPagedKVCacheWrapper.plan`; q_data_type and kv_data_type are
            data_type where not given, and float16 without.

    Raises:
        As plan().
    """
    if page_size == 1:
        last = torch.ones(len(last_page_len), dtype=torch.int64)
        known = indptr if global_override_indptr_cpu is None else global_override_indptr_cpu
        on_host = [*arguments.to_host(indptr=known), last]
    else:
        known = indptr if global_override_indptr_cpu is None else global_override_indptr_cpu
        on_host = arguments.to_host(indptr=known, last_page_len=last_page_len)
    queries = data_type if q_data_type is None else q_data_type
    keys = data_type if kv_data_type is None else kv_data_type
    self._plan(
        on_host,
        (indptr, indices, last_page_len),
        (num_qo_heads, num_kv_heads, head_dim, page_size),
        pos_encoding_mode=pos_encoding_mode,
        window_left=window_left,
        logits_soft_cap=logits_soft_cap,
        data_types=(queries, keys),
        o_data_type=None,
        sm_scale=sm_scale,
        rope_scale=rope_scale,
        rope_theta=rope_theta,
        non_blocking=non_blocking,
        batch_invariant=invariant(fixed_split_size, disable_split_kv),
        q_len_per_req=q_len_per_req,
    )
