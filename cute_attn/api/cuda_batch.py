"""The CUDA back end of `BatchAttention`: plan to the device, launch attention and merge.

A plan of decodes may also be made on the device (`plan_on_device`).
A step of prefill and decode may be two launches that share the GPU (`scheduler.side_by_side`): one
then serves the prefill requests on some of the SMs, and another one of the same kind the others.
"""

from __future__ import annotations

from pathlib import Path

import torch

from cute_attn.api import dispatch
from cute_attn.api.block_ranges import BlockRanges
from cute_attn.api.captured import Captured
from cute_attn.api.costs import constants_of
from cute_attn.api.device_planner import DevicePlanner, check_device_step
from cute_attn.api.heads_apart import heads_apart
from cute_attn.api.kernel import Kernel
from cute_attn.api.kernel_choice import KernelChoice
from cute_attn.api.kernel_source import COMPILED, Compiled, KernelSource
from cute_attn.api.launches import explained_launch
from cute_attn.api.live_scalars import LiveScalars
from cute_attn.api.parameters import Parameters
from cute_attn.api.planned_launch import GpuOptions, PlannedLaunch, Prepared
from cute_attn.api.shape import BatchShape
from cute_attn.api.side_by_side import Split, divide
from cute_attn.api.step import DeviceStep, Step
from cute_attn.api.stream_order import StreamOrder
from cute_attn.api.tuned import Tuned, tuned_of
from cute_attn.codegen.kernels import range_tables
from cute_attn.codegen.spec import PER_HEAD
from cute_attn.formats import DeviceKV
from cute_attn.runtime.device import device_info
from cute_attn.scheduler import Constants, Explanation, Plan, explain


