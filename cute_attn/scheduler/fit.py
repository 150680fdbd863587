"""Measured times of launches -> the constants of a GPU. Nothing is measured here.

Every constant is fitted to cases that depend on it, by least squares on the logarithm of predicted
over measured time (Gauss and Newton), with the constants that are known already as a weak prior:
what no case depends on stays where it was. In this order:

1. decode alone: the device's read rate, the start of a launch, the merge;
2. tiles alone, each head_dim by itself: efficiency, ragged and paged, the time between items and at
   masked ends, the share of the read rate;
3. prefill and decode side by side: what the SMs that decode read at most.

Head dims that were not measured change as much as the measured ones of their family in the mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from cute_attn.scheduler.constants import Constants, Gpu, KernelTimes
from cute_attn.scheduler.plan import Plan
from cute_attn.scheduler.simulator import LaunchItems, simulate_items
from cute_attn.scheduler.timing import Timing

FloatArray: TypeAlias = npt.NDArray[np.float64]
Change: TypeAlias = Callable[[Constants, FloatArray], Constants]

DECODE = "ampere_decode"
_NOISE = 0.03
"""Of a measured time, and of the model."""
_PRIOR = 1.0
"""How far a constant may be from what is known, as the logarithm of a factor."""
_CLOSE_PRIOR = 0.1
"""The same for shares, which are properties of a kernel more than of a device."""
_ROUNDS = 8
_STEP = 1e-3  # of a derivative


@dataclass(frozen=True)
class MeasuredLaunch:
    """A launch of a measured call.

    Attributes:
        plan: what it computed.
        schedule, loader: of the kernel, as in its spec.
        head_dim_qk, head_dim_vo: elements.
        blocks_per_sm: thread blocks that share an SM.
    """

    plan: Plan
    schedule: str
    loader: str
    head_dim_qk: int
    head_dim_vo: int
    blocks_per_sm: int

    @cached_property
    def items(self) -> LaunchItems:
        """What it computed, item by item."""
        return LaunchItems.of_plan(self.plan)

    def timing(self, constants: Constants) -> Timing:
        """Its times by given constants; K and V of two bytes."""
        return Timing.for_kernel(
            self.head_dim_qk,
            self.head_dim_vo,
            schedule=self.schedule,
            loader=self.loader,
            blocks_per_sm=self.blocks_per_sm,
            constants=constants,
        )


@dataclass(frozen=True)
class Measurement:
    """A measured call.

    Attributes:
        name: of the case.
        us: measured.
        launches: one, or two side by side.
        clock: SM clock while it was measured, over that under lasting load: a card short of power
            slows its products down (perf/NOTES.md), and predictions are for such a card.
    """

    name: str
    us: float
    launches: tuple[MeasuredLaunch, ...]
    clock: float = 1.0

    def predicted_us(self, constants: Constants) -> float:
        """What the simulator says."""
        gpu = constants.gpu
        constants = replace(constants, gpu=replace(gpu, tflops=gpu.tflops * self.clock))
        items = [launch.items for launch in self.launches]
        timings = [launch.timing(constants) for launch in self.launches]
        return max(report.predicted_us for report in simulate_items(items, timings))


def fit_constants(
    measurements: Iterable[Measurement], known: Constants, *, gpu: Gpu, source: str
) -> Constants:
    """The constants that explain measured times best.

    Args:
        measurements: of one GPU.
        known: constants of another one, or of an earlier fit, from which the search begins.
        gpu: the device. Name, SMs and `tflops` are taken as they are; the read rates are where the
            search begins.
        source: where the measurements come from, for people.

    Raises:
        ValueError: no measurement, or a time that is not positive.
    """
    cases = list(measurements)
    if not cases:
        raise ValueError("measurements is empty; a fit takes at least one")
    for case in cases:
        if not (math.isfinite(case.us) and case.us > 0):
            raise ValueError(f"{case.name}: us is {case.us}; it takes a positive number")
    fitted = Constants(gpu, known.times, source)
    alone = [case for case in cases if len(case.launches) == 1]
    decodes = [case for case in alone if case.launches[0].schedule == DECODE]
    if decodes:
        fitted = _fit(decodes, fitted, _decode_change, [_PRIOR] * 3)
    for schedule in known.times:
        if schedule != DECODE:
            fitted = _fit_family(schedule, alone, fitted)
    beside = [case for case in cases if len(case.launches) > 1]
    if beside:
        fitted = _fit(beside, fitted, _beside_change, [_PRIOR])
    return fitted


def _fit_family(schedule: str, cases: Sequence[Measurement], known: Constants) -> Constants:
    """Rows of a family, each by itself; those that were not measured follow the others."""
    rows = sorted(known.times[schedule])
    of_row: dict[int, list[Measurement]] = {}
    for case in cases:
        launch = case.launches[0]
        if launch.schedule == schedule:
            dim = max(launch.head_dim_qk, launch.head_dim_vo)
            row = min((row for row in rows if row >= dim), default=rows[-1])
            of_row.setdefault(row, []).append(case)
    if not of_row:
        return known
    fitted = known
    for row, own in of_row.items():
        loaders = {case.launches[0].loader for case in own}
        pages = [name for name in ("paged", "gather") if name in loaders and "ragged" in loaders]

        def change(
            constants: Constants, by: FloatArray, row: int = row, pages: Sequence[str] = pages
        ) -> Constants:
            made = constants.times[schedule][row]
            for name, factor in zip(("efficiency", "item_us", "masked_us"), by, strict=False):
                made = _scaled(made, name, factor)
            for name, factor in zip(("read_share", *pages), by[3:], strict=True):
                made = _scaled(made, name, min(factor, 1 / getattr(made, name)))
            return _with_row(constants, schedule, row, made)

        fitted = _fit(own, fitted, change, [_PRIOR] * 3 + [_CLOSE_PRIOR] * (1 + len(pages)))
    for name in ("efficiency", "item_us", "paged", "gather"):
        ratios = [
            getattr(fitted.times[schedule][row], name) / getattr(known.times[schedule][row], name)
            for row in of_row
        ]
        by = math.exp(sum(map(math.log, ratios)) / len(ratios))
        for row in rows:
            if row not in of_row:
                times = _scaled(fitted.times[schedule][row], name, by)
                times = replace(times, paged=min(times.paged, 1.0), gather=min(times.gather, 1.0))
                fitted = _with_row(fitted, schedule, row, times)
    return fitted


def _decode_change(constants: Constants, by: FloatArray) -> Constants:
    """Read rates, which go together, then start and merge of all decode kernels."""
    gpu, rate = constants.gpu, float(by[0])
    gpu = replace(gpu, read_gbps=gpu.read_gbps * rate, sm_read_gbps=gpu.sm_read_gbps * rate)
    changed = replace(constants, gpu=gpu)
    for row, times in constants.times[DECODE].items():
        made = _scaled(_scaled(times, "start_us", by[1]), "merge_us", by[2])
        changed = _with_row(changed, DECODE, row, made)
    return changed


def _beside_change(constants: Constants, by: FloatArray) -> Constants:
    """What an SM reads that decodes."""
    changed = constants
    for row, times in constants.times[DECODE].items():
        share = min(times.sm_share * float(by[0]), 1.0)
        changed = _with_row(changed, DECODE, row, replace(times, sm_share=share))
    return changed


def _scaled(times: KernelTimes, name: str, by: float) -> KernelTimes:
    return replace(times, **{name: getattr(times, name) * float(by)})


def _with_row(constants: Constants, schedule: str, row: int, times: KernelTimes) -> Constants:
    rows = {**constants.times[schedule], row: times}
    return replace(constants, times={**constants.times, schedule: rows})


def _fit(
    cases: Sequence[Measurement], known: Constants, change: Change, priors: Sequence[float]
) -> Constants:
    """`change(known, exp(x))` for the x that explains the cases best; x = 0 is what is known.

    A sum of squares: logarithms of predicted over measured time in units of `_NOISE`, and x in
    units of `priors`.
    """
    log_us = np.log([case.us for case in cases])

    def residuals(x: FloatArray) -> FloatArray:
        constants = change(known, np.exp(x))
        predicted = np.log([case.predicted_us(constants) for case in cases])
        return np.concatenate(((predicted - log_us) / _NOISE, x / priors))

    x = np.zeros(len(priors))
    now = residuals(x)
    for _ in range(_ROUNDS):
        steps = _STEP * np.eye(x.size)
        slopes = np.stack([(residuals(x + step) - now) / _STEP for step in steps], axis=1)
        move = np.linalg.lstsq(slopes, -now, rcond=None)[0]
        move *= min(1.0, 1.0 / max(float(np.abs(move).max()), 1e-12))  # at most a factor of e
        for shorter in (1.0, 0.5, 0.25, 0.125):
            there = residuals(x + shorter * move)
            if there @ there < now @ now:
                break
        else:
            break
        gained = float(now @ now - there @ there)
        x, now = x + shorter * move, there
        if gained < 1e-4 * float(now @ now):
            break
    return change(known, np.exp(x))
