"""Which kernels the tuner compares: tiles of the emitters' equations, pruned by the cost model."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from cute_attn.api import dispatch
from cute_attn.api.tune_plan import PlannedStep
from cute_attn.codegen.spec import KernelSpec, UnsupportedSpecError
from cute_attn.scheduler import BUILT_IN, Constants
from cute_attn.tuning import Candidate, TuneStep, tiles_of

CANDIDATES = 16
"""Kernels of a class of steps that are compiled, beside the defaults."""
_SLOWER = 1.25
"""Predicted time over the least from which a tile is not tried."""
_ALIKE = 0.03
"""Differences of predicted times, as logarithms, that mean nothing."""
_OTHERS = 3
"""Candidates of another kernel family than the tables take."""


@dataclass(frozen=True)
class Contest:
    """The kernels of one step.

    Attributes:
        step: the step.
        problem: what its kernels are chosen by.
        specs: the candidates and their kernels; the default, which the tables give, is the first.
        predicted_us: of each, by the cost model.
    """

    step: TuneStep
    problem: dispatch.Problem
    specs: dict[Candidate, KernelSpec]
    predicted_us: dict[Candidate, float]

    @property
    def candidates(self) -> list[Candidate]:
        """The default, then the others."""
        return list(self.specs)


def contests(
    steps: Sequence[TuneStep],
    arch: str,
    num_sms: int,
    *,
    most: int = CANDIDATES,
    toolchains: Sequence[str] = (),
    constants: Constants = BUILT_IN,
    defaults: Mapping[str, Candidate] | None = None,
) -> list[Contest]:
    """The candidates of some steps; those of one class of kernels and kind of step share them, so
    that few have to be compiled.

    Args:
        steps: what is tuned.
        arch, num_sms: of the GPU.
        most: candidates of a class, beside the defaults.
        toolchains: names of further compilers with which the default kernel is tried.
        constants: of the GPU.
        defaults: what stands in for the tables' kernels, by the step's name.

    Returns:
        contests, those of a class one after the other; steps that no kernel serves are left out.
    """
    groups: dict[tuple[dispatch.Problem, int], list[PlannedStep]] = defaultdict(list)
    for step in steps:
        try:
            planned = PlannedStep(step, arch, num_sms, constants)
            planned.default = (defaults or {}).get(step.name, planned.default)
        except UnsupportedSpecError:
            continue
        groups[planned.problem, step.key(num_sms).kind].append(planned)
    found = []
    for group in groups.values():
        chosen = _chosen(group, most)
        for planned in group:
            default = planned.default
            named = [replace(default, toolchain=name) for name in toolchains]
            every = dict.fromkeys([default, *chosen, *named])
            specs = {c: planned.spec(c) for c in every}
            predicted = {c: planned.predicted_us(c) for c in every}
            found.append(Contest(planned.step, planned.problem, specs, predicted))
    return found


def _chosen(group: Sequence[PlannedStep], most: int) -> list[Candidate]:
    """The best by the cost model in the mean of some steps, the best of every make first; and the
    defaults of all of them."""
    first = group[0]
    schedules = {planned.default.schedule for planned in group}
    if dispatch.AMPERE_DECODE not in schedules:  # decode steps must stay plannable on the device
        schedules |= set(dispatch.schedules(first.problem, None))
    ranked: list[tuple[float, Candidate]] = []
    for schedule in sorted(schedules):
        try:
            base = dispatch.spec_for(first.problem, schedule, rows=first.rows)
        except UnsupportedSpecError:
            continue
        for tile in tiles_of(base):
            if schedule == dispatch.HOPPER_TILE and first.rows <= dispatch.MOST_ROWS < tile.q:
                continue  # a second consumer warpgroup would compute padding
            candidate = Candidate(schedule, tile)
            logs = [math.log(p.predicted_us(candidate) / p.predicted_us(p.default)) for p in group]
            ranked.append((sum(logs) / len(logs), candidate))
    # What the model takes launches of one large block and of several small ones per SM to cost
    # apart is less than exact: decode kernels are compared with those of as many blocks.
    least: dict[int, float] = {}
    for mean, candidate in ranked:
        least[_rival(candidate)] = min(mean, least.get(_rival(candidate), math.inf))
    ranked = [(mean - least[_rival(candidate)], candidate) for mean, candidate in ranked]
    limit = math.log(_SLOWER)
    near = [item for item in ranked if item[0] <= limit]
    near.sort(key=lambda item: (round(item[0] / _ALIKE), *_order(item[1])))
    of_make: dict[tuple[object, ...], list[Candidate]] = defaultdict(list)
    for _, candidate in near:
        of_make[_make(candidate)].append(candidate)
    # The best of each make, then the second of each, ...
    turns = zip_longest(*of_make.values())
    order = [candidate for turn in turns for candidate in turn if candidate is not None]
    defaults = list(dict.fromkeys(planned.default for planned in group))
    tried: list[Candidate] = []
    other = 0
    for candidate in order:
        other_family = candidate.schedule not in {c.schedule for c in defaults}
        if candidate in defaults or len(tried) >= most or (other_family and other >= _OTHERS):
            continue
        other += other_family
        tried.append(candidate)
    return tried + defaults


def _rival(candidate: Candidate) -> int:
    decodes = candidate.schedule == dispatch.AMPERE_DECODE
    return candidate.tile.blocks_per_sm if decodes else 0


def _make(candidate: Candidate) -> tuple[object, ...]:
    """What tells kernels apart in kind, rather than in degree."""
    tile = candidate.tile
    if candidate.schedule == dispatch.HOPPER_TILE:
        return candidate.schedule, tile.threads, tile.q_stages, tile.q_in_registers, tile.kv // 32
    if candidate.schedule == dispatch.AMPERE_DECODE:
        return candidate.schedule, tile.threads, tile.blocks_per_sm
    return candidate.schedule, tile.q, tile.threads, tile.blocks_per_sm


def _order(candidate: Candidate) -> tuple[int, int, str]:
    """Of what the cost model does not tell apart: more warps per SM, a deeper ring."""
    tile = candidate.tile
    return -tile.threads * tile.blocks_per_sm, -tile.stages, candidate.label
