"""Batch invariance: which kernels serve a step, where that depends on each request alone.

Requests of few packed query rows are decoded, the others are prefilled, each kind by one kernel,
whatever else is in the step. A step of both is two launches: side by side on some SMs each where
that is faster (`scheduler.side_by_side`), else one after the other. Where tiles are cut depends on
the request alone as well: `scheduler.fixed_pieces`.
"""

from __future__ import annotations

from dataclasses import replace

from cute_attn.api import dispatch
from cute_attn.api.side_by_side import SideBySide, Split, divide
from cute_attn.api.step import Step
from cute_attn.codegen.spec import KernelSpec
from cute_attn.scheduler import BUILT_IN, Constants, RequestBatch


class FixedKernels:
    """The kernels of one problem.

    Args:
        problem: what the kernels are chosen by.
        num_kv_heads: KV heads.
        num_sms: of the device.
        schedule: take this family for all requests, or None.
        constants: of the device.

    Attributes:
        prefill, decode: the two kernels; the same one where the problem has no kernel for decode.

    Raises:
        UnsupportedSpecError: no kernel can serve the problem.
    """

    prefill: KernelSpec
    decode: KernelSpec

    def __init__(
        self,
        problem: dispatch.Problem,
        num_kv_heads: int,
        num_sms: int,
        schedule: str | None,
        constants: Constants = BUILT_IN,
    ) -> None:
        self._num_sms = num_sms
        self._side_by_side = SideBySide(problem, num_kv_heads, num_sms, constants)
        # One query token decides about the rows of a decode tile: more tokens take more tiles.
        few = _with_pieces(dispatch.choose(problem, rows=problem.group, schedule=schedule))
        if schedule is None and few.fixed_pieces:
            self.prefill, self.decode = dispatch.choose(problem, rows=None, long=True), few
        else:
            rows = problem.group if few.fixed_pieces else None
            only = dispatch.choose(problem, rows=rows, long=True, schedule=schedule)
            self.prefill = self.decode = _with_pieces(only)

    def spec_of(self, requests: RequestBatch) -> KernelSpec:
        """The kernel of requests of one kind.

        Raises:
            ValueError: they are of both.
        """
        if requests.most_q_len * self.decode.group <= dispatch.SMALL_ROWS:
            return self.decode
        small = requests.q_len * self.decode.group <= dispatch.SMALL_ROWS
        if self.prefill != self.decode and bool((small & (requests.q_len > 0)).any()):
            raise ValueError(
                "qo_indptr has requests to decode and requests to prefill, which have kernels of"
                " their own with batch_invariant=True; in graph mode make the first plan one of"
                " such a step"
            )
        return self.prefill

    def split(self, step: Step) -> Split | None:
        """The step in two; None if it is of one kind."""
        if self.prefill == self.decode:
            return None
        split = self._side_by_side.split(step)
        if split is not None:
            return split
        split = divide(step, self.decode.group, self._num_sms)
        parts = split.prefill.requests, split.decode.requests
        return split if all(part.q_len.any() for part in parts) else None


def _with_pieces(spec: KernelSpec) -> KernelSpec:
    """The spec with fixed pieces, if its kernel cuts tiles itself."""
    return replace(spec, fixed_pieces=spec.schedule == dispatch.AMPERE_DECODE)
