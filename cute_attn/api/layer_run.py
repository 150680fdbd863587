"""A planned launch, run for layer after layer: the host time that every layer pays.

A run does no work on lengths: it looks up the argument block of its K and V by address, writes the
addresses of q, out and lse into it (q's inside of a tensor map, where the kernel takes one), and
launches. Shapes and strides are compared with those that were checked before; whatever differs goes
through the full checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from cute_attn.api import checks
from cute_attn.api.block_ranges import BlockRanges
from cute_attn.api.captured import Captured
from cute_attn.api.launch_set import LaunchSet, Paging
from cute_attn.api.parameters import Parameters
from cute_attn.api.partials import PartialsAt
from cute_attn.api.plan_store import PlanStore
from cute_attn.api.shape import BatchShape, refuse_kv
from cute_attn.api.step import AnyStep
from cute_attn.api.stream_order import StreamOrder
from cute_attn.api.words import words
from cute_attn.runtime.tensor_map import TensorMapEncoder

_UNKNOWN: tuple[Any, Any] = (None, None)
_OWN: tuple[Any, Any] = ("own", None)
"""Of an `out` that run() makes, for the q that is known: it fits and is contiguous."""


class LayerRun:
    """Runs what `launches` and `serves` have told last.

    Args:
        shape: sizes and options.
        index: GPU.
        store: where plan and page table are.
        order: of plans and runs.
        captured: is told of runs that are captured; None: nobody has to be.
        padded: q may have more rows than planned.

    Attributes:
        kernels: of the launch.
        num_blocks: its thread blocks.
        step: what is run.
        ranges: what is derived from tensors of the variant before the launch, or None.
        beside: the launch that runs beside this one, or None.
    """

    def __init__(
        self,
        shape: BatchShape,
        index: int,
        store: PlanStore,
        order: StreamOrder,
        captured: Captured | None,
        *,
        padded: bool,
    ) -> None:
        self._shape, self._dtype, self._index = shape, shape.dtype, index
        self._out_dtype = shape.out_dtype
        self._store, self._order, self._captured = store, order, captured
        self._padded = padded
        self._current_stream = torch._C._cuda_getCurrentRawStream
        self._current_device = torch._C._cuda_getDevice
        self.kernels: LaunchSet
        self.step: AnyStep
        self.num_blocks = 0
        self.ranges: BlockRanges | None = None
        self.beside: LayerRun | None = None
        self._launch: Callable[[int, int, int], None]
        self._after_planner = False  # the launch before the next one may be the planner's
        self._partials = PartialsAt(0, 0, 0)
        self._paging = Paging(0, None, 0)
        self._has_merge = False
        self._q_map: TensorMapEncoder | None = None  # of the known q, if its kernel takes one
        self._q_spare = 0  # address that stands in for that of a q without tokens
        self._q_known = self._out_known = self._lse_known = _UNKNOWN
        self._row_fields: tuple[int, ...] | None = None  # what follows q, out, lse in a block
        self._merge_fields: tuple[int, ...] = ()

    def launches(
        self, kernels: LaunchSet, num_blocks: int, partials: PartialsAt, *, merge: bool, first: bool
    ) -> None:
        """What is launched from now on.

        Args:
            kernels: attention, and its merge if it has one.
            num_blocks: thread blocks of the plan.
            partials: memory for what is merged.
            merge: whether the merge kernel is launched.
            first: another launch will run beside it.
        """
        self.num_blocks, self._partials, self._has_merge = num_blocks, partials, merge
        self._take(kernels, first=first)

    def follows_planner(self) -> None:
        """The plan is made by a kernel on the stream: from now on the same kernels run it."""
        # A dependent launch would read the plan while it is written.
        self._take(self.kernels, first=True)
        self._after_planner = True

    @contextmanager
    def with_kernels(self, kernels: LaunchSet, *, first: bool) -> Iterator[None]:
        """Meanwhile other kernels of the same plan are launched; `first` as for `launches`."""
        usual = self.kernels, self._launch, self._after_planner
        self._take(kernels, first=first)
        try:
            yield
        finally:
            self.kernels, self._launch, self._after_planner = usual
            self._forget_rows()

    def serves(self, step: AnyStep, table_address: int) -> None:
        """The step that is run from now on; its page table is at this address (0: ragged KV)."""
        self.step = step
        sparse_rows = 0 if step.kv_format.has_positions else step.kv_format.num_rows
        paging = Paging(table_address, step.page_size, sparse_rows)
        if paging != self._paging:  # argument blocks compare it by identity
            self._paging = paging
        self._forget_rows()

    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor | None,
        out: torch.Tensor | None,
        lse: torch.Tensor | None,
        want_lse: bool,
        parameters: Parameters,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Launches what the plan says: attention, maybe in two parts, or attention and a merge."""
        index, kernels = self._index, self.kernels
        if self._current_device() != index:
            with torch.cuda.device(index):
                return self.run(q, k, v, out, lse, want_lse, parameters)
        shape, strides = self._q_known
        if (
            q.shape != shape
            or q.stride() != strides
            or q.dtype is not self._dtype
            or q.get_device() != index
        ):
            self._shape.check_q(q, self.step.q_rows, padded=self._padded)
            self._q_map, self._q_spare = kernels.q_map(q), 0 if len(q) else self._partials.out
            self._q_known, self._row_fields = (q.shape, q.stride()), None
            self._out_known = self._lse_known = _UNKNOWN  # as many rows as q
        shape, strides = self._out_known
        if out is None:
            out = self._shape.new_out(q.shape[0])
            if self._out_known is not _OWN:
                self._out_known, self._row_fields = _OWN, None
        elif (
            out.shape != shape
            or out.stride() != strides
            or out.dtype is not self._out_dtype
            or out.get_device() != index
        ):
            self._shape.check_out(out, q.shape[0])
            self._out_known, self._row_fields = (out.shape, out.stride()), None
        lse_address = 0
        if lse is not None:
            shape, strides = self._lse_known
            if (
                lse.shape != shape
                or lse.stride() != strides
                or lse.dtype is not torch.float32
                or lse.get_device() != index
            ):
                self._shape.check_lse(lse, q.shape[0])
                self._lse_known = (lse.shape, lse.stride())
            lse_address = lse.data_ptr()
        elif want_lse:
            lse = self._shape.new_lse(q.shape[0])
            lse_address = lse.data_ptr()

        binding = kernels.bindings.get((k.data_ptr(), 0 if v is None else v.data_ptr()))
        if binding is None or not binding.fits(k, v):
            binding = kernels.bind(k, v, self.step, self._paging, self._partials.out)
        elif binding.paging is not self._paging:
            kernels.rebind(binding, k, v, self.step, self._paging, self._partials.out)
        if binding.capacity < self.step.kv_needed:
            refuse_kv(self.step, binding.capacity)
        if binding.parameters is not parameters:
            binding.arguments.set(**parameters)
            binding.parameters = parameters

        q_address, out_address = q.data_ptr(), out.data_ptr()
        if (q_address | out_address) & (checks.VECTOR_BYTES - 1):
            checks.vector_rows("q", q)
            checks.vector_rows("out", out)
        fields = self._row_fields
        if fields is None:
            fields = self._set_row_fields(q, out)
        arguments, q_map = binding.arguments, self._q_map
        q_field = q_address if q_map is None else q_map.map_of(self._q_spare or q_address)
        kernels.pack_rows(
            arguments.view, kernels.rows_offset, q_field, out_address, lse_address, *fields
        )
        stream = self._current_stream(index)
        other_stream = stream != self._order.plan_stream
        if other_stream:
            assert self._store.uploaded is not None
            self._order.before_run(self._store.uploaded)
        if self._captured is not None and torch.cuda.is_current_stream_capturing():
            table = self._paging.table_address
            self._captured.note(self.step, q.shape[0], binding.capacity, table, parameters)
        if self.ranges is not None:
            self.ranges.run(parameters, stream)
        self._launch(self.num_blocks, stream, arguments.address)
        if self._after_planner and not other_stream:
            self._launch, self._after_planner = kernels.launch, False
        if self._has_merge:
            fields = self._merge_fields
            assert kernels.merge is not None
            kernels.merge.run(self.num_blocks, stream, out_address, lse_address, fields, parameters)
        if self.beside is not None:
            self.beside.run(q, k, v, out, lse, False, parameters)
        if other_stream:
            self._order.after_run()
        return out, lse

    def _take(self, kernels: LaunchSet, *, first: bool) -> None:
        self.kernels, self._after_planner = kernels, False
        self._launch = kernels.launch_first if first else kernels.launch
        self._forget_rows()

    def _forget_rows(self) -> None:
        """What is known of q, out and lse was checked against another plan."""
        self._q_known = self._out_known = self._lse_known = _UNKNOWN
        self._row_fields = None

    def _set_row_fields(self, q: torch.Tensor, out: torch.Tensor) -> tuple[int, ...]:
        plan, out_strides = self._store.plan_address, out.stride()[:2]
        q_strides = words(q).stride()[:2] if self._q_map is None else ()
        partials = self._partials if self.kernels.spec.fuses_merge else self._partials[:2]
        self._row_fields = (plan, *partials, *q_strides, *out_strides)
        self._merge_fields = (plan, *self._partials[:2], *out_strides)
        return self._row_fields
