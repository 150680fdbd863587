"""An attention kernel, its merge and their argument blocks, for one spec on one GPU."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from cute_attn.api import checks, dispatch
from cute_attn.api.arguments import Arguments, FieldWriter
from cute_attn.api.kernel import Kernel, merge_of
from cute_attn.api.kernel_source import COMPILED, KernelSource
from cute_attn.api.kv_fields import latent_views, page_fields, stride_fields
from cute_attn.api.launches import cost_of
from cute_attn.api.parameters import Parameters
from cute_attn.api.shape import BatchShape
from cute_attn.api.step import AnyStep
from cute_attn.api.tensor_maps import grouped_kv_map, kv_map, page_groups, q_map
from cute_attn.api.words import words, words_of_kv
from cute_attn.codegen.kernels import merge_grid
from cute_attn.codegen.smem_tile import SWIZZLE_ROWS
from cute_attn.codegen.spec import KernelSpec
from cute_attn.formats import KVViews
from cute_attn.runtime.tensor_map import TensorMapEncoder, TensorMapSpec, replace_address
from cute_attn.scheduler import Constants, Geometry

_MAX_BINDINGS = 1024
# Of these, a kernel has what it needs: q_map, or q and its strides; arrivals if it merges itself.
_ROWS = (
    "q_map", "q", "out", "lse", "plan", "partial_out", "partial_lse", "arrivals",
    "q_token_stride", "q_head_stride", "out_token_stride", "out_head_stride",
)  # fmt: skip
_MERGE_ROWS = (
    "out", "lse", "plan", "partial_out", "partial_lse", "out_token_stride", "out_head_stride",
)  # fmt: skip


class Paging(NamedTuple):
    """What an argument block holds of the step's KV format."""

    table_address: int  # 0 for ragged KV
    page_size: int | None
    num_rows: int  # of block-sparse KV; decides how k and v are split in pages


class TraceBuffer(NamedTuple):
    """Where a traced kernel writes: address of the words, and items of a block with room there."""

    address: int
    max_items: int


class Binding:
    """The argument block of one (K, V) pair, and the shapes and strides it was made for.

    Attributes:
        arguments: the block.
        paging: what it holds of the KV format, or None: to be filled.
        parameters: of the variant, that are in it.
        capacity: ragged: KV rows; paged: pages.
        v_offset: bytes from K to V where both are in one tensor.
        k_offset: bytes from the first column of k to what the kernel reads of it (latent rows).
    """

    __slots__ = (
        "_dtype", "_k_shape", "_k_strides", "_v_shape", "_v_strides",
        "arguments", "capacity", "k_offset", "paging", "parameters", "v_offset",
    )  # fmt: skip

    def __init__(self, arguments: Arguments, k: torch.Tensor, v: torch.Tensor | None) -> None:
        self.arguments = arguments
        self.paging: Paging | None = None
        self.parameters: Parameters | None = None
        self.capacity = 0
        self.v_offset = self.k_offset = 0
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


class Merge:
    """The merge kernel that follows an attention kernel which does not merge itself."""

    def __init__(
        self, spec: KernelSpec, shape: BatchShape, index: int, source: KernelSource
    ) -> None:
        self.kernel = source.small(merge_of(spec))
        self._launch = self.kernel.launcher(index).launch
        self._spec = spec
        self._arguments = self.kernel.arguments()
        self._arguments.set(num_kv_heads=shape.num_kv_heads)
        params = self.kernel.generated.params
        rows = FieldWriter(params, _MERGE_ROWS)
        self._pack_rows, self._rows_offset = rows.pack_into, rows.offset
        self._names = params.offsets.keys() - {*_MERGE_ROWS, "num_kv_heads"}  # of the variant
        self._parameters: Parameters | None = None  # that are in the block

    def run(
        self,
        num_blocks: int,
        stream: int,
        out: int,
        lse: int,
        fields: tuple[int, ...],
        parameters: Parameters,
    ) -> None:
        """Launches it for a plan of `num_blocks` thread blocks.

        `fields`: what follows out and lse in its argument block; `parameters`: of the variant.
        """
        if self._parameters is not parameters:
            self._arguments.set(**{name: parameters[name] for name in self._names})
            self._parameters = parameters
        self._pack_rows(self._arguments.view, self._rows_offset, out, lse, *fields)
        grid = merge_grid(self._spec.head_dim_vo, self._spec.tile.q, num_blocks)
        self._launch(grid, stream, self._arguments.address)


