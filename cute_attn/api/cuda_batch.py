"""The CUDA back end of `BatchAttention`: plan to the device, launch attention and merge.

A plan of decodes may also be made on the device (`plan_on_device`).
A step of prefill and decode may be two launches that share the GPU (`scheduler.side_by_side`): this
object then serves the prefill requests on some of the SMs, and one of its own kind the others.

A planned run does no work on lengths: it looks up the argument block of its K and V by address,
writes the addresses of q, out and lse into it (q's inside of a tensor map, where the kernel takes
one), and launches. Shapes and strides are compared with those that were checked before; whatever
differs goes through the full checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from cute_attn.api import checks, dispatch
from cute_attn.api.block_ranges import BlockRanges
from cute_attn.api.captured import Captured
from cute_attn.api.costs import constants_of
from cute_attn.api.device_planner import DevicePlanner, check_device_step
from cute_attn.api.fixed_plans import FixedPlans
from cute_attn.api.kernel import Kernel
from cute_attn.api.kernel_choice import KernelChoice
from cute_attn.api.kernel_source import COMPILED, KernelSource
from cute_attn.api.launch_set import LaunchSet, Paging, TraceBuffer
from cute_attn.api.live_scalars import LiveScalars
from cute_attn.api.parameters import Parameters
from cute_attn.api.partials import PartialsAt, Workspace
from cute_attn.api.plan_store import PlanStore
from cute_attn.api.shape import BatchShape, refuse_kv
from cute_attn.api.side_by_side import Split, divide
from cute_attn.api.step import AnyStep, DeviceStep, Step
from cute_attn.api.stream_order import StreamOrder
from cute_attn.api.tuned import Tuned, tuned_of
from cute_attn.codegen.kernels import range_tables
from cute_attn.codegen.spec import KernelSpec
from cute_attn.formats import KVFormat
from cute_attn.runtime.device import device_info
from cute_attn.runtime.tensor_map import TensorMapEncoder
from cute_attn.scheduler import (
    Constants,
    Plan,
    PlanMemory,
    WorkspaceSize,
    plan_batch,
    workspace_size,
)

_UNKNOWN: tuple[Any, Any] = (None, None)


class _Prepared(NamedTuple):
    """One launch, not on the device yet."""

    kernels: LaunchSet
    plan: Plan


class CudaBatch:
    """Plans and runs batches of one `BatchShape` on one GPU.

    Args:
        shape: sizes and options.
        max_requests, max_pages: capacities; None grows with the steps.
        cuda_graph: kernel, grid and addresses stay as the first plan chose them.
        schedule: kernel family to take, or None: chosen by the lengths.
        batch_invariant: kernels and pieces depend on each request alone.
        workspace: (bytes,) uint8 on the device for partial results, or None.
        launch: 1 for the launch that runs beside another one.
        source: where kernels come from.
        tuning: as `tuned_of` takes it.

    Attributes:
        constants: what steps are planned with.
        plan_of_step: plan of the last step (of this launch); None if there is none, or only the
            device knows it.
    """

    def __init__(
        self,
        shape: BatchShape,
        *,
        max_requests: int | None,
        max_pages: int | None,
        cuda_graph: bool,
        schedule: str | None,
        batch_invariant: bool,
        workspace: torch.Tensor | None,
        costs: str | Path | Constants | None = None,
        launch: int = 0,
        source: KernelSource = COMPILED,
        tuning: str | Path | bool | Tuned | None = False,
    ) -> None:
        self._shape = shape
        self._launch_number = launch
        self._dtype = shape.dtype
        self._max_requests = max_requests
        self._max_pages = max_pages
        self._cuda_graph = cuda_graph
        self._given_workspace = workspace
        self._info = device_info(shape.device.index)
        tuned = tuned_of(self._info, tuning) if source is COMPILED else None
        self._source = source = tuned or source
        source.check_device(self._info.arch, f"GPU {self._info.index} ({self._info.name})")
        self.constants = constants_of(self._info, costs)
        self._choice = KernelChoice(
            shape,
            self._info,
            self.constants,
            schedule=schedule,
            batch_invariant=batch_invariant,
            tuned=tuned,
        )
        self._index = self._info.index
        self._current_stream = torch._C._cuda_getCurrentRawStream
        self._current_device = torch._C._cuda_getDevice
        self._sets: dict[KernelSpec, LaunchSet] = {}
        self._memory = PlanMemory()
        self._store = PlanStore(shape.device, max_requests, max_pages, fixed=cuda_graph)
        self._order = StreamOrder(shape.device)
        self._workspace = Workspace(shape.device, workspace, launch)
        self._fixed: FixedPlans | None = None
        if batch_invariant:
            self._fixed = FixedPlans(shape.device, max_requests, max_pages, cuda_graph=cuda_graph)
        self._captured = Captured()
        self._live: LiveScalars | None = None  # the launch beside another one reads that one's
        if launch == 0 and any(s.live for s in shape.variant.scalars):
            self._live = LiveScalars(shape.variant, shape.device)
        self._frozen = tuple(s.name for s in shape.variant.scalars if not s.live)
        self._planner: DevicePlanner | None = None  # made by the first plan_on_device()
        # The launch beside another one reads what that one's ranges are.
        self._reads_ranges = launch == 0 and bool(range_tables(shape.variant))
        self._ranges: BlockRanges | None = None  # made for the first parameters
        self._planned = False
        self._in_graphs: list[KVFormat] = []  # captured graphs read their tensors
        self.plan_of_step: Plan | None = None
        # Of the last step; run() reads them.
        self._set: LaunchSet
        self._launch: Callable[[int, int, int], None]
        self._num_blocks = 0
        self._after_planner = False  # the launch before the next one may be the planner's
        self._step: AnyStep
        self._decodes: CudaBatch | None = None  # made for the first step of two launches
        self._two_launches = False
        self._paging = Paging(0, None, 0)
        self._partials = PartialsAt(0, 0, 0)
        self._has_merge = False
        self._q_known = self._out_known = self._lse_known = _UNKNOWN
        self._q_map: TensorMapEncoder | None = None  # of the known q, if its kernel takes one
        self._q_spare = 0  # address that stands in for that of a q without tokens
        self._row_fields: tuple[int, ...] | None = None  # what follows q, out, lse in a block
        self._merge_fields: tuple[int, ...] = ()

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The attention kernels of the last step, and a merge if that is a kernel of its own."""
        if not self._planned:
            return ()
        beside = self._decodes.kernels if self._two_launches and self._decodes else ()
        return self._set.kernels + beside

    @property
    def launches(self) -> tuple[CudaBatch, ...]:
        """This object, and the one for the decodes if the last step is two launches."""
        beside = self._decodes.launches if self._two_launches and self._decodes else ()
        return (self, *beside)

    @contextmanager
    def traced(self, trace: TraceBuffer) -> Iterator[None]:
        """Meanwhile run() launches the kernel that keeps time, with the same plan."""
        usual, first = self._set, not self._launch_number
        spec = replace(usual.spec, trace=True)
        kernels = LaunchSet(
            spec,
            self._shape,
            self._index,
            self.constants,
            beside=not first,
            trace=trace,
            source=self._source,
        )
        before = self._launch, self._after_planner
        self._use(kernels, kernels.launch_first if first else kernels.launch)
        self._after_planner = False
        try:
            yield
        finally:
            self._use(usual, before[0])
            self._after_planner = before[1]

    def _use(self, kernels: LaunchSet, launch: Callable[[int, int, int], None]) -> None:
        self._set, self._launch = kernels, launch
        self._q_known = self._out_known = self._lse_known = _UNKNOWN
        self._row_fields = None

    @property
    def grid(self) -> tuple[KernelSpec, int]:
        """Kernel and thread blocks of the last step's launch."""
        return self._set.spec, self._num_blocks

    @property
    def in_turn(self) -> bool:
        """Whether the last step is two launches, one after the other on all SMs."""
        plan = self.plan_of_step
        if not self._two_launches or plan is None:
            return False
        blocks = plan.resident_blocks or plan.layout.num_blocks
        return blocks == self._info.num_sms * self._set.spec.tile.blocks_per_sm

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of the last step's launches."""
        if self.plan_of_step is None:
            return ()
        beside = self._decodes.plans if self._two_launches and self._decodes else ()
        return (self.plan_of_step, *beside)

    def workspace_bytes(self, page_size: int | None) -> int:
        """What any step needs: that of prefill and decode side by side, or the larger of the two
        where there is one launch."""
        specs, beside = self._choice.all_specs(page_size)
        largest = max(self._size_of(spec).total for spec in specs)
        return largest if beside is None else largest + self._size_of(beside).partials

    def plan(self, step: Step) -> None:
        """Plans a step and sends it to the device on the current stream, without waiting."""
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "plan() during CUDA graph capture: plan before the capture, and again before each"
                " replay (the graph reads the plan from a fixed address)"
            )
        with torch.cuda.device(self._index):
            split = self._split(step)
            if split is None:
                self._commit(step, self._prepare(step, self._info.num_sms))
                self._two_launches = False
                return
            # All that can be refused is, before anything of the last plan changes.
            if self._decodes is None:
                self._decodes = self._new_decodes()
            first = self._prepare(split.prefill, split.prefill_sms)
            self._decodes._workspace.before = self._size_of(first.kernels.spec).partials
            others = self._info.num_sms - split.prefill_sms
            second = self._decodes._prepare(split.decode, others or self._info.num_sms)
            self._commit(split.prefill, first, first=True)
            table = self._store.table_address
            self._decodes._commit(split.decode, second, table_address=table)
            self._two_launches = True

    def plan_on_device(self, step: DeviceStep) -> None:
        """Launches the planner on the current stream, for the kernel that the first plan chose."""
        if self._fixed is not None:
            raise ValueError("batch_invariant is True; such steps are planned by plan()")
        kernels, kv = self._set, step.kv_format
        if step.page_size != self._step.page_size:
            raise ValueError(_other_kernel(step, self._step))
        geometry = kernels.geometry(step.band)
        check_device_step(step, geometry, self._num_blocks)
        table = kv.page_table
        capturing = torch.cuda.is_current_stream_capturing()
        if capturing and self._live is not None:
            self._live.check_captured(step.scalars)
        if not capturing:
            self._check_captured(step)
            self._captured.check_table(0 if table is None else table.data_ptr())
        with torch.cuda.device(self._index):
            if self._planner is None:
                arch = dispatch.emitter_arch(self._info.arch, dispatch.AMPERE_DECODE)
                self._planner = DevicePlanner(
                    arch, self._shape.device, self._num_blocks, self._source
                )
            address = self._store.place(self._num_blocks, kv.num_requests, table)
            self._order.before_plan()
            if self._live is not None and not capturing:
                self._live.write(step.scalars)
            stream = self._current_stream(self._index)
            self._planner.plan(step, geometry, kernels.cost, address, stream)
            self._store.placed()
        # A dependent launch would read the plan while it is written.
        self._launch, self._after_planner = kernels.launch_first, True
        self._captured.plans_itself = False
        if capturing:
            self._captured.note_plan(step.band if self._live and self._live.in_band else None)
            self._in_graphs.append(kv)
        self._set_step(step, None, self._store.table_address)

    def take_parameters(self, parameters: Parameters) -> None:
        """Finds room for what is derived from tensors of the variant.

        Raises:
            ValueError: a captured graph holds other tensors.
            RuntimeError: the kernel that derives it is not loaded and a graph is being captured.
        """
        if parameters.tensors and not torch.cuda.is_current_stream_capturing():
            self._captured.check_tensors(parameters)
        if self._live is not None:
            parameters.update(self._live.addresses)
        if not self._reads_ranges:
            return
        with torch.cuda.device(self._index):
            if self._ranges is None:
                arch = dispatch.emitter_arch(self._info.arch, dispatch.AMPERE_DECODE)
                self._ranges = BlockRanges(
                    arch, self._shape.variant, self._shape.device, self._source
                )
            self._ranges.place(parameters)

    def check_plan(self) -> None:
        """Raises what the device found wrong; see `DevicePlanner.check`."""
        if self._planner is not None:
            self._planner.check()

    def _split(self, step: Step) -> Split | None:
        """The step in two launches, if that is better than one, or what graphs have captured."""
        count, most = step.requests.num_requests, self._max_requests
        if most is not None and count > most:
            return None  # to be refused
        if self._cuda_graph and self._fixed is None:
            return None
        split = self._choice.split(step)
        if self._cuda_graph and (self._two_launches if self._planned else split is not None):
            # Whatever the lengths of later steps: on all SMs, one after the other.
            return divide(step, self._shape.group, self._info.num_sms)
        return None if self._cuda_graph else split

    def _new_decodes(self) -> CudaBatch:
        return CudaBatch(
            self._shape,
            max_requests=self._max_requests,
            max_pages=self._max_pages,
            cuda_graph=self._cuda_graph,
            schedule=dispatch.AMPERE_DECODE,
            batch_invariant=self._fixed is not None,
            workspace=self._given_workspace,
            costs=self.constants,
            launch=1,
            source=self._source,
        )

    def _prepare(self, step: Step, num_sms: int) -> _Prepared:
        """Kernel and plan of one launch on `num_sms` SMs."""
        spec = self._spec_of(step, num_sms)
        self._check_captured(step)
        if self._fixed is None:
            self._workspace.check(self._size_of(spec), spec.schedule)
        kernels = self._sets.get(spec)
        if kernels is None:
            beside = self._launch_number > 0
            kernels = LaunchSet(
                spec,
                self._shape,
                self._index,
                self.constants,
                beside=beside,
                source=self._source,
            )
            self._sets[spec] = kernels
        geometry = kernels.geometry(step.band)
        blocks = num_sms * spec.tile.blocks_per_sm
        if self._fixed is not None:
            plan = self._fixed.plan(step, spec, geometry, blocks, kernels.cost)
        else:
            plan = plan_batch(
                step.requests,
                geometry,
                blocks,
                max_requests=self._max_requests,
                cost=kernels.cost,
                visible=step.visible,
                memory=self._memory,
            )
        return _Prepared(kernels, plan)

    def _commit(
        self, step: Step, prepared: _Prepared, *, first: bool = False, table_address: int = 0
    ) -> None:
        """Sends a plan to the device; from now on it is what run() launches.

        Args:
            step: what it serves.
            prepared: of the step.
            first: another launch will run beside it.
            table_address: of a page table that is on the device already, and none in the step.
        """
        kernels, plan = prepared
        spec = kernels.spec
        if self._cuda_graph:
            place = table_address or self._store.table_place(plan, step)
            self._captured.check_table(place)
        self._order.before_plan()
        if self._live is not None:
            self._live.write(step.scalars)
        if self._fixed is None:
            self._partials = self._workspace.reserve(self._size_of(spec))
        else:
            self._partials = self._fixed.commit(plan, step, spec)
        self._store.write(plan, step)
        self._set, self._planned = kernels, True
        self._launch = kernels.launch_first if first else kernels.launch
        self._after_planner = self._captured.plans_itself = False
        self._num_blocks = plan.layout.num_blocks
        self._has_merge = not spec.fuses_merge and (self._cuda_graph or plan.num_split_tiles > 0)
        self._set_step(step, plan, table_address or self._store.table_address)

    def _set_step(self, step: AnyStep, plan: Plan | None, table_address: int) -> None:
        """What run() serves from now on."""
        self._step, self.plan_of_step = step, plan
        sparse_rows = 0 if step.kv_format.has_positions else step.kv_format.num_rows
        paging = Paging(table_address, step.page_size, sparse_rows)
        if paging != self._paging:  # argument blocks compare it by identity
            self._paging = paging
        self._q_known = self._out_known = self._lse_known = _UNKNOWN
        self._row_fields = None

    def _spec_of(self, step: Step, num_sms: int) -> KernelSpec:
        """The step's kernel on so many SMs; in graph mode the one of the first plan."""
        first = self._set.spec if self._cuda_graph and self._planned else None
        if first is None:
            return self._choice.spec_of(step, num_sms)
        if self._fixed is not None and step.requests.most_q_len == 0:
            spec = first
        else:
            spec = self._choice.spec_of(step, num_sms, first.schedule)
        if self._fixed is None:
            spec = replace(spec, tile=first.tile)  # whatever the lengths: the kernel is captured
        if spec != first or step.page_size != self._step.page_size:
            raise ValueError(_other_kernel(step, self._step))
        return spec

    def _size_of(self, spec: KernelSpec) -> WorkspaceSize:
        return workspace_size(
            num_blocks=self._info.num_sms * spec.tile.blocks_per_sm,
            max_requests=self._max_requests or 1,
            tile_q=spec.tile.q,
            head_dim_vo=spec.head_dim_vo,
        )

    # ------------------------------------------------------------------ run

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
        index, kernels = self._index, self._set
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
            self._shape.check_q(q, self._step.q_rows, padded=self._cuda_graph)
            self._q_map, self._q_spare = kernels.q_map(q), 0 if len(q) else self._partials.out
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
            binding = kernels.bind(k, v, self._step, self._paging, self._partials.out)
        elif binding.paging is not self._paging:
            kernels.rebind(binding, k, v, self._step, self._paging, self._partials.out)
        if binding.capacity < self._step.kv_needed:
            refuse_kv(self._step, binding.capacity)
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
            self._before_run_elsewhere()
        if self._cuda_graph and torch.cuda.is_current_stream_capturing():
            table = self._paging.table_address
            kept = self._kept(self._step)
            self._captured.note(q.shape[0], binding.capacity, table, parameters, kept)
        if self._ranges is not None:
            self._ranges.run(parameters, stream)
        self._launch(self._num_blocks, stream, arguments.address)
        if self._after_planner and not other_stream:
            self._launch, self._after_planner = kernels.launch, False
        if self._has_merge:
            fields = self._merge_fields
            blocks = self._num_blocks
            assert kernels.merge is not None
            kernels.merge.run(blocks, stream, out_address, lse_address, fields, parameters)
        if self._two_launches:
            assert self._decodes is not None
            self._decodes.run(q, k, v, out, lse, False, parameters)
        if other_stream:
            self._order.after_run()
        return out, lse

    def _set_row_fields(self, q: torch.Tensor, out: torch.Tensor) -> tuple[int, ...]:
        plan, out_strides = self._store.plan_address, out.stride()[:2]
        q_strides = q.stride()[:2] if self._q_map is None else ()
        partials = self._partials if self._set.spec.fuses_merge else self._partials[:2]
        self._row_fields = (plan, *partials, *q_strides, *out_strides)
        self._merge_fields = (plan, *self._partials[:2], *out_strides)
        return self._row_fields

    def _check_captured(self, step: AnyStep) -> None:
        """Raises ValueError for a step that captured graphs cannot serve."""
        self._captured.check(step)
        self._captured.check_scalars(self._kept(step), step.band)

    def _kept(self, step: AnyStep) -> dict[str, float | int]:
        """Scalars of a step that a captured graph keeps."""
        return {name: step.scalars[name] for name in self._frozen}

    def _before_run_elsewhere(self) -> None:
        assert self._store.uploaded is not None
        self._order.before_run(self._store.uploaded)


def _other_kernel(step: AnyStep, first: AnyStep) -> str:
    if step.page_size == first.page_size:
        return (
            "the step has another kernel than the first plan of this cuda_graph=True object: with"
            " batch_invariant=True make the first plan one of decodes for graphs of decodes, and"
            " one of both for graphs of prefill and decode"
        )
    return (
        f"the step has {_format(step)}, but the first plan of this cuda_graph=True object had"
        f" {_format(first)}; make one object per KV format"
    )


def _format(step: AnyStep) -> str:
    return "ragged KV" if step.page_size is None else f"pages of {step.page_size} tokens"
