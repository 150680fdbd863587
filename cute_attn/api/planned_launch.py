"""One launch of a step on a GPU: its kernel and plan, and where they are on the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from cute_attn.api.captured import Captured
from cute_attn.api.fixed_plans import FixedPlans
from cute_attn.api.kernel_choice import KernelChoice
from cute_attn.api.kernel_source import KernelSource
from cute_attn.api.launch_set import LaunchSet, TraceBuffer
from cute_attn.api.layer_run import LayerRun
from cute_attn.api.partials import Workspace
from cute_attn.api.plan_store import PlanStore
from cute_attn.api.shape import BatchShape
from cute_attn.api.step import AnyStep, DeviceStep, Step
from cute_attn.api.stream_order import StreamOrder
from cute_attn.codegen.spec import KernelSpec
from cute_attn.runtime.device import DeviceInfo
from cute_attn.scheduler import (
    Constants,
    Plan,
    PlanMemory,
    WorkspaceSize,
    plan_batch,
    workspace_size,
)


@dataclass(frozen=True)
class GpuOptions:
    """What all launches of an object on one GPU have in common.

    Attributes:
        shape: sizes and options.
        info: the GPU.
        constants: what steps are planned with.
        source: where kernels come from.
        max_requests, max_pages: capacities; None grows with the steps.
        cuda_graph: kernel, grid and addresses stay as the first plan chose them.
        batch_invariant: kernels and pieces depend on each request alone.
        workspace: (bytes,) uint8 on the device for partial results, or None.
    """

    shape: BatchShape
    info: DeviceInfo
    constants: Constants
    source: KernelSource
    max_requests: int | None
    max_pages: int | None
    cuda_graph: bool
    batch_invariant: bool
    workspace: torch.Tensor | None

    def size_of(self, spec: KernelSpec) -> WorkspaceSize:
        """What a balanced plan of a kernel needs, whatever the lengths."""
        return workspace_size(
            num_blocks=self.info.num_sms * spec.tile.blocks_per_sm,
            max_requests=self.max_requests or 1,
            tile_q=spec.tile.q,
            head_dim_vo=spec.head_dim_vo,
        )


class Prepared(NamedTuple):
    """A launch that is not on the device yet."""

    kernels: LaunchSet
    plan: Plan


class PlannedLaunch:
    """Plans one launch of each step.

    Args:
        options: of the object.
        choice: of kernels.
        order: of plans and runs.
        captured: is told of runs that are captured, or None.
        number: 1 for the launch that runs beside another one.

    Attributes:
        layers: runs the last plan.
        store: where it is on the device.
        workspace: for what its pieces leave to be merged.
        plan_of_step: the last plan; None if there is none, or only the device knows it.
        planned: whether there is a kernel.
    """

    def __init__(
        self,
        options: GpuOptions,
        choice: KernelChoice,
        order: StreamOrder,
        captured: Captured | None,
        number: int = 0,
    ) -> None:
        self._options, self._choice, self._number = options, choice, number
        device, fixed = options.shape.device, options.cuda_graph
        capacities = options.max_requests, options.max_pages
        self.store = PlanStore(device, *capacities, fixed=fixed)
        self.workspace = Workspace(device, options.workspace, number)
        self._fixed = None
        if options.batch_invariant:
            self._fixed = FixedPlans(device, *capacities, cuda_graph=fixed)
        self.layers = LayerRun(
            options.shape, options.info.index, self.store, order, captured, padded=fixed
        )
        self._sets: dict[KernelSpec, LaunchSet] = {}
        self._last: LaunchSet | None = None  # of the last step that was prepared
        self._memory = PlanMemory()
        self.plan_of_step: Plan | None = None
        self.planned = False

    @property
    def grid(self) -> tuple[KernelSpec, int]:
        """Kernel and thread blocks of the last plan."""
        return self.layers.kernels.spec, self.layers.num_blocks

    @contextmanager
    def traced(self, trace: TraceBuffer) -> Iterator[None]:
        """Meanwhile the kernel that keeps time runs, with the same plan."""
        kernels = self._launch_set(replace(self.layers.kernels.spec, trace=True), trace)
        with self.layers.with_kernels(kernels, first=not self._number):
            yield

    def prepare(self, step: Step, num_sms: int) -> Prepared:
        """Kernel and plan on so many SMs.

        Raises:
            UnsupportedSpecError: there is no kernel.
            ValueError: a capacity is exceeded, or captured graphs have another kernel.
        """
        options, spec = self._options, self._spec_of(step, num_sms)
        if self._fixed is None:
            self.workspace.check(options.size_of(spec), spec.schedule)
        kernels = self._last
        if kernels is None or kernels.spec is not spec:  # quicker than a look at all its fields
            kernels = self._sets.get(spec)
            if kernels is None:
                kernels = self._sets[spec] = self._launch_set(spec)
            self._last = kernels
        geometry = kernels.geometry(step.band)
        blocks = num_sms * spec.tile.blocks_per_sm
        if self._fixed is not None:
            plan = self._fixed.plan(step, spec, geometry, blocks, kernels.cost)
        else:
            plan = plan_batch(
                step.requests,
                geometry,
                blocks,
                max_requests=options.max_requests,
                cost=kernels.cost,
                visible=step.visible,
                memory=self._memory,
            )
        return Prepared(kernels, plan)

    def commit(
        self, step: Step, prepared: Prepared, *, first: bool = False, table_address: int = 0
    ) -> None:
        """Sends a plan to the device; from now on it is what `layers` runs.

        Args:
            step: what it serves.
            prepared: of the step.
            first: another launch will run beside it.
            table_address: of a page table that is on the device already, and none in the step.
        """
        kernels, plan = prepared
        spec = kernels.spec
        if self._fixed is None:
            partials = self.workspace.reserve(self._options.size_of(spec))
        else:
            partials = self._fixed.commit(plan, step, spec)
        self.store.write(plan, step)
        merge = not spec.fuses_merge and (self._options.cuda_graph or plan.num_split_tiles > 0)
        self.layers.launches(kernels, plan.layout.num_blocks, partials, merge=merge, first=first)
        self.layers.serves(step, table_address or self.store.table_address)
        self.plan_of_step, self.planned = plan, True

    def commit_on_device(self, step: DeviceStep) -> None:
        """A kernel on the current stream has written the plan to its place in the store."""
        self.store.placed()
        self.layers.follows_planner()
        self.layers.serves(step, self.store.table_address)
        self.plan_of_step = None

    def check_kv_format(self, step: AnyStep) -> None:
        """Raises ValueError for another kind of pages than that of the last step."""
        first = self.layers.step.kv_kind
        if step.kv_kind != first:
            raise ValueError(
                f"the step has {step.kv_kind}, but the first plan of this cuda_graph=True object"
                f" had {first}; make one object per KV format"
            )

    def _launch_set(self, spec: KernelSpec, trace: TraceBuffer | None = None) -> LaunchSet:
        options = self._options
        return LaunchSet(
            spec,
            options.shape,
            options.info.index,
            options.constants,
            beside=self._number > 0,
            trace=trace,
            source=options.source,
        )

    def _spec_of(self, step: Step, num_sms: int) -> KernelSpec:
        """The step's kernel on so many SMs; in graph mode the one of the first plan."""
        if not (self._options.cuda_graph and self.planned):
            return self._choice.spec_of(step, num_sms)
        first = self.layers.kernels.spec
        if self._fixed is not None and step.requests.most_q_len == 0:
            spec = first
        else:
            spec = self._choice.spec_of(step, num_sms, first.schedule)
        if self._fixed is None:
            spec = replace(spec, tile=first.tile)  # whatever the lengths: the kernel is captured
        self.check_kv_format(step)
        if spec != first:
            raise ValueError(
                "the step has another kernel than the first plan of this cuda_graph=True object:"
                " with batch_invariant=True make the first plan one of decodes for graphs of"
                " decodes, and one of both for graphs of prefill and decode"
            )
        return spec
