"""The CUDA back end of `BatchAttention`: plan to the device, launch attention and merge.

A planned run does no work on lengths: it looks up the argument block of its K and V by address,
writes the addresses of q, out and lse into it (q's inside of a tensor map, where the kernel takes
one), and launches. Shapes and strides are compared with those that were checked before; whatever
differs goes through the full checks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from cute_attn.api import checks, dispatch
from cute_attn.api.kernel import Kernel
from cute_attn.api.launch_set import LaunchSet, Paging
from cute_attn.api.plan_store import PlanStore
from cute_attn.api.shape import BatchShape, refuse_kv
from cute_attn.api.step import Step
from cute_attn.api.stream_order import StreamOrder
from cute_attn.codegen.spec import KernelSpec
from cute_attn.runtime.device import device_info
from cute_attn.runtime.tensor_map import TensorMapEncoder
from cute_attn.scheduler import (
    ARRIVALS_BYTES,
    Geometry,
    Plan,
    WorkspaceSize,
    plan_batch,
    workspace_size,
)

_UNKNOWN: tuple[Any, Any] = (None, None)


class CudaBatch:
    """Plans and runs batches of one `BatchShape` on one GPU.

    Args:
        shape: sizes and options.
        max_requests, max_pages: capacities; None grows with the steps.
        cuda_graph: kernel, grid and addresses stay as the first plan chose them.
        schedule: kernel family to take, or None: chosen by the lengths.
        workspace: (bytes,) uint8 on the device for partial results, or None.

    Attributes:
        plan_of_step: plan of the last step, or None.
    """

    def __init__(
        self,
        shape: BatchShape,
        *,
        max_requests: int | None,
        max_pages: int | None,
        cuda_graph: bool,
        schedule: str | None,
        workspace: torch.Tensor | None,
    ) -> None:
        self._shape = shape
        self._dtype = shape.dtype
        self._max_requests = max_requests
        self._cuda_graph = cuda_graph
        self._schedule = schedule
        self._given_workspace = workspace
        self._index = shape.device.index
        self._info = device_info(self._index)
        self._current_stream = torch._C._cuda_getCurrentRawStream
        self._current_device = torch._C._cuda_getDevice
        self._sets: dict[KernelSpec, LaunchSet] = {}
        self._store = PlanStore(shape.device, max_requests, max_pages, fixed=cuda_graph)
        self._order = StreamOrder(shape.device)
        self._workspace: torch.Tensor | None = None
        self._captured_rows: int | None = None  # query rows that captured graphs hold
        self._captured_kv: int | None = None  # their KV rows or pages
        self.plan_of_step: Plan | None = None
        # Of the last step; run() reads them.
        self._set: LaunchSet
        self._step: Step
        self._paging = Paging(0, None, 0)
        self._partials: tuple[int, ...] = (0, 0)
        self._has_merge = False
        self._q_known = self._out_known = self._lse_known = _UNKNOWN
        self._q_map: TensorMapEncoder | None = None  # of the known q, if its kernel takes one
        self._q_spare = 0  # address that stands in for that of a q without tokens
        self._row_fields: tuple[int, ...] | None = None  # what follows q, out, lse in a block
        self._merge_fields: tuple[int, ...] = ()

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The attention kernel of the last step, and its merge if that is a kernel of its own."""
        return () if self.plan_of_step is None else self._set.kernels

    def workspace_size(self, page_size: int | None) -> WorkspaceSize:
        """What any step needs: the larger of decode and prefill."""
        specs = dispatch.all_specs(self._problem(page_size), self._schedule)
        return max(map(self._size_of, specs), key=lambda size: size.total)

    def plan(self, step: Step) -> None:
        """Plans a step and sends it to the device on the current stream, without waiting."""
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "plan() during CUDA graph capture: plan before the capture, and again before each"
                " replay (the graph reads the plan from a fixed address)"
            )
        with torch.cuda.device(self._index):
            spec = self._spec_of(step)
            self._check_captured(step)
            kernels = self._sets.get(spec)
            if kernels is None:
                self._check_workspace(spec)
                kernels = LaunchSet(spec, self._shape, self._num_blocks(spec), self._index)
                self._sets[spec] = kernels
            plan = plan_batch(
                step.requests,
                Geometry(
                    tile_q=spec.tile.q,
                    tile_kv=spec.tile.kv,
                    group=spec.group,
                    num_kv_heads=self._shape.num_kv_heads,
                    window_left=step.band[0],
                    window_right=step.band[1],
                ),
                kernels.num_blocks,
                max_requests=self._max_requests,
                cost=kernels.cost,
            )
            self._order.before_plan()
            self._partials = self._reserve_workspace(spec)
            self._store.write(plan, step)
        self._set, self._step, self.plan_of_step = kernels, step, plan
        self._has_merge = not spec.fuses_merge and (self._cuda_graph or plan.num_split_tiles > 0)
        sparse_rows = 0 if step.kv_format.has_positions else step.kv_format.num_rows
        paging = Paging(self._store.table_address, step.page_size, sparse_rows)
        if paging != self._paging:  # argument blocks compare it by identity
            self._paging = paging
        self._q_known = self._out_known = self._lse_known = _UNKNOWN
        self._row_fields = None

    def _spec_of(self, step: Step) -> KernelSpec:
        """The step's kernel; in graph mode the one of the first plan."""
        first = self._set.spec if self._cuda_graph and self.plan_of_step is not None else None
        requests = step.requests
        longest = int(requests.q_len.max(initial=0)) * self._shape.group
        problem = self._problem(step.page_size)
        spec = dispatch.choose(
            problem,
            small=longest <= dispatch.SMALL_ROWS,
            long=dispatch.is_long(problem, requests.q_len, requests.kv_len, step.band),
            schedule=self._schedule if first is None else first.schedule,
        )
        if first is not None:
            spec = replace(spec, tile=first.tile)  # whatever the lengths: the kernel is captured
        if first is not None and (spec != first or step.page_size != self._step.page_size):
            raise ValueError(
                f"the step has {_format(step)}, but the first plan of this cuda_graph=True object"
                f" had {_format(self._step)}; make one object per KV format"
            )
        return spec

    def _problem(self, page_size: int | None) -> dispatch.Problem:
        shape = self._shape
        return dispatch.Problem(
            arch=self._info.arch,
            dtype=checks.DTYPE_NAMES[shape.dtype],
            head_dim_qk=shape.head_dim_qk,
            head_dim_vo=shape.head_dim_vo,
            group=shape.group,
            variant=shape.variant,
            page_size=page_size,
        )

    def _num_blocks(self, spec: KernelSpec) -> int:
        return self._info.num_sms * spec.tile.blocks_per_sm

    def _size_of(self, spec: KernelSpec) -> WorkspaceSize:
        return workspace_size(
            num_blocks=self._num_blocks(spec),
            max_requests=self._max_requests or 1,
            tile_q=spec.tile.q,
            head_dim_vo=spec.head_dim_vo,
        )

    def _check_workspace(self, spec: KernelSpec) -> None:
        given, size = self._given_workspace, self._size_of(spec)
        if given is not None and given.numel() < size.total:
            raise ValueError(
                f"workspace has {given.numel()} bytes; {spec.schedule} needs {size.total}"
                " (ask workspace_size() before planning)"
            )

    def _reserve_workspace(self, spec: KernelSpec) -> tuple[int, ...]:
        """Addresses of partial_out and partial_lse, and of arrivals if the kernel counts them."""
        size = self._size_of(spec)
        before = self._workspace
        if self._given_workspace is not None:
            self._workspace = self._given_workspace
        elif before is None or before.numel() < size.total:
            self._workspace = torch.empty(size.total, dtype=torch.uint8, device=self._shape.device)
        assert self._workspace is not None
        if self._workspace is not before:
            self._workspace[:ARRIVALS_BYTES].zero_()  # from now on the kernels keep them at zero
        base = self._workspace.data_ptr()
        arrivals, partial_out, partial_lse = (base + offset for offset in size.offsets)
        if spec.fuses_merge:
            return partial_out, partial_lse, arrivals
        return partial_out, partial_lse

    def _check_captured(self, step: Step) -> None:
        """A replayed graph reads the tensors it was captured with: the step must fit in them."""
        if self._captured_rows is not None and step.q_rows > self._captured_rows:
            raise ValueError(
                f"qo_indptr[-1] is {step.q_rows}, but q had {self._captured_rows} rows when a graph"
                " was captured; capture with as many rows as any step will have"
            )
        if self._captured_kv is not None:
            refuse_kv(step, self._captured_kv)

    # ------------------------------------------------------------------ run

    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor | None,
        out: torch.Tensor | None,
        lse: torch.Tensor | None,
        want_lse: bool,
        scalars: dict[str, float | int],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Launches attention, and the merge if the plan has split tiles."""
        index, kernels = self._index, self._set
        if self._current_device() != index:
            with torch.cuda.device(index):
                return self.run(q, k, v, out, lse, want_lse, scalars)
        shape, strides = self._q_known
        if (
            q.shape != shape
            or q.stride() != strides
            or q.dtype is not self._dtype
            or q.get_device() != index
        ):
            self._shape.check_q(q, self._step.q_rows, padded=self._cuda_graph)
            self._q_map, self._q_spare = kernels.q_map(q), 0 if len(q) else self._partials[0]
            self._q_known, self._row_fields = (q.shape, q.stride()), None
            self._out_known = self._lse_known = _UNKNOWN  # as many rows as q
        if out is None:
            out = self._shape.new_out(q.shape[0])
        shape, strides = self._out_known
        if (
            out.shape != shape
            or out.stride() != strides
            or out.dtype is not self._dtype
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
            binding = kernels.bind(k, v, self._step, self._paging, self._partials[0])
        elif binding.paging is not self._paging:
            kernels.rebind(binding, k, v, self._step, self._paging, self._partials[0])
        if binding.capacity < self._step.kv_needed:
            refuse_kv(self._step, binding.capacity)
        if binding.scalars is not scalars:
            binding.arguments.set(**scalars)
            binding.scalars = scalars

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
            self._before_run_elsewhere()
        if self._cuda_graph:
            self._note_capture(q.shape[0], binding.capacity)
        kernels.launch(kernels.num_blocks, stream, arguments.address)
        if self._has_merge:
            kernels.run_merge(stream, out_address, lse_address, self._merge_fields)
        if other_stream:
            self._order.after_run()
        return out, lse

    def _set_row_fields(self, q: torch.Tensor, out: torch.Tensor) -> tuple[int, ...]:
        plan, out_strides = self._store.plan_address, out.stride()[:2]
        q_strides = q.stride()[:2] if self._q_map is None else ()
        self._row_fields = (plan, *self._partials, *q_strides, *out_strides)
        self._merge_fields = (plan, *self._partials[:2], *out_strides)
        return self._row_fields

    def _before_run_elsewhere(self) -> None:
        assert self._store.uploaded is not None
        self._order.before_run(self._store.uploaded)

    def _note_capture(self, rows: int, capacity: int) -> None:
        """Remembers the smallest tensors that a captured graph holds."""
        if torch.cuda.is_current_stream_capturing():
            before = (self._captured_rows, self._captured_kv)
            self._captured_rows = rows if before[0] is None else min(rows, before[0])
            self._captured_kv = capacity if before[1] is None else min(capacity, before[1])


def _format(step: Step) -> str:
    return "ragged KV" if step.page_size is None else f"pages of {step.page_size} tokens"
