"""Batch invariance: plans of fixed pieces for one launch, and the memory for their pieces."""

from __future__ import annotations

import math

import torch

from cute_attn.abi.work import KEYS_OF_SQUARE, cdiv
from cute_attn.api import dispatch
from cute_attn.api.partials import PartialsAt, PieceMemory
from cute_attn.api.plan_buffer import grown
from cute_attn.api.step import Step
from cute_attn.codegen.spec import KernelSpec
from cute_attn.scheduler import CostModel, Geometry, Plan, plan_fixed_pieces


class FixedPlans:
    """Plans of one launch.

    Args:
        device: a CUDA device.
        max_requests, max_pages: capacities; None: those of the first plan, rounded up.
        cuda_graph: grid and addresses stay as the first plan chose them.
    """

    def __init__(
        self,
        device: torch.device,
        max_requests: int | None,
        max_pages: int | None,
        *,
        cuda_graph: bool,
    ) -> None:
        self._max_requests = max_requests
        self._max_pages = max_pages
        self._cuda_graph = cuda_graph
        self._memory = PieceMemory(device)
        self._grid: int | None = None  # of captured kernels that do not cut tiles themselves
        self._slots: int | None = None  # of captured graphs

    def plan(
        self, step: Step, spec: KernelSpec, geometry: Geometry, num_blocks: int, cost: CostModel
    ) -> Plan:
        """The plan of a step.

        Raises:
            ValueError: a capacity is exceeded.
        """

        def plan(grid: int | None) -> Plan:
            return plan_fixed_pieces(
                step.requests,
                geometry,
                num_blocks,
                in_kernel=spec.fixed_pieces,
                grid=grid,
                max_requests=self._max_requests,
                cost=cost,
            )

        made = plan(self._grid)
        if self._cuda_graph and self._grid is None and not spec.fixed_pieces:
            made = plan(grown(made.layout.num_blocks))
        if self._slots is not None and made.num_slots > self._slots:
            raise ValueError(
                f"the step is cut in {made.num_slots} pieces, but captured graphs have memory for"
                f" {self._slots}; give max_requests and max_pages, or plan the largest step first"
            )
        return made

    def commit(self, plan: Plan, step: Step, spec: KernelSpec) -> PartialsAt:
        """Memory for the pieces of a plan that run() will launch."""
        slots = grown(plan.num_slots)
        if self._cuda_graph:
            if self._slots is None:
                fixed = spec.fixed_pieces
                self._grid = None if fixed else plan.layout.num_blocks
                self._slots = self._most_pieces(plan, step) if fixed else self._grid
            assert self._slots is not None
            slots = self._slots
        return self._memory.reserve(slots, spec.tile.q, spec.head_dim_vo)

    def _most_pieces(self, plan: Plan, step: Step) -> int:
        """Pieces of any decode step within the capacities."""
        requests, geometry = step.requests, plan.geometry
        count = self._max_requests or grown(requests.num_requests)
        if self._max_pages is not None and step.page_size is not None:
            keys = self._max_pages * step.page_size
        else:
            keys = grown(int(requests.kv_len.sum()))
        return most_pieces(count, keys, geometry)


def most_pieces(num_requests: int, num_keys: int, geometry: Geometry) -> int:
    """Pieces of all tiles of decodes, whatever their lengths.

    A tile of n keys has at most sqrt(n / KEYS_OF_SQUARE) pieces, so all have the most if all are
    equally long (Cauchy and Schwarz).
    """
    keys = num_keys + num_requests * (geometry.tile_kv - 1)  # whole KV blocks
    q_tiles = cdiv(dispatch.SMALL_ROWS, geometry.tile_q)
    pieces = math.isqrt(num_requests * keys // KEYS_OF_SQUARE)
    return geometry.num_kv_heads * q_tiles * max(pieces, 1)
