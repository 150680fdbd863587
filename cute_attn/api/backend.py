"""What plans and runs the steps of a `BatchAttention`: a GPU, or the executor on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch

from cute_attn.api.cpu_batch import CpuBatch
from cute_attn.api.cuda_batch import CudaBatch
from cute_attn.api.kernel import Kernel
from cute_attn.api.kernel_source import COMPILED, KernelSource
from cute_attn.api.parameters import Parameters
from cute_attn.api.partials import check_workspace
from cute_attn.api.planned_launch import PlannedLaunch
from cute_attn.api.shape import BatchShape
from cute_attn.api.step import DeviceStep, Step
from cute_attn.api.tuned import Tuned, check_given
from cute_attn.scheduler import Constants, Explanation, Plan


class Backend(Protocol):
    """Steps and parameters are checked before they come here; tensors of runs are not.

    Attributes:
        constants: of the device.
    """

    constants: Constants

    @property
    def plan_of_step(self) -> Plan | None:
        """See `BatchAttention.last_plan`."""

    @property
    def plans(self) -> tuple[Plan, ...]:
        """See `BatchAttention.plans`."""

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """See `BatchAttention.kernels`."""

    @property
    def launches(self) -> tuple[PlannedLaunch, ...]:
        """Those on a GPU of the last step."""

    def explain(self) -> Explanation:
        """Of the last step, planned on the host."""

    def workspace_bytes(self, page_size: int | None) -> int:
        """What any step needs."""

    def plan(self, step: Step) -> None:
        """What run() launches from now on."""

    def plan_on_device(self, step: DeviceStep) -> None:
        """As plan(), of lengths that are on the device."""

    def take_parameters(self, parameters: Parameters) -> None:
        """Before parameters are run with for the first time."""

    def check_plan(self) -> None:
        """See `BatchAttention.check_plan`."""

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
        """Checks the tensors and runs the last step: out, and lse if it is given or wanted."""


def make_backend(
    shape: BatchShape,
    *,
    max_requests: int | None,
    max_pages: int | None,
    cuda_graph: bool,
    schedule: str | None,
    batch_invariant: bool,
    workspace: torch.Tensor | None,
    costs: str | Path | Constants | None,
    bundle: KernelSource | None,
    tuning: str | Path | bool | Tuned | None,
) -> Backend:
    """The back end of the shape's device; arguments as for `BatchAttention`.

    Raises:
        TypeError, ValueError: an option does not go with the device, or with another one.
    """
    on_cpu = shape.device.type == "cpu"
    if workspace is not None:
        if batch_invariant:
            raise ValueError(
                "workspace is given and batch_invariant is True; how much such plans need"
                " depends on the lengths: it takes None"
            )
        check_workspace(workspace, shape.device)
    if on_cpu:
        _refuse(shape, "costs", costs, "the executor has none")
        _refuse(shape, "bundle", bundle, "a bundle holds code of GPUs")
    check_given(
        tuning,
        schedule=schedule,
        batch_invariant=batch_invariant,
        bundle=bundle,
        device=shape.device if on_cpu else None,
    )
    if on_cpu:
        return CpuBatch(
            shape,
            max_requests=max_requests,
            cuda_graph=cuda_graph,
            batch_invariant=batch_invariant,
        )
    return CudaBatch(
        shape,
        max_requests=max_requests,
        max_pages=max_pages,
        cuda_graph=cuda_graph,
        schedule=schedule,
        batch_invariant=batch_invariant,
        workspace=workspace,
        costs=costs,
        source=COMPILED if bundle is None else bundle,
        tuning=tuning,
    )


def _refuse(shape: BatchShape, name: str, value: Any, why: str) -> None:
    if value is not None:
        raise ValueError(
            f"{name} is {value!r} and device is {shape.device}: {why}; there it takes None"
        )
