"""The CPU back end of `BatchAttention`: the same plan, run by the reference executor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from cute_attn.api.kernel import Kernel
from cute_attn.api.parameters import Parameters
from cute_attn.api.planned_launch import PlannedLaunch
from cute_attn.api.shape import BatchShape, refuse_kv
from cute_attn.api.step import DeviceStep, Step, make_step
from cute_attn.reference import execute
from cute_attn.scheduler import (
    BUILT_IN,
    DEFAULT_COST,
    Explanation,
    Geometry,
    Launch,
    Plan,
    explain,
    plan_batch,
    plan_fixed_pieces,
)

_NUM_BLOCKS = 8
_TILE_KV = 64
_DECODE_ROWS, _PREFILL_ROWS = 16, 64


class CpuBatch:
    """Plans and runs batches of one `BatchShape` on the CPU.

    Args:
        shape: sizes and options.
        max_requests: capacity, or None.
        cuda_graph: True lets q have more rows than planned, as on a GPU.
        batch_invariant: tiles, and where they are cut, depend on each request alone.

    Attributes:
        constants: those of an H200: the executor has none.
        plan_of_step: plan of the last step, or None.
    """

    def __init__(
        self,
        shape: BatchShape,
        *,
        max_requests: int | None,
        cuda_graph: bool,
        batch_invariant: bool,
    ) -> None:
        self.constants = BUILT_IN
        self._shape = shape
        self._max_requests = max_requests
        self._padded = cuda_graph
        self._batch_invariant = batch_invariant
        values = 0 if shape.is_latent else shape.head_dim_vo
        key_bytes = (shape.head_dim_qk + values) * shape.dtype.itemsize
        self._cost = replace(DEFAULT_COST, key_bytes=key_bytes)
        self._step: Step
        self.plan_of_step: Plan | None = None

    @property
    def plans(self) -> tuple[Plan, ...]:
        """As on a GPU."""
        return () if self.plan_of_step is None else (self.plan_of_step,)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """There are none."""
        return ()

    @property
    def launches(self) -> tuple[PlannedLaunch, ...]:
        """There are none."""
        return ()

    def explain(self) -> Explanation:
        """How the work of the executor would be spread."""
        return explain(*(Launch(plan, "CPU executor") for plan in self.plans))

    def workspace_bytes(self, page_size: int | None) -> int:
        """None is needed."""
        return 0

    def plan(self, step: Step) -> None:
        """Plans a step for a grid of a few blocks."""
        shape, requests = self._shape, step.requests
        longest = requests.most_q_len * shape.group
        few = longest <= _DECODE_ROWS and not self._batch_invariant
        geometry = Geometry(
            tile_q=_DECODE_ROWS if few else _PREFILL_ROWS,
            tile_kv=_TILE_KV,
            group=shape.group,
            num_kv_heads=1 if step.kv_kind.per_head else shape.num_kv_heads,
            window_left=step.band[0],
            window_right=step.band[1],
            heads_in_ids=step.kv_format.heads_in_ids,
        )
        most, cost = self._max_requests, self._cost
        if self._batch_invariant:
            self.plan_of_step = plan_fixed_pieces(
                requests, geometry, _NUM_BLOCKS, in_kernel=True, max_requests=most, cost=cost
            )
        else:
            self.plan_of_step = plan_batch(
                requests,
                geometry,
                _NUM_BLOCKS,
                max_requests=most,
                cost=cost,
                visible=step.visible,
            )
        self._step = step

    def plan_on_device(self, step: DeviceStep) -> None:
        """As plan(); what a GPU would find wrong with the lengths is raised here."""
        shape, rows = self._shape, step.q_len * self._shape.group
        if self._batch_invariant:
            raise ValueError("batch_invariant is True; such steps are planned by plan()")
        if rows > _PREFILL_ROWS:
            raise ValueError(
                f"q_len is {step.q_len}, which makes {rows} packed query rows (group"
                f" {shape.group}), but a tile has {_PREFILL_ROWS}; use plan() for such a step"
            )
        count = step.kv_format.num_requests // max(step.kv_format.heads_in_ids, 1)
        qo_indptr = step.q_len * np.arange(count + 1)
        kv_format = step.kv_format.on_host()
        scalars = step.scalars
        self.plan(make_step(qo_indptr, kv_format, shape.variant, scalars, shape.device))

    def take_parameters(self, parameters: Parameters) -> None:
        """There are no graphs that could hold others, and no tables."""

    def check_plan(self) -> None:
        """Nothing is left to check."""

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
        """Computes in float32 and rounds to the dtype of q."""
        shape, step = self._shape, self._step
        assert self.plan_of_step is not None
        shape.check_q(q, step.q_rows, padded=self._padded)
        if out is None:
            out = shape.new_out(q.shape[0])
        shape.check_out(out, q.shape[0])
        if lse is None and want_lse:
            lse = shape.new_lse(q.shape[0])
        if lse is not None:
            shape.check_lse(lse, q.shape[0])
        views = shape.kv(step.kv_format, k, v)
        refuse_kv(step, int(views.k.shape[0]))
        if views.k.shape[-1] < shape.head_dim_qk and v is not None:  # columns that are not in v
            k = torch.cat((v, k), dim=-1)
        rows = step.q_rows
        result, result_lse = execute(
            self.plan_of_step,
            q[:rows],
            k,
            v,
            step.kv_format,
            shape.variant,
            sm_scale=parameters.softmax_scale,
            scalars=parameters.scalars,
            tensors=parameters.tensors or None,
            layout=shape.kv_layout,
            v_scale=1.0 if parameters.v_scale is None else parameters.v_scale,
        )
        out[:rows] = torch.from_numpy(result).to(out.dtype)
        if lse is not None:
            lse[:rows] = torch.from_numpy(result_lse)
        return out, lse
