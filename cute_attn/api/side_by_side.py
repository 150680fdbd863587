"""Which steps of a GPU batch are two launches side by side: prefill, and decode beside it.

The prefill kernel leaves no room on its SMs, so the blocks of the decode kernel, which are launched
when all of its blocks have started, take the other SMs. How many: `scheduler.side_by_side`. Of
levels, decode may also follow prefill on all SMs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from cute_attn.api import dispatch
from cute_attn.api.step import Step
from cute_attn.codegen.spec import KernelSpec, UnsupportedSpecError
from cute_attn.scheduler import BUILT_IN, Constants, CostModel, level_sms, prefill_sms


class Split(NamedTuple):
    """A step in two.

    Attributes:
        prefill, decode: its parts; the page table is with the first.
        prefill_sms: SMs of the first part; the other takes the rest, or follows on all of them.
    """

    prefill: Step
    decode: Step
    prefill_sms: int


class SideBySide:
    """Splits steps of one problem.

    Args:
        problem: what the kernels are chosen by.
        num_kv_heads: KV heads.
        num_sms: of the device.
        constants: of the device.

    Attributes:
        specs: kernels of prefill and decode; None if the device or the problem has no such two.
    """

    def __init__(
        self,
        problem: dispatch.Problem,
        num_kv_heads: int,
        num_sms: int,
        constants: Constants = BUILT_IN,
    ) -> None:
        self._num_kv_heads = num_kv_heads
        self._num_sms = num_sms
        self._gpu = constants.gpu
        self.specs = _kernels(problem)
        if self.specs is not None:
            prefill = self.specs[0]
            self._cost = CostModel.for_kernel(
                prefill.head_dim_qk,
                prefill.head_dim_vo,
                schedule=prefill.schedule,
                constants=constants,
            )

    def split(self, step: Step) -> Split | None:
        """The step in two; None: one launch is as good, or there is no other way."""
        if self.specs is None:
            return None
        prefill, decode = self.specs
        shortest, longest = step.requests.least_q_len, step.requests.most_q_len
        if not shortest * prefill.group <= dispatch.SMALL_ROWS < longest * prefill.group:
            return None  # requests of one kind
        split = divide(step, prefill.group)
        tiles = dispatch.geometry(prefill, self._num_kv_heads, step.band)
        divides = level_sms if step.kv_format.stacked else prefill_sms
        sms = divides(
            split.prefill.requests,
            split.decode.requests,
            tiles,
            self._cost,
            num_sms=self._num_sms,
            decode_blocks_per_sm=decode.tile.blocks_per_sm,
            gpu=self._gpu,
        )
        return None if sms is None else split._replace(prefill_sms=sms)


def divide(step: Step, group: int, prefill_sms: int = 0) -> Split:
    """The step in requests that are prefilled and requests that are decoded.

    Args:
        step: all of it; a part may be empty.
        group: query heads per KV head.
        prefill_sms: SMs of the first part.
    """
    requests = step.requests
    small = requests.q_len * group <= dispatch.SMALL_ROWS
    prefill = replace(step, requests=requests.select(~small))
    decode = replace(step, requests=requests.select(small), page_table=None)
    return Split(prefill, decode, prefill_sms)


def _kernels(problem: dispatch.Problem) -> tuple[KernelSpec, KernelSpec] | None:
    try:
        prefill, decode = (
            dispatch.choose(problem, rows=rows) for rows in (None, dispatch.SMALL_ROWS)
        )
    except UnsupportedSpecError:
        return None
    fit = prefill.schedule == dispatch.HOPPER_TILE and decode.runs_beside
    return (prefill, decode) if fit else None
