"""Runs a planned step with kernels that keep time of their items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np
import torch

from cute_attn.abi import trace as layout
from cute_attn.api.launch_set import TraceBuffer
from cute_attn.api.planned_launch import PlannedLaunch
from cute_attn.api.trace import Trace, trace_of
from cute_attn.scheduler.simulator import LaunchItems

_WARM_RUNS = 2
_UNKNOWN_ITEMS = 256  # per block, where only the device knows the plan


def trace_step(
    launches: Sequence[PlannedLaunch],
    run: Callable[[], object],
    device: torch.device,
    max_items: int | None = None,
) -> Trace:
    """The timeline of one run of the last step.

    Args:
        launches: of the step.
        run: launches the step.
        device: of both.
        max_items: items of a block that there is room for; None: those of the plan.

    Raises:
        RuntimeError: during CUDA graph capture.
        UnsupportedSpecError: a kernel cannot keep time.
        ValueError: max_items is not positive.
    """
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("trace() during CUDA graph capture: it waits for the device")
    if max_items is not None and max_items < 1:
        raise ValueError(f"max_items is {max_items}; it takes at least 1")
    words = []
    with ExitStack() as stack:
        for launch in launches:
            room = max_items or _most_items(launch)
            size = layout.num_words(launch.grid[1], room)
            buffer = torch.zeros(size, dtype=torch.int64, device=device)
            stack.enter_context(launch.traced(TraceBuffer(buffer.data_ptr(), room)))
            words.append(buffer)
        for _ in range(_WARM_RUNS):
            run()
        for buffer in words:
            buffer.zero_()
        run()
        measured = [buffer.cpu().numpy().view(np.uint64) for buffer in words]
    grids = [launch.grid for launch in launches]
    stamps = [layout.read(w, blocks) for w, (_, blocks) in zip(measured, grids, strict=True)]
    return trace_of([(spec, found) for (spec, _), found in zip(grids, stamps, strict=True)])


def _most_items(launch: PlannedLaunch) -> int:
    plan = launch.plan_of_step
    if plan is None:
        return _UNKNOWN_ITEMS
    return max(int(LaunchItems.of_plan(plan).sizes.max(initial=0)), 1)