class CudaBatch:
    """Plans and runs batches of one `BatchShape` on one GPU.

    Args:
        shape: sizes and options.
        max_requests, max_pages: capacities; None grows with the steps.
        cuda_graph: kernel, grid and addresses stay as the first plan chose them.
        schedule: kernel family to take, or None: chosen by the lengths.
        batch_invariant: kernels and pieces depend on each request alone.
        workspace: (bytes,) uint8 on the device for partial results, or None.
        costs: as `constants_of` takes them.
        source: where kernels come from.
        tuning: as `tuned_of` takes it.

    Attributes:
        constants: what steps are planned with.
        run: `LayerRun.run` of the last step, without a call in between.
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
        source: KernelSource = COMPILED,
        tuning: str | Path | bool | Tuned | None = False,
    ) -> None:
        info = self._info = device_info(shape.device.index)
        tuned = tuned_of(info, tuning) if source is COMPILED else None
        source = tuned or source
        source.check_device(info.arch, f"GPU {info.index} ({info.name})")
        self.constants = constants_of(info, costs)
        self._shape = shape
        self._options = GpuOptions(
            shape=shape,
            info=info,
            constants=self.constants,
            source=source,
            max_requests=max_requests,
            max_pages=max_pages,
            cuda_graph=cuda_graph,
            batch_invariant=batch_invariant,
            workspace=workspace,
        )
        self._choice = self._kernel_choice(schedule, tuned)
        self._order = StreamOrder(shape.device)
        self._captured = Captured(shape.variant)
        noting = self._captured if cuda_graph else None
        self._first = PlannedLaunch(self._options, self._choice, self._order, noting)
        self._decodes: PlannedLaunch | None = None  # made for the first step of two launches
        self.run = self._first.layers.run
        self._live: LiveScalars | None = None
        if any(s.live for s in shape.variant.scalars):
            self._live = LiveScalars(shape.variant, shape.device)
        self._planner: DevicePlanner | None = None  # made by the first plan_on_device()
        self._in_graphs: list[DeviceKV] = []  # captured graphs read their tensors
        self._reads_ranges = bool(range_tables(shape.variant))
        # Kernels of graphs stay as they are, bundles have none for it, nor have users.
        compiled = isinstance(source, Compiled) and schedule in (None, *PER_HEAD)
        self._may_part_heads = compiled and not (cuda_graph or batch_invariant)

    @property
    def launches(self) -> tuple[PlannedLaunch, ...]:
        """Of the last step: one, or that of the prefill and that of the decodes."""
        if not self._first.planned:
            return ()
        if not self._two_launches:
            return (self._first,)
        assert self._decodes is not None
        return self._first, self._decodes

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The attention kernels of the last step, and a merge if that is a kernel of its own."""
        return tuple(kernel for one in self.launches for kernel in one.layers.kernels.kernels)

    @property
    def plan_of_step(self) -> Plan | None:
        """The plan of the last step, of its first launch; None if there is none, or only the device
        knows it."""
        return self._first.plan_of_step

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of the last step's launches."""
        plans = (one.plan_of_step for one in self.launches)
        return tuple(plan for plan in plans if plan is not None)

    def explain(self) -> Explanation:
        """Of the last step, planned on the host."""
        launches = (
            explained_launch(plan, one.grid[0], self.constants)
            for plan, one in zip(self.plans, self.launches, strict=True)
        )
        return explain(*launches, in_turn=self._in_turn)

    def workspace_bytes(self, page_size: int | None) -> int:
        """What any step needs: that of prefill and decode side by side, or the larger of the two
        where there is one launch."""
        specs, beside = self._choice.all_specs(page_size)
        size_of = self._options.size_of
        largest = max(size_of(spec).total for spec in specs)
        return largest if beside is None else largest + size_of(beside).partials

    def plan(self, step: Step) -> None:
        """Plans a step and sends it to the device on the current stream, without waiting."""
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "plan() during CUDA graph capture: plan before the capture, and again before each"
                " replay (the graph reads the plan from a fixed address)"
            )
        first, all_sms = self._first, self._info.num_sms
        if self._may_part_heads:
            shape, most = self._shape, self._options.max_requests
            step = heads_apart(step, shape, self.constants, most) or step
        with torch.cuda.device(self._info.index):
            # All that can be refused is, before anything of the last plan changes.
            split = self._split(step)
            self._captured.check(step)
            if split is None:
                prepared = first.prepare(step, all_sms)
                self._before_commit(step, prepared)
                first.commit(step, prepared)
                first.layers.beside = None
                return
            if self._decodes is None:
                self._decodes = self._new_decodes()
            decodes = self._decodes
            prepared = first.prepare(split.prefill, split.prefill_sms)
            decodes.workspace.before = self._options.size_of(prepared.kernels.spec).partials
            beside = decodes.prepare(split.decode, all_sms - split.prefill_sms or all_sms)
            self._before_commit(split.prefill, prepared)
            first.commit(split.prefill, prepared, first=True)
            decodes.commit(split.decode, beside, table_address=first.store.table_address)
            first.layers.beside = decodes.layers

    def plan_on_device(self, step: DeviceStep) -> None:
        """Launches the planner on the current stream, for the kernel that the first plan chose."""
        if self._options.batch_invariant:
            raise ValueError("batch_invariant is True; such steps are planned by plan()")
        launch, kernels, kv = self._first, self._first.layers.kernels, step.kv_format
        launch.check_kv_format(step)
        geometry, num_blocks = kernels.geometry(step.band), launch.layers.num_blocks
        check_device_step(step, geometry, num_blocks)
        table = kv.page_table
        capturing = torch.cuda.is_current_stream_capturing()
        if capturing and self._live is not None:
            self._live.check_captured(step.scalars)
        if not capturing:
            self._captured.check(step)
            self._captured.check_table(0 if table is None else table.data_ptr())
        with torch.cuda.device(self._info.index):
            if self._planner is None:
                self._planner = DevicePlanner(
                    self._small_arch,
                    self._shape.device,
                    num_blocks,
                    self._options.source,
                    per_head=step.kv_kind.per_head,
                )
            address = launch.store.place(num_blocks, kv.num_requests, table)
            self._order.before_plan()
            if self._live is not None and not capturing:
                self._live.write(step.scalars)
            stream = torch._C._cuda_getCurrentRawStream(self._info.index)
            self._planner.plan(step, geometry, kernels.cost, address, stream)
            launch.commit_on_device(step)
        self._captured.plans_itself = False
        if capturing:
            self._captured.note_plan(step.band if self._live and self._live.in_band else None)
            self._in_graphs.append(kv)

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
        layers, shape = self._first.layers, self._shape
        with torch.cuda.device(self._info.index):
            if layers.ranges is None:
                layers.ranges = BlockRanges(
                    self._small_arch, shape.variant, shape.device, self._options.source
                )
            layers.ranges.place(parameters)

    def check_plan(self) -> None:
        """Raises what the device found wrong; see `DevicePlanner.check`."""
        if self._planner is not None:
            self._planner.check()

    @property
    def _two_launches(self) -> bool:
        return self._first.layers.beside is not None

    @property
    def _in_turn(self) -> bool:
        """Whether the last step is two launches, one after the other on all SMs."""
        plan = self.plan_of_step
        if not self._two_launches or plan is None:
            return False
        blocks = plan.resident_blocks or plan.layout.num_blocks
        return blocks == self._info.num_sms * self._first.grid[0].tile.blocks_per_sm

    @property
    def _small_arch(self) -> str:
        """What kernels that plan and look for ranges are compiled for."""
        return dispatch.emitter_arch(self._info.arch, dispatch.AMPERE_DECODE)

    def _kernel_choice(self, schedule: str | None, tuned: Tuned | None = None) -> KernelChoice:
        return KernelChoice(
            self._shape,
            self._info,
            self.constants,
            schedule=schedule,
            batch_invariant=self._options.batch_invariant,
            tuned=tuned,
        )

    def _new_decodes(self) -> PlannedLaunch:
        """The launch beside the first one, which notes and derives all that both need."""
        choice = self._kernel_choice(dispatch.AMPERE_DECODE)
        return PlannedLaunch(self._options, choice, self._order, None, number=1)

    def _split(self, step: Step) -> Split | None:
        """The step in two launches, if that is better than one, or what graphs have captured."""
        options, most = self._options, self._options.max_requests
        if most is not None and step.requests.num_requests > most:
            return None  # to be refused
        if options.cuda_graph and not options.batch_invariant:
            return None
        split = self._choice.split(step)
        if not options.cuda_graph:
            return split
        if self._two_launches if self._first.planned else split is not None:
            # Whatever the lengths of later steps: on all SMs, one after the other.
            return divide(step, self._shape.group, self._info.num_sms)
        return None

    def _before_commit(self, step: Step, prepared: Prepared) -> None:
        """The last check; then the current stream waits for whatever reads the last plan."""
        if self._options.cuda_graph:
            self._captured.check_table(self._first.store.table_place(prepared.plan, step))
            self._captured.plans_itself = False
        self._order.before_plan()
        if self._live is not None:
            self._live.write(step.scalars)
