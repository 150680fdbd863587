"""Block-sparse attention: one pattern of equal blocks, or one for each KV head of any blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cute_attn.api import BlockSparseKV, PagedKV, PerHeadKV, checks
from cute_attn.flashinfer import arguments
from cute_attn.flashinfer.masks import mask_tensors
from cute_attn.flashinfer.options import Options
from cute_attn.flashinfer.patterns import convert_bsr_mask_layout, on_host
from cute_attn.flashinfer.wrapper import PlannedStep, Wrapper

__all__ = [
    "BlockSparseAttentionWrapper",
    "VariableBlockSparseAttentionWrapper",
    "convert_bsr_mask_layout",
]

_POSITIONS = "keys of a list of blocks have no positions; rotate q and k before"
_CAUSAL = "give mask, or a pattern without the blocks above the diagonal"


class BlockSparseAttentionWrapper(Wrapper):
    """Attention of query rows in blocks of R over chosen blocks of C keys (BSR), the same for all
    heads: every block row is a request, its blocks are its pages.

    Arguments are FlashInfer's; see `Wrapper`.
    """

    def __init__(self, float_workspace_buffer: torch.Tensor, backend: str = "auto") -> None:
        super().__init__(float_workspace_buffer, "NHD", backend=backend)

    def plan(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        M: int,
        N: int,
        R: int,
        C: int,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        mask: torch.Tensor | None = None,
        packed_mask: torch.Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: str | torch.dtype = "float16",
        kv_data_type: str | torch.dtype | None = None,
        o_data_type: str | torch.dtype = "float16",
        non_blocking: bool = True,
        block_mask: torch.Tensor | None = None,
    ) -> None:
        """Decides which thread block does what for a pattern; run() then serves every layer.

        Waits for the device if indptr is there.

        Args:
            indptr: (ceil(M / R) + 1,) integers, of indices.
            indices: block columns of each block row.
            M, N: query rows, and keys, a multiple of C.
            R, C: rows and keys of a block.
            mask: (indptr[-1], R, C) bool: what is seen within the blocks.
            packed_mask: the same, of `segment_packbits(convert_bsr_mask_layout(mask, indptr), ...,
                bitorder="little")`.
            others: as for `BatchPrefillWithPagedKVCacheWrapper.plan`. Outputs are float16 unless
                o_data_type says otherwise.

        Raises:
            TypeError, ValueError, NotImplementedError: naming the argument.
            Others as `cute_attn.BatchAttention.plan`.
        """
        arguments.refuse("VariableBlockSparseAttentionWrapper has patterns of heads",
                         block_mask=block_mask)  # fmt: skip
        masked = mask is not None or packed_mask is not None
        _refuse_positions(causal and not masked, pos_encoding_mode)
        dtype, o_dtype = arguments.data_types(q_data_type, kv_data_type, o_data_type)
        options = Options.checked(logits_soft_cap=logits_soft_cap, sm_scale=sm_scale, masked=masked)
        for name, size in (("M", M), ("N", N), ("R", R), ("C", C)):
            checks.positive(name, size)
        if N % C:
            raise ValueError(f"N is {N}; it must be a multiple of C = {C}")
        (begin,) = arguments.to_host(indptr=indptr)
        block_rows = -(-M // R)
        if len(begin) != block_rows + 1:
            raise ValueError(
                f"indptr has {len(begin)} elements; {M} query rows in blocks of {R} take"
                f" {block_rows + 1}"
            )
        columns = arguments.tensor("indices", indices).to(torch.int32)
        kv: PagedKV | BlockSparseKV
        rows, tensors = None, None
        if masked:  # lists of pages, whose mask may stay on the device
            kv = PagedKV(begin, columns, np.full(block_rows, C), C)
            kv.check_num_pages(N // C)
            rows = (R * torch.arange(block_rows + 1)).clamp(max=M)
            if mask is not None and packed_mask is None:
                mask = convert_bsr_mask_layout(mask, begin)
            q_len = rows.diff().numpy()
            tensors = mask_tensors(q_len, kv.kv_len, mask, packed_mask, self.device)
        else:
            kv = BlockSparseKV(begin, columns, (R, C), M, N)
        self._block = C if masked else 0
        self._plan_step(
            PlannedStep(
                qo_indptr=rows,
                kv=kv,
                num_qo_heads=num_qo_heads,
                num_kv_heads=num_kv_heads,
                head_dim_qk=head_dim,
                head_dim_vo=head_dim,
                dtype=dtype,
                o_dtype=o_dtype,
                options=options,
                tensors=tensors,
            )
        )

    begin_forward = plan

    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale_q: torch.Tensor | None = None,
        scale_k: torch.Tensor | None = None,
        scale_v: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
    ) -> Any:
        """Attention of the planned pattern.

        Args:
            q: (M, num_qo_heads, head_dim).
            k, v: (N, num_kv_heads, head_dim).
            out, lse, return_lse: as for `BatchPrefillWithPagedKVCacheWrapper.run`.

        Returns:
            out (M, num_qo_heads, head_dim), or (out, lse) with lse (M, num_qo_heads) to base 2.
        """
        arguments.refuse("convert q, k and v to float16 or bfloat16", scale_q=scale_q,
                         scale_k=scale_k, scale_v=scale_v)  # fmt: skip
        self._planned()
        k, v = (_pages(n, x, self._block) if self._block else x for n, x in (("k", k), ("v", v)))
        return self._run(q, k, v, out=out, lse=lse, return_lse=return_lse)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale_q: torch.Tensor | None = None,
        scale_k: torch.Tensor | None = None,
        scale_v: torch.Tensor | None = None,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
    ) -> torch.Tensor:
        """run() with options of its own (the older name); others than planned are planned again."""
        _refuse_positions(False, pos_encoding_mode)
        self._with_options(logits_soft_cap=logits_soft_cap, sm_scale=sm_scale)
        out: torch.Tensor = self.run(q, k, v, scale_q, scale_k, scale_v)
        return out


class VariableBlockSparseAttentionWrapper(Wrapper):
    """Attention with blocks of any sizes, and a pattern for each KV head.

    Arguments are FlashInfer's; see `Wrapper`.
    """

    def __init__(self, float_workspace_buffer: torch.Tensor, backend: str = "auto") -> None:
        super().__init__(float_workspace_buffer, "HND", backend=backend)
        self._heads = (0, 0)

    def plan(
        self,
        block_mask_map: torch.Tensor,
        block_row_sz: torch.Tensor,
        block_col_sz: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        non_blocking: bool = True,
        q_data_type: str | torch.dtype = "float16",
        kv_data_type: str | torch.dtype | None = None,
    ) -> None:
        """Decides which thread block does what for a pattern; run() then serves every layer.

        Waits for the device if the pattern is there.

        Args:
            block_mask_map: (num_kv_heads, block rows, block columns) bool: what is seen.
            block_row_sz: (num_kv_heads, block rows) integers, query rows of each.
            block_col_sz: (num_kv_heads, block columns) integers, keys of each.
            num_qo_heads, num_kv_heads, head_dim: sizes.
            others: as for `BatchPrefillWithPagedKVCacheWrapper.plan`.

        Raises:
            TypeError, ValueError, NotImplementedError: naming the argument.
            Others as `cute_attn.BatchAttention.plan`.
        """
        _refuse_positions(causal, pos_encoding_mode)
        dtype, o_dtype = arguments.data_types(q_data_type, kv_data_type, None)
        options = Options.checked(logits_soft_cap=logits_soft_cap, sm_scale=sm_scale)
        checks.head_counts(num_qo_heads, num_kv_heads)
        pattern = on_host(block_mask_map, block_row_sz, block_col_sz, num_kv_heads)
        self._heads = (num_qo_heads, num_kv_heads)
        self._plan_step(
            PlannedStep(
                qo_indptr=None,
                kv=PerHeadKV.of_blocks(*pattern),
                num_qo_heads=num_qo_heads,
                num_kv_heads=num_kv_heads,
                head_dim_qk=head_dim,
                head_dim_vo=head_dim,
                dtype=dtype,
                o_dtype=o_dtype,
                options=options,
            )
        )

    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
    ) -> Any:
        """Attention of the planned pattern.

        Args:
            q: (num_qo_heads, query rows, head_dim).
            k, v: (num_kv_heads, keys, head_dim).
            out: as q, to be written.
            lse: (num_qo_heads, query rows) float32, to be written.
            return_lse: also return the log-sum-exp, to base 2.

        Returns:
            out (num_qo_heads, query rows, head_dim), or (out, lse) with lse (num_qo_heads,
            query rows).
        """
        step = self._planned()
        heads, kv_heads = self._heads
        for name, x, count in (("q", q, heads), ("k", k, kv_heads), ("v", v, kv_heads)):
            arguments.tensor(name, x)
            if x.dim() != 3 or (x.shape[0], x.shape[2]) != (count, step.head_dim_qk):
                raise ValueError(
                    f"{name} has shape {tuple(x.shape)}; it takes ({count}, tokens,"
                    f" {step.head_dim_qk})"
                )
        if out is None:
            out = torch.empty_like(q, dtype=step.o_dtype)
        rows, given = q.transpose(0, 1), arguments.tensor("out", out).transpose(0, 1)
        written = return_lse or lse is not None
        result = self._run(rows, k, v, out=given, lse=None, return_lse=written)
        if not written:
            return out
        logs = result[1].t()
        logs = logs.contiguous() if lse is None else lse.copy_(logs)
        return (out, logs) if return_lse else out

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
    ) -> torch.Tensor:
        """run() with options of its own (the older name); others than planned are planned again."""
        _refuse_positions(False, pos_encoding_mode)
        self._with_options(logits_soft_cap=logits_soft_cap, sm_scale=sm_scale)
        out: torch.Tensor = self.run(q, k, v)
        return out


def _refuse_positions(causal: bool, pos_encoding_mode: str) -> None:
    arguments.refuse(_CAUSAL, causal=causal or None)
    named = None if pos_encoding_mode == "NONE" else pos_encoding_mode
    arguments.refuse(_POSITIONS, pos_encoding_mode=named)


def _pages(name: str, x: torch.Tensor, block: int) -> torch.Tensor:
    """(N, heads, dim) as pages (N / block, block, heads, dim), without a copy."""
    if arguments.tensor(name, x).dim() != 3 or x.shape[0] % block:
        raise ValueError(
            f"{name} has shape {tuple(x.shape)}; it takes (N, num_kv_heads, head_dim), N a multiple"
            f" of {block}"
        )
    return x.view(-1, block, *x.shape[1:])
