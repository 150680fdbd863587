"""Plan and page table of a step on the device, in one buffer, uploaded in one copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cute_attn.abi.plan import plan_layout
from cute_attn.api.plan_buffer import PlanBuffer, grown
from cute_attn.api.step import Step
from cute_attn.scheduler import Plan


class PlanStore:
    """Where the kernels read the plan.

    The page table lies behind the plan, at an offset that only grows, so that addresses are stable
    once the largest step has been seen.

    Args:
        device: a CUDA device.
        max_requests, max_pages: capacities; None grows with the steps.
        fixed: addresses must not change after the first `write` (CUDA graphs); a page table that is
            on the device is then copied into the buffer, unless it stays where it is.

    Attributes:
        plan_address, table_address: of the last step; table_address is 0 for ragged KV.
        uploaded: event behind the last copy.
    """

    def __init__(
        self,
        device: torch.device,
        max_requests: int | None,
        max_pages: int | None,
        *,
        fixed: bool,
    ) -> None:
        self._device = device
        self._max_requests = max_requests
        self._max_pages = max_pages
        self._fixed = fixed
        self._buffer: PlanBuffer | None = None
        self._table_at = 0
        self._callers_table: torch.Tensor | None = None  # kept alive while kernels may read it
        self.plan_address = 0
        self.table_address = 0
        self.uploaded: torch.cuda.Event | None = None

    def table_place(self, plan: Plan, step: Step) -> int:
        """Where kernels read the page table after `write`; 0 for ragged KV.

        Raises:
            ValueError: a capacity is exceeded.
        """
        if step.page_table is None:
            return 0
        table = _flat(step.page_table)
        if step.kv_format.table_stays:
            return int(table.data_ptr())
        pages = int(table.shape[0])
        buffer = self._reserve(plan.layout.num_blocks, plan.num_requests, pages)
        return buffer.address + 4 * self._table_at

    def write(self, plan: Plan, step: Step) -> None:
        """Sends plan and page table to the device on the current stream, without waiting.

        Raises:
            ValueError: a capacity is exceeded.
        """
        table = None if step.page_table is None else _flat(step.page_table)
        pages = 0 if table is None else int(table.shape[0])
        buffer = self._reserve(plan.layout.num_blocks, plan.num_requests, pages)
        staged, length, at = buffer.stage(), plan.buffer.size, self._table_at
        staged[:length] = plan.buffer
        if isinstance(table, np.ndarray):
            length = at + pages
            staged[at:length] = table
        self.uploaded = buffer.upload(length)
        self.plan_address = buffer.address
        self.table_address = 0 if table is None else buffer.address + 4 * at
        if isinstance(table, torch.Tensor):
            if self._fixed and not step.kv_format.table_stays:
                buffer.memory[at : at + pages].copy_(table)
                self.uploaded.record()
            else:
                self._callers_table = table
                self.table_address = table.data_ptr()

    def place(self, num_blocks: int, num_requests: int, table: torch.Tensor | None) -> int:
        """Where a plan made on the device goes, whose page table is used where it is.

        Raises:
            ValueError: max_requests is exceeded.
        """
        self.plan_address = self._reserve(num_blocks, num_requests, 0).address
        self.table_address = 0 if table is None else table.data_ptr()
        self._callers_table = table
        return self.plan_address

    def placed(self) -> None:
        """The plan's kernel is on the current stream; runs on other streams wait for it."""
        if not torch.cuda.is_current_stream_capturing():
            assert self._buffer is not None
            self.uploaded = self._buffer.mark()

    def _reserve(self, num_blocks: int, num_requests: int, pages: int) -> PlanBuffer:
        """A buffer that is large enough."""
        if self._max_requests is not None and num_requests > self._max_requests:
            raise ValueError(
                f"the batch has {num_requests} requests; max_requests is {self._max_requests}"
            )
        if self._max_pages is not None and pages > self._max_pages:
            raise ValueError(f"the page table has {pages} entries; max_pages is {self._max_pages}")
        layout = plan_layout(num_blocks, self._max_requests or grown(num_requests))
        self._table_at = max(self._table_at, -(-layout.size // 4) * 4)
        capacity = self._table_at + (self._max_pages or grown(pages))
        if self._buffer is None or self._buffer.capacity < capacity:
            if self._fixed and self._buffer is not None:
                raise ValueError(
                    f"the step needs {4 * capacity} bytes of plan and page table, but captured"
                    f" graphs read a buffer of {4 * self._buffer.capacity}; give max_requests and"
                    " max_pages"
                )
            self._buffer = PlanBuffer(capacity, self._device)
        return self._buffer


def _flat(table: Any) -> Any:
    """A view of the table's memory from its first to its last entry; rows of a tensor may be
    strided."""
    if not isinstance(table, torch.Tensor):
        return table
    size = 1 + sum((n - 1) * step for n, step in zip(table.shape, table.stride(), strict=True))
    return table.as_strided((size if table.numel() else 0,), (1,))
