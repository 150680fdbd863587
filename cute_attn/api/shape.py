"""What a `BatchAttention` fixes once, for all its steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from cute_attn.api import checks
from cute_attn.api.dispatch import named_variant
from cute_attn.api.step import AnyStep
from cute_attn.codegen.spec import LATENT_DIMS
from cute_attn.formats import KVFormat, KVViews, kv_views
from cute_attn.variants import Variant

KV_LAYOUTS = ("NHD", "HND")


@dataclass(frozen=True)
class BatchShape:
    """Sizes and options.

    Attributes:
        num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo: sizes.
        dtype: of q, k and v; `out_dtype` is that of out.
        variant: the hooks.
        sm_scale: softmax scale.
        kv_layout: "NHD" or "HND".
        device: where everything lives.
    """

    num_qo_heads: int
    num_kv_heads: int
    head_dim_qk: int
    head_dim_vo: int
    dtype: torch.dtype
    variant: Variant
    sm_scale: float
    kv_layout: str
    device: torch.device

    @classmethod
    def checked(
        cls,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        head_dim_vo: int | None,
        dtype: torch.dtype,
        variant: str | Variant,
        sm_scale: float | None,
        kv_layout: str,
        device: torch.device | str | None,
    ) -> BatchShape:
        """From arguments of `BatchAttention`, or what they stand for where they are None.

        Raises:
            TypeError, ValueError: an argument is wrong.
        """
        checks.head_counts(num_qo_heads, num_kv_heads)
        checks.positive("head_dim", head_dim)
        if head_dim_vo is None:
            head_dim_vo = head_dim
        checks.positive("head_dim_vo", head_dim_vo)
        checks.one_of("kv_layout", kv_layout, KV_LAYOUTS)
        if sm_scale is None:
            sm_scale = 1 / math.sqrt(head_dim)
        checks.scale("sm_scale", sm_scale)
        made = cls(
            num_qo_heads=num_qo_heads,
            num_kv_heads=num_kv_heads,
            head_dim_qk=head_dim,
            head_dim_vo=head_dim_vo,
            dtype=dtype,
            variant=named_variant(variant),
            sm_scale=float(sm_scale),
            kv_layout=kv_layout,
            device=checks.device_of(device),
        )
        made.variant.check_head_dims(head_dim, head_dim_vo)
        on_cpu = made.device.type == "cpu"
        known = [torch.bfloat16, torch.float16, checks.E4M3, *([torch.float32] if on_cpu else [])]
        if dtype not in known:
            raise TypeError(f"dtype is {dtype}; it takes {', '.join(map(str, known))}")
        return made

    @property
    def is_fp8(self) -> bool:
        """Whether q, k and v are e4m3, which kernels take as words of two."""
        return self.dtype is checks.E4M3

    @property
    def out_dtype(self) -> torch.dtype:
        """Of out: that of q, bfloat16 if that is e4m3."""
        return checks.out_dtype(self.dtype)

    @property
    def is_latent(self) -> bool:
        """Whether values are columns of the keys (multi-head latent attention)."""
        return (self.head_dim_qk, self.head_dim_vo) == LATENT_DIMS

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.num_qo_heads // self.num_kv_heads

    def check_heads(self, kv_format: KVFormat) -> None:
        """Raises for a format that has tables of each KV head, of another number of heads."""
        heads = kv_format.heads_in_ids
        if heads and heads != self.num_kv_heads:
            raise ValueError(
                f"kv_format has tables for {heads} KV heads each; num_kv_heads is"
                f" {self.num_kv_heads}"
            )

    def check_q(self, q: torch.Tensor, q_rows: int, *, padded: bool) -> None:
        """Raises unless q is (q_tokens, num_qo_heads, head_dim_qk) with the planned rows."""
        dims = (
            ("q_tokens", None),
            ("num_qo_heads", self.num_qo_heads),
            ("head_dim", self.head_dim_qk),
        )
        checks.tensor("q", q, dims=dims, dtype=self.dtype, device=self.device)
        if q.shape[0] < q_rows or (q.shape[0] > q_rows and not padded):
            raise ValueError(f"q has {q.shape[0]} rows; planned for qo_indptr[-1] = {q_rows}")
        checks.vector_rows("q", q)

    def check_v_scale(self, v_scale: float) -> None:
        """Raises unless it is a positive number, of e4m3 values."""
        if not self.is_fp8:
            raise ValueError(
                f"v_scale is {v_scale}, but dtype is {self.dtype}; it is for {checks.E4M3}"
            )
        checks.scale("v_scale", v_scale)

    def check_out(self, out: torch.Tensor, q_tokens: int) -> None:
        """Raises unless out is (q_tokens, num_qo_heads, head_dim_vo)."""
        dims = (
            ("q_tokens", q_tokens),
            ("num_qo_heads", self.num_qo_heads),
            ("head_dim_vo", self.head_dim_vo),
        )
        checks.tensor("out", out, dims=dims, dtype=self.out_dtype, device=self.device)
        checks.vector_rows("out", out)

    def check_lse(self, lse: torch.Tensor, q_tokens: int) -> None:
        """Raises unless lse is (q_tokens, num_qo_heads), float32, contiguous."""
        dims = (("q_tokens", q_tokens), ("num_qo_heads", self.num_qo_heads))
        checks.tensor("lse", lse, dims=dims, dtype=torch.float32, device=self.device)
        checks.contiguous("lse", lse)

    def new_out(self, q_tokens: int) -> torch.Tensor:
        """(q_tokens, num_qo_heads, head_dim_vo), uninitialised."""
        size = (q_tokens, self.num_qo_heads, self.head_dim_vo)
        return torch.empty(size, dtype=self.out_dtype, device=self.device)

    def new_lse(self, q_tokens: int) -> torch.Tensor:
        """(q_tokens, num_qo_heads) float32, uninitialised."""
        return torch.empty((q_tokens, self.num_qo_heads), dtype=torch.float32, device=self.device)

    def kv(self, kv_format: KVFormat, k: Any, v: torch.Tensor | None) -> KVViews:
        """Checks k and v against the format and these sizes.

        Returns:
            views in (pages, page_size, num_kv_heads, head_dim) or (tokens, num_kv_heads, head_dim)
            order, with their strides. Of latent rows k may be their last columns, those that are
            not in v.
        """
        for name, value in (("k", k), ("v", v)):
            if not isinstance(value, torch.Tensor) and (name == "k" or value is not None):
                raise TypeError(f"{name} is a {type(value).__name__}; it takes a torch.Tensor")
        views = kv_views(kv_format, k, v, self.kv_layout)
        for name, view, head_dim in (
            ("k", views.k, self.head_dim_qk),
            ("v", views.v, self.head_dim_vo),
        ):
            if name == "k" and self.is_latent and view.shape[-1] == head_dim - self.head_dim_vo:
                head_dim = view.shape[-1]  # the rotary columns alone
            sizes = (("num_kv_heads", self.num_kv_heads), ("head_dim", head_dim))
            for (what, size), got in zip(sizes, view.shape[-2:], strict=True):
                if got != size:
                    raise ValueError(f"{name} has {what} {got}; planned for {size}")
            if view.dtype != self.dtype:
                raise TypeError(f"{name} has dtype {view.dtype}; it takes {self.dtype}")
            if view.device != self.device:
                raise TypeError(f"{name} is on device {view.device}; it takes {self.device}")
            checks.vector_rows(name, view)
        return views


def refuse_kv(step: AnyStep, capacity: int) -> None:
    """Raises if the step reaches past `capacity`, the rows (ragged) or pages of k and v."""
    needed = step.kv_needed
    if needed <= capacity:
        return
    if step.page_size is None:
        raise ValueError(f"k has {capacity} rows; planned for kv_indptr[-1] = {needed}")
    raise ValueError(
        f"the page table holds page {needed - 1} but the cache has {capacity} pages"
        f" (0 .. {capacity - 1})"
    )
