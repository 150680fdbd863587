"""An attention kernel, its merge and their argument blocks, for one spec on one GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from cute_attn.api.arguments import Arguments, FieldWriter
from cute_attn.api.kernel import build, build_generated
from cute_attn.api.shape import BatchShape
from cute_attn.api.step import Step
from cute_attn.api.tensor_maps import kv_map
from cute_attn.codegen.attention_params import page_division
from cute_attn.codegen.kernels import emit_merge, merge_grid
from cute_attn.codegen.spec import KernelSpec
from cute_attn.formats import KVViews
from cute_attn.runtime.tensor_map import TensorMapEncoder, TensorMapSpec

_LOG2_E = math.log2(math.e)
_MAX_BINDINGS = 1024
_ROWS = (
    "q", "out", "lse", "plan", "partial_out", "partial_lse",
    "q_token_stride", "q_head_stride", "out_token_stride", "out_head_stride",
)  # fmt: skip
_MERGE_ROWS = (
    "out", "lse", "plan", "partial_out", "partial_lse", "out_token_stride", "out_head_stride",
)  # fmt: skip


@dataclass(frozen=True)
class Paging:
    """What an argument block holds of the step's KV format."""

    table_address: int  # 0 for ragged KV
    page_size: int | None
    num_rows: int  # of block-sparse KV; decides how k and v are split in pages


class Binding:
    """The argument block of one (K, V) pair, and the shapes and strides it was made for.

    Attributes:
        arguments: the block.
        paging: what it holds of the KV format, or None: to be filled.
        scalars: values of the variant's scalars that are in it.
        capacity: ragged: KV rows; paged: pages.
    """

    __slots__ = (
        "_dtype", "_k_shape", "_k_strides", "_v_shape", "_v_strides",
        "arguments", "capacity", "paging", "scalars",
    )  # fmt: skip

    def __init__(self, arguments: Arguments, k: torch.Tensor, v: torch.Tensor | None) -> None:
        self.arguments = arguments
        self.paging: Paging | None = None
        self.scalars: dict[str, float | int] | None = None
        self.capacity = 0
        self._k_shape, self._k_strides, self._dtype = k.shape, k.stride(), k.dtype
        self._v_shape = None if v is None else v.shape
        self._v_strides = None if v is None else v.stride()

    def fits(self, k: torch.Tensor, v: torch.Tensor | None) -> bool:
        """Whether k and v, at the known addresses, have the shapes that were checked."""
        if k.shape != self._k_shape or k.stride() != self._k_strides or k.dtype is not self._dtype:
            return False
        if v is None:
            return self._v_shape is None
        return v.shape == self._v_shape and v.stride() == self._v_strides and v.dtype is self._dtype


class LaunchSet:
    """Compiled and loaded kernels of one spec.

    Args:
        spec: of the attention kernel.
        shape: sizes and options.
        num_blocks: grid of the attention kernel.
        index: GPU.
    """

    def __init__(self, spec: KernelSpec, shape: BatchShape, num_blocks: int, index: int) -> None:
        self.spec = spec
        self.num_blocks = num_blocks
        self.kernel = build(spec)
        self.merge = build_generated(
            emit_merge(spec.arch, spec.dtype, spec.head_dim_vo, spec.tile.q, spec.group)
        )
        self.launch = self.kernel.launcher(index).launch
        self.launch_merge = self.merge.launcher(index).launch
        self.merge_grid = merge_grid(spec.head_dim_vo, spec.tile.q, num_blocks)
        self.merge_arguments = self.merge.arguments()
        self.merge_arguments.set(num_kv_heads=shape.num_kv_heads)
        self._shape = shape
        self._params = self.kernel.generated.params
        rows = FieldWriter(self._params, _ROWS)
        self.pack_rows, self.rows_offset = rows.pack_into, rows.offset
        rows = FieldWriter(self.merge.generated.params, _MERGE_ROWS)
        self.pack_merge_rows, self.merge_rows_offset = rows.pack_into, rows.offset
        self.bindings: dict[tuple[int, int], Binding] = {}
        self._encoders: dict[TensorMapSpec, TensorMapEncoder] = {}

    def bind(self, k: torch.Tensor, v: torch.Tensor | None, step: Step) -> Binding:
        """An argument block for K and V that were not seen before, or were reshaped."""
        self._shape.kv(step.kv_format, k, v)
        if len(self.bindings) >= _MAX_BINDINGS:  # KV that moves from call to call
            self.bindings.clear()
        binding = Binding(self.kernel.arguments(), k, v)
        self.bindings[k.data_ptr(), 0 if v is None else v.data_ptr()] = binding
        return binding

    def fill(
        self,
        binding: Binding,
        k: torch.Tensor,
        v: torch.Tensor | None,
        step: Step,
        paging: Paging,
        spare_address: int,
    ) -> None:
        """Writes everything of an argument block but rows and scalars.

        Args:
            binding: of k and v.
            k, v: as given by the caller.
            step: the planned step.
            paging: of the step.
            spare_address: stands in for the address of an empty tensor.
        """
        shape, arguments = self._shape, binding.arguments
        views = shape.kv(step.kv_format, k, v)
        arguments.set(
            num_kv_heads=shape.num_kv_heads,
            sm_scale=shape.sm_scale,
            scale_log2=_LOG2_E if shape.variant.logits else shape.sm_scale * _LOG2_E,
        )
        if views.page_size:
            magic, shift = page_division(views.page_size)
            arguments.set(
                page_table=paging.table_address,
                num_pages=views.num_pages,
                page_size=views.page_size,
                page_magic=magic,
                page_shift=shift,
            )
        if "k_map" in self._params.offsets:
            self._fill_maps(arguments, views, spare_address)
        else:
            of_k, of_v = views.k_strides, views.v_strides
            arguments.set(
                k=views.k.data_ptr(),
                v=views.v.data_ptr(),
                k_page_stride=of_k.page,
                k_token_stride=of_k.token,
                k_head_stride=of_k.head,
                v_page_stride=of_v.page,
                v_token_stride=of_v.token,
                v_head_stride=of_v.head,
            )
        binding.capacity = int(views.k.shape[0])
        binding.paging = paging
        binding.scalars = None

    def _fill_maps(self, arguments: Arguments, views: KVViews, spare_address: int) -> None:
        box_rows = self.spec.tile.kv
        k, v = views.k, views.v
        if views.page_size:
            box_rows = math.gcd(views.page_size, box_rows)
            arguments.set(box_rows=box_rows)
        else:
            k, v = k.unsqueeze(0), v.unsqueeze(0)
        for name, view in (("k_map", k), ("v_map", v)):
            map_spec = kv_map(view, box_rows)
            encoder = self._encoders.get(map_spec)
            if encoder is None:
                if len(self._encoders) >= _MAX_BINDINGS:  # ragged KV of ever new lengths
                    self._encoders.clear()
                encoder = self._encoders[map_spec] = TensorMapEncoder(map_spec)
            address = view.data_ptr() or spare_address
            encoder.write(arguments.address + self._params.offsets[name], address)
