"""The launches that `BatchAttention` makes of a step, without a GPU: kernels, grids and plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cute_attn import hopper
from cute_attn.api.dispatch import Problem, choose, costs_of, geometry, is_long, tiles_per_sm
from cute_attn.api.side_by_side import SideBySide
from cute_attn.api.step import Step, make_step
from cute_attn.codegen.spec import E4M3, KernelSpec
from cute_attn.formats import RaggedKV
from cute_attn.scheduler import (
    BUILT_IN,
    Constants,
    CostModel,
    Geometry,
    Launch,
    MeasuredLaunch,
    Plan,
    RequestBatch,
    Timing,
    Visible,
    plan_batch,
)


def loop_rate(spec: KernelSpec) -> float:
    """Of the loop over KV blocks, against that of the same head dims in 16 bits."""
    return hopper.e4m3_rate(spec.head_dim_qk) if spec.dtype == E4M3 else 1.0


def cost_of(spec: KernelSpec, constants: Constants = BUILT_IN) -> CostModel:
    """What plans take a kernel's work to cost."""
    return CostModel.for_kernel(
        spec.head_dim_qk,
        spec.head_dim_vo,
        schedule=costs_of(spec.schedule),
        element_bytes=spec.element_bytes,
        latent=spec.latent,
        rate=loop_rate(spec),
        blocks_per_sm=spec.tile.blocks_per_sm,
        constants=constants,
    )


def timing_of(spec: KernelSpec, constants: Constants = BUILT_IN) -> Timing:
    """How long a kernel's work takes."""
    return Timing.for_kernel(
        spec.head_dim_qk,
        spec.head_dim_vo,
        schedule=costs_of(spec.schedule),
        loader=spec.loader,
        element_bytes=spec.element_bytes,
        latent=spec.latent,
        rate=loop_rate(spec),
        blocks_per_sm=spec.tile.blocks_per_sm,
        constants=constants,
    )


def measured_launch(plan: Plan, spec: KernelSpec) -> MeasuredLaunch:
    """A plan and its kernel, as the fit of constants takes them."""
    return MeasuredLaunch(
        plan,
        spec.schedule,
        spec.loader,
        spec.head_dim_qk,
        spec.head_dim_vo,
        spec.tile.blocks_per_sm,
    )


def explained_launch(plan: Plan, spec: KernelSpec, constants: Constants = BUILT_IN) -> Launch:
    """A plan and its kernel, as `explain` takes them."""
    return Launch(plan, spec.schedule, timing_of(spec, constants))


@dataclass(frozen=True)
class Part:
    """Requests of a step that one launch serves.

    Attributes:
        spec: the kernel.
        requests: lengths.
        geometry: tile shape and band.
        num_blocks: thread blocks of the grid.
        visible: of a mask that empties KV blocks within the band.
    """

    spec: KernelSpec
    requests: RequestBatch
    geometry: Geometry
    num_blocks: int
    visible: Visible | None = None

    def plan(self, constants: Constants = BUILT_IN) -> Plan:
        """The launch's plan."""
        cost = cost_of(self.spec, constants)
        return plan_batch(
            self.requests, self.geometry, self.num_blocks, cost=cost, visible=self.visible
        )


def parts_of(
    q_lens: Sequence[int],
    kv_lens: Sequence[int],
    problem: Problem,
    *,
    num_kv_heads: int,
    num_sms: int,
    scalars: Mapping[str, float | int] | None = None,
    schedule: str | None = None,
    constants: Constants = BUILT_IN,
) -> list[Part]:
    """The launches of a step: one, or two side by side.

    Args:
        q_lens, kv_lens: tokens of each request.
        problem: what the kernels are chosen by.
        num_kv_heads: KV heads.
        num_sms: of the GPU.
        scalars: of the variant; defaults where not given.
        schedule: kernel family; default: chosen by the lengths.
        constants: of the GPU.

    Raises:
        UnsupportedSpecError: no kernel serves it.
    """
    rows, keys = (np.r_[0, np.cumsum(lengths)] for lengths in (q_lens, kv_lens))
    given = None if scalars is None else dict(scalars)
    whole = make_step(rows, RaggedKV(keys), problem.variant, given, torch.device("cpu"))
    return parts_of_step(
        whole,
        problem,
        num_kv_heads=num_kv_heads,
        num_sms=num_sms,
        schedule=schedule,
        constants=constants,
    )


def parts_of_step(
    whole: Step,
    problem: Problem,
    *,
    num_kv_heads: int,
    num_sms: int,
    schedule: str | None = None,
    constants: Constants = BUILT_IN,
) -> list[Part]:
    """The launches of a step; arguments as for `parts_of`. Two of them that each have all SMs are
    one after the other.

    Raises:
        UnsupportedSpecError: no kernel serves it.
    """
    parts: list[tuple[Step, int]] = [(whole, num_sms)]
    if schedule is None:
        split = SideBySide(problem, num_kv_heads, num_sms, constants).split(whole)
        if split is not None:
            sms = split.prefill_sms
            parts = [(split.prefill, sms), (split.decode, num_sms - sms or num_sms)]
    found = []
    for step, sms in parts:
        requests = step.requests
        longest = int(requests.q_len.max(initial=0)) * problem.group
        heads = 1 if problem.per_head else num_kv_heads  # of a request
        spec = choose(
            problem,
            rows=longest,
            tiles_per_sm=tiles_per_sm(requests.q_len, longest, heads, sms),
            long=is_long(problem, requests.q_len, requests.kv_len, step.band),
            schedule=schedule,
        )
        tiles = geometry(spec, num_kv_heads, step.band)
        blocks = sms * spec.tile.blocks_per_sm
        found.append(Part(spec, requests, tiles, blocks, step.visible))
    return found
