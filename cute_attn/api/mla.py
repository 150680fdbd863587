"""Multi-head latent attention in its absorbed form (DeepSeek-V2, arXiv 2405.04434).

A cached row is 512 latent columns, from which keys and values of all heads would be made, and 64
rotary ones. With the matrices that make them multiplied into queries and outputs, all heads share
one KV head: keys are whole rows, values their latent columns. So a row is read once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cute_attn.api import checks
from cute_attn.api.append import append_paged_kv
from cute_attn.api.batch import BatchAttention
from cute_attn.codegen.spec import LATENT_DIMS
from cute_attn.formats import DeviceKV, KVFormat
from cute_attn.variants import Variant

LATENT_DIM = LATENT_DIMS[1]
ROTARY_DIM = LATENT_DIMS[0] - LATENT_DIM


class BatchMLA:
    """`BatchAttention` over a cache of latent rows.

        mla = BatchMLA(128)
        mla.plan(qo_indptr, PagedKV(kv_indptr, kv_indices, kv_last_page_len, page_size=64))
        for layer in layers:
            latent = mla.run(layer.q, layer.cache)      # (q_tokens, 128, 512)
            layer.out = einsum(latent, layer.w_uv)      # the values' matrix, absorbed

    On a GPU it needs Hopper; on CPU tensors the reference executor runs.

    Args:
        num_heads: query heads.
        qk_nope_head_dim: elements of a head's key without rotary columns, before absorption. Only
            the default of sm_scale depends on it.
        dtype: of q, cache and out: torch.bfloat16 or torch.float16 (on the CPU also float32).
        variant: "causal", "full", or a `Variant` whose mask is a band of keys (sliding_window).
        sm_scale: softmax scale; default 1 / sqrt(qk_nope_head_dim + 64), of the heads as they were
            before absorption (not 1 / sqrt(576)).
        options: the others of `BatchAttention`.

    Attributes:
        attention: the `BatchAttention` behind it, for what is not here.

    Raises:
        TypeError, ValueError, DriverError: as `BatchAttention`.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        qk_nope_head_dim: int = 128,
        dtype: torch.dtype = torch.bfloat16,
        variant: str | Variant = "causal",
        sm_scale: float | None = None,
        **options: Any,
    ) -> None:
        checks.positive("num_heads", num_heads)
        checks.positive("qk_nope_head_dim", qk_nope_head_dim)
        self.attention = BatchAttention(
            num_heads,
            1,
            LATENT_DIMS[0],
            head_dim_vo=LATENT_DIM,
            dtype=dtype,
            variant=variant,
            sm_scale=(qk_nope_head_dim + ROTARY_DIM) ** -0.5 if sm_scale is None else sm_scale,
            **options,
        )

    def plan(
        self,
        qo_indptr: Any,
        kv_format: KVFormat,
        *,
        scalars: Mapping[str, float | int] | None = None,
    ) -> BatchMLA:
        """`BatchAttention.plan`: decides which thread block does what for one step."""
        self.attention.plan(qo_indptr, kv_format, scalars=scalars)
        return self

    def plan_on_device(
        self,
        kv_format: DeviceKV,
        *,
        q_len: int = 1,
        scalars: Mapping[str, float | int] | None = None,
    ) -> BatchMLA:
        """`BatchAttention.plan_on_device`; for up to 64 packed query rows (q_len x heads)."""
        self.attention.plan_on_device(kv_format, q_len=q_len, scalars=scalars)
        return self

    def run(
        self,
        q: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        *,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        sm_scale: float | None = None,
    ) -> Any:
        """Attention of the planned step, for one layer; never waits.

        Args:
            q: (q_tokens, num_heads, 576), the absorbed columns first; or a pair of those,
                (q_tokens, num_heads, 512), and the rotary ones, (q_tokens, num_heads, 64), which
                costs a copy.
            cache: (pages, page_size, 576), or (kv_tokens, 576) if ragged, the latent columns first;
                or a pair of tensors with 512 and 64 columns.
            out: (q_tokens, num_heads, 512), to be written.
            lse: (q_tokens, num_heads) float32, contiguous, to be written.
            return_lse: also return the log-sum-exp of each row's scores, natural logarithm.
            sm_scale: another softmax scale than that of the object.

        Returns:
            out, or (out, lse). Rows that see no key: out 0, lse -inf.

        Raises:
            TypeError, ValueError: a tensor does not fit the plan; nothing was launched.
            RuntimeError: not planned.
        """
        rotary, latent = _halves(cache)
        if isinstance(q, tuple):
            q = joined_queries(*q)
        return self.attention.run(
            q, rotary, latent, out=out, lse=lse, return_lse=return_lse, sm_scale=sm_scale
        )


def joined_queries(latent: torch.Tensor, rotary: torch.Tensor) -> torch.Tensor:
    """(q_tokens, num_heads, 576) of its columns in two tensors.

    Raises:
        TypeError, ValueError: naming the tensor.
    """
    for name, x, columns in (("q[0]", latent, LATENT_DIM), ("q[1]", rotary, ROTARY_DIM)):
        dims = (("q_tokens", None), ("num_heads", None), ("columns", columns))
        checks.tensor(name, x, dims=dims, dtype=x.dtype, device=x.device)
    if latent.shape[:2] != rotary.shape[:2] or latent.dtype != rotary.dtype:
        raise ValueError(
            f"q[0] has shape {tuple(latent.shape)}, {latent.dtype}, and q[1]"
            f" {tuple(rotary.shape)}, {rotary.dtype}; they are columns of the same rows"
        )
    return torch.cat((latent, rotary), dim=-1)


def _halves(cache: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(k, v) of `BatchAttention.run`, with its KV head."""
    if isinstance(cache, tuple):
        latent, rotary = (_with_head(x) for x in cache)
        for name, x, columns in (
            ("cache[0]", latent, LATENT_DIM),
            ("cache[1]", rotary, ROTARY_DIM),
        ):
            if x.shape[-1] != columns:
                raise ValueError(f"{name} has {x.shape[-1]} columns; it takes {columns}")
        return rotary, latent
    whole = _with_head(cache)
    if whole.shape[-1] != LATENT_DIMS[0]:
        raise ValueError(f"cache has {whole.shape[-1]} columns; it takes {LATENT_DIMS[0]}")
    return whole, whole[..., :LATENT_DIM]


def _with_head(x: Any) -> torch.Tensor:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"cache is a {type(x).__name__}; it takes a torch.Tensor, or two of them")
    if x.dim() not in (2, 3):
        raise ValueError(
            f"cache has shape {tuple(x.shape)}; it takes (pages, page_size, columns), or"
            " (kv_tokens, columns)"
        )
    return x.unsqueeze(-2)


def append_paged_mla(
    rows: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    cache: torch.Tensor,
    kv_format: KVFormat,
) -> None:
    """Writes new latent rows into their places in a paged cache; see `append_paged_kv`.

    Args:
        rows: (tokens, 576), the latent columns first, the rotary ones turned already.
        batch_indices, positions: (tokens,) int32.
        cache: (pages, page_size, 576).
        kv_format: of the cache after the append.

    Raises:
        TypeError, ValueError: a tensor is wrong; the cache is untouched.
    """
    dims = (("tokens", None), ("columns", LATENT_DIMS[0]))
    checks.tensor("rows", rows, dims=dims, dtype=cache.dtype, device=cache.device)
    k, v = _halves(cache)
    append_paged_kv(
        rows[:, None, LATENT_DIM:],
        rows[:, None, :LATENT_DIM],
        batch_indices,
        positions,
        k[..., LATENT_DIM:],
        v,
        kv_format,
    )