class LaunchSet:
    """Compiled and loaded kernels of one spec.

    Args:
        spec: of the attention kernel.
        shape: sizes and options.
        index: GPU.
        constants: of the GPU.
        beside: the kernel runs beside the launch before it, which `launch_first` has launched.
        trace: for a kernel that keeps time of its items.
        source: where kernels come from.
    """

    def __init__(
        self,
        spec: KernelSpec,
        shape: BatchShape,
        index: int,
        constants: Constants,
        *,
        beside: bool = False,
        trace: TraceBuffer | None = None,
        source: KernelSource = COMPILED,
    ) -> None:
        self.spec = spec
        self._trace = trace
        self.cost = cost_of(spec, constants)
        self.kernel = source.attention(spec)
        self.launch = self.kernel.launcher(index).launch
        self._index = index
        self._beside = beside
        self.merge = None if spec.fuses_merge else Merge(spec, shape, index, source)
        self._shape = shape
        self._params = self.kernel.generated.params
        names = tuple(name for name in _ROWS if name in self._params.offsets)
        rows = FieldWriter(self._params, names)
        self.pack_rows, self.rows_offset = rows.pack_into, rows.offset
        self.bindings: dict[tuple[int, int], Binding] = {}
        self._by_shape: dict[tuple[Any, ...], Binding] = {}
        self._geometries: dict[tuple[int, int], Geometry] = {}  # of the last band
        self._encoders: dict[TensorMapSpec, TensorMapEncoder] = {}

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Attention, and the merge if it is a kernel of its own."""
        return (self.kernel,) if self.merge is None else (self.kernel, self.merge.kernel)

    @property
    def launch_first(self) -> Callable[[int, int, int], None]:
        """As `launch`, but starts only when everything before it in the stream has ended: so all
        that starts after it, and does not wait, finds that ended as well."""
        return self.kernel.launcher(self._index, overlap=False).launch

    def geometry(self, band: tuple[int, int]) -> Geometry:
        """What the planner is told of the kernel; `band`: (window_left, window_right) of a step."""
        found = self._geometries.get(band)
        if found is None:
            found = dispatch.geometry(self.spec, self._shape.num_kv_heads, band)
            self._geometries = {band: found}
        return found

    def q_map(self, q: torch.Tensor) -> TensorMapEncoder | None:
        """Of tensors shaped like q; None if the kernel takes q by pointer and strides."""
        if "q_map" not in self._params.offsets:
            return None
        group, rows = self.spec.group, self.spec.tile.q
        box = (min(group, rows), 1) if self.spec.latent else (group, rows // group)
        return self._encoder(q_map(words(q), *box))

    def bind(
        self, k: torch.Tensor, v: torch.Tensor | None, step: AnyStep, paging: Paging, spare: int
    ) -> Binding:
        """An argument block for K and V that were not seen before, or were reshaped.

        Args:
            k, v: as given by the caller.
            step: the planned step.
            paging: of the step.
            spare: an address that stands in for that of an empty tensor.
        """
        key = (k.data_ptr(), 0 if v is None else v.data_ptr())
        layout = (*_layout(k), *(() if v is None else _layout(v)))
        known = self._by_shape.get(layout)
        binding = Binding(self.kernel.arguments(), k, v)
        if known is None or known.paging is not paging or not self._move(binding, known, *key):
            self._fill(binding, self._shape.kv(step.kv_format, k, v), paging, spare)
        if len(self.bindings) >= _MAX_BINDINGS:  # KV that moves from call to call
            self.bindings.clear()
            self._by_shape.clear()
        self.bindings[key] = self._by_shape[layout] = binding
        return binding

    def _move(self, binding: Binding, known: Binding, k_address: int, v_address: int) -> bool:
        """Fills a block for other addresses with what is known of the same shapes and strides.

        Returns:
            False if the addresses need the full checks.
        """
        v_address = v_address or k_address + known.v_offset
        if not k_address or (k_address | v_address) % checks.VECTOR_BYTES:
            return False
        if known.k_offset and v_address != k_address:
            return False
        k_address += known.k_offset
        address = binding.arguments.address
        ctypes.memmove(address, known.arguments.address, self._params.size)
        if "k_map" in self._params.offsets:
            replace_address(address + self._params.offsets["k_map"], k_address)
            replace_address(address + self._params.offsets["v_map"], v_address)
        else:
            binding.arguments.set(k=k_address, v=v_address)
        binding.v_offset, binding.k_offset = known.v_offset, known.k_offset
        binding.paging, binding.capacity = known.paging, known.capacity
        binding.parameters = known.parameters
        return True

    def rebind(
        self,
        binding: Binding,
        k: torch.Tensor,
        v: torch.Tensor | None,
        step: AnyStep,
        paging: Paging,
        spare: int,
    ) -> None:
        """Fills the block anew after a plan with another KV format; arguments as for `bind`."""
        self._fill(binding, self._shape.kv(step.kv_format, k, v), paging, spare)

    def _fill(self, binding: Binding, views: KVViews, paging: Paging, spare: int) -> None:
        """Writes everything of an argument block but rows and parameters."""
        shape, arguments = self._shape, binding.arguments
        first = views.k.data_ptr()
        binding.v_offset = views.v.data_ptr() - first
        binding.capacity = int(views.k.shape[0])
        views = latent_views(views) if self.spec.latent else words_of_kv(views)
        binding.k_offset = views.k.data_ptr() - first
        arguments.set(num_kv_heads=shape.num_kv_heads)
        if views.page_size:
            arguments.set(
                page_table=paging.table_address,
                num_pages=views.num_pages,
                **page_fields(views.page_size),
            )
        if "k_map" in self._params.offsets:
            self._fill_maps(arguments, views, spare)
        else:
            arguments.set(k=views.k.data_ptr(), v=views.v.data_ptr(), **stride_fields(views))
        if "beside" in self._params.offsets:
            arguments.set(beside=int(self._beside))
        if self._trace is not None:
            arguments.set(trace_words=self._trace.address, trace_items=self._trace.max_items)
        binding.paging = paging
        binding.parameters = None

    def _fill_maps(self, arguments: Arguments, views: KVViews, spare: int) -> None:
        box_rows = self.spec.tile.kv
        k, v = views.k, views.v
        if views.page_size:
            box_rows = math.gcd(views.page_size, box_rows)
        else:
            k, v = k.unsqueeze(0), v.unsqueeze(0)
        make_map = kv_map
        if "k_page_groups" in self._params.offsets:
            make_map = grouped_kv_map
            groups = page_groups(k), page_groups(v)
            if not all(groups):  # a box of one group, of K and of V
                box_rows = SWIZZLE_ROWS
            arguments.set(k_page_groups=groups[0], v_page_groups=groups[1])
        if views.page_size:
            arguments.set(box_rows=box_rows)
        for name, view in (("k_map", k), ("v_map", v)):
            target = arguments.address + self._params.offsets[name]
            self._encoder(make_map(view, box_rows)).write(target, view.data_ptr() or spare)

    def _encoder(self, map_spec: TensorMapSpec) -> TensorMapEncoder:
        encoder = self._encoders.get(map_spec)
        if encoder is None:
            if len(self._encoders) >= _MAX_BINDINGS:  # rows of ever new numbers
                self._encoders.clear()
            encoder = self._encoders[map_spec] = TensorMapEncoder(map_spec)
        return encoder


def _layout(x: torch.Tensor) -> tuple[Any, ...]:
    return x.shape, x.stride(), x.dtype, x.get_device()
