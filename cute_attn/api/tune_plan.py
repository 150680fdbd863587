"""A step that is tuned, planned with this kernel and that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from cute_attn.api import dispatch
from cute_attn.api.launches import cost_of
from cute_attn.api.step import Step, make_step
from cute_attn.codegen.spec import KernelSpec, UnsupportedSpecError
from cute_attn.formats import RaggedKV
from cute_attn.scheduler import BUILT_IN, Constants, Plan, plan_batch
from cute_attn.tuning import Candidate, TuneStep

_STEP_KEYS = 16
"""What a step over a KV block costs beside its products, in keys: on an H200 2,320 to 2,515 cycles
per 128 keys, of which 2,048 are products (perf/NOTES.md)."""


def problem_of(step: TuneStep, arch: str) -> dispatch.Problem:
    """What kernels of a step are chosen by, on GPUs of `arch`."""
    return dispatch.Problem(
        arch,
        step.dtype,
        step.head_dim,
        step.head_dim_vo,
        step.group,
        step.variant,
        step.page_size,
    )


def candidate_spec(
    problem: dispatch.Problem, candidate: Candidate, rows: int | None = None
) -> KernelSpec:
    """The kernel of a candidate.

    Raises:
        UnsupportedSpecError: there is none; with the reasons.
    """
    spec = dispatch.spec_for(problem, candidate.schedule, rows=rows)
    spec = replace(spec, tile=candidate.tile)
    if reasons := dispatch.supports(spec):
        raise UnsupportedSpecError(f"{candidate.label} for {problem.arch}", reasons)
    return spec


class PlannedStep:
    """A step, and what the planner makes of it with a tile.

    Args:
        step: the step.
        arch, num_sms: of the GPU.
        constants: of the GPU.

    Attributes:
        problem: what its kernels are chosen by.
        rows: packed query rows of the longest request.
        default: what the tables give.

    Raises:
        UnsupportedSpecError: no kernel serves the step.
    """

    def __init__(
        self, step: TuneStep, arch: str, num_sms: int, constants: Constants = BUILT_IN
    ) -> None:
        self.step, self.num_sms, self._constants = step, num_sms, constants
        self.problem = problem_of(step, arch)
        rows, keys = (np.r_[0, np.cumsum(x)] for x in (step.q_lens, step.kv_lens))
        self._whole: Step = make_step(
            rows, RaggedKV(keys), step.variant, dict(step.scalars), torch.device("cpu")
        )
        self.rows = max(step.q_lens) * step.group
        table = _default_spec(self.problem, self._whole, step.num_kv_heads, num_sms)
        self.default = Candidate(table.schedule, table.tile)
        self._predicted: dict[Candidate, float] = {}

    def spec(self, candidate: Candidate) -> KernelSpec:
        """See `candidate_spec`."""
        return candidate_spec(self.problem, candidate, self.rows)

    def plan(self, candidate: Candidate) -> Plan:
        """On all SMs."""
        spec = self.spec(candidate)
        return plan_batch(
            self._whole.requests,
            dispatch.geometry(spec, self.step.num_kv_heads, self._whole.band),
            self.num_sms * spec.tile.blocks_per_sm,
            cost=cost_of(spec, self._constants),
            visible=self._whole.visible,
        )

    def predicted_us(self, candidate: Candidate) -> float:
        """Time by the cost model, and by the steps over KV blocks that the tile makes."""
        plain = replace(candidate, toolchain=None)
        if plain not in self._predicted:
            spec = self.spec(plain)
            us = self.plan(plain).predicted_us
            if spec.schedule != dispatch.AMPERE_DECODE:
                us *= (1 + _STEP_KEYS / spec.tile.kv) / (1 + _STEP_KEYS / 128)
            self._predicted[plain] = us
        return self._predicted[plain]


def _default_spec(
    problem: dispatch.Problem, step: Step, num_kv_heads: int, num_sms: int
) -> KernelSpec:
    """The kernel that the tables give for a step on all SMs.

    Raises:
        UnsupportedSpecError: there is none.
    """
    requests = step.requests
    longest = requests.most_q_len * problem.group
    return dispatch.choose(
        problem,
        rows=longest,
        tiles_per_sm=dispatch.tiles_per_sm(requests.q_len, longest, num_kv_heads, num_sms),
        long=dispatch.is_long(problem, requests.q_len, requests.kv_len, step.band),
    )
