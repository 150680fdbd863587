"""The search of one step: all candidates briefly, the best again and in turns with the default.

Measurements repeat to one per cent where bursts are short, take turns and the card rests ahead of
each (perf/NOTES.md). A candidate is taken if it beats the default by more than both spreads, and if
its output is that of the default up to rounding.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from cute_attn.codegen.spec import KernelSpec
from cute_attn.tuning.candidate import Candidate
from cute_attn.tuning.database import Measured
from cute_attn.tuning.step import TuneStep

logger = logging.getLogger("cute_attn")

FINALISTS = 3
"""Candidates that are measured again, beside the default."""
ROUNDS = 5
_SCREENS = 2  # bursts of each candidate before finalists are named
LEAST_GAIN = 0.01
"""What a winner must gain, however quiet the measurement: that is how well runs repeat."""


class Session(Protocol):
    """Kernels of one step, ready to be timed."""

    @property
    def candidates(self) -> Sequence[Candidate]:
        """Those that could be made ready, the default first."""

    def burst(self, candidate: Candidate) -> float:
        """Microseconds of a call: the median of a short burst, the card rested before."""

    def error(self, candidate: Candidate) -> float:
        """Of its output relative to that of the default; NaN if rows are missing."""

    def close(self) -> None:
        """Lets go of the memory."""


class Bench(Protocol):
    """What can measure."""

    num_sms: int

    def open(self, step: TuneStep, specs: Mapping[Candidate, KernelSpec]) -> Session:
        """Makes the tensors of a step and plans it with each candidate; the first one is the
        default."""


def search_step(
    session: Session,
    predicted_us: Mapping[Candidate, float],
    *,
    most_error: float,
    burst_done: Callable[[], None] = lambda: None,
    is_over: Callable[[], bool] = lambda: False,
) -> tuple[list[Measured], int | None] | None:
    """Measures the candidates of a step.

    Args:
        session: of the step.
        predicted_us: of each, by the cost model.
        most_error: relative to the default, with which a candidate may win.
        burst_done: called after each burst.
        is_over: whether the time is up: then nothing is known of the step.

    Returns:
        what was measured, the default first and the others from the fastest on, and the index of
        the winner or None; None if the time was up before the end.
    """
    candidates = session.candidates
    times: dict[Candidate, list[float]] = {candidate: [] for candidate in candidates}

    def in_turns(group: Sequence[Candidate], rounds: int) -> bool:
        for _ in range(rounds):
            for candidate in group:
                if is_over():
                    return False
                times[candidate].append(session.burst(candidate))
                burst_done()
        return True

    if not in_turns(candidates, _SCREENS):
        return None
    default, *others = candidates
    errors = {candidate: session.error(candidate) for candidate in others}
    right = [c for c in others if errors[c] <= most_error]  # NaN is not
    finalists = sorted(right, key=lambda c: min(times[c]))[:FINALISTS]
    for candidate in others:
        if candidate not in right:
            logger.warning(
                "tune: the output of %s is off by %.2g of the default's; it is left out",
                candidate.label,
                errors[candidate],
            )
    if finalists:
        if not in_turns([default, *finalists], ROUNDS):
            return None
        for candidate in [default, *finalists]:
            del times[candidate][:_SCREENS]  # taken in turns with others

    def measured(candidate: Candidate) -> Measured:
        own = times[candidate]
        return Measured(
            candidate,
            statistics.median(own),
            (max(own) - min(own)) / 2,
            predicted_us[candidate],
            0.0 if candidate is default else errors[candidate],
        )

    first = measured(default)
    rest = sorted((measured(c) for c in right), key=lambda m: m.us)
    found = [first, *rest]
    for index, one in enumerate(found[1:], 1):
        if one.candidate in finalists and beats(one, first):
            return found, index
    return found, None


def beats(one: Measured, default: Measured) -> bool:
    """Whether a candidate is faster by more than what measurements are apart."""
    gained = default.us - one.us
    return gained > one.spread_us + default.spread_us and gained >= LEAST_GAIN * default.us
