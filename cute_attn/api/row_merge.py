"""Rows of a step in levels: copies of the query rows, and the merge of what they give."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import torch

from cute_attn.api import checks
from cute_attn.api.arguments import Arguments
from cute_attn.api.dispatch import AMPERE_DECODE, emitter_arch
from cute_attn.api.kernel import Kernel
from cute_attn.api.plan_buffer import PlanBuffer
from cute_attn.api.shape import BatchShape
from cute_attn.api.small_kernels import ready
from cute_attn.api.stream_order import StreamOrder
from cute_attn.codegen.kernels import (
    copy_rows_sizes,
    emit_copy_rows,
    emit_merge_rows,
    merge_rows_grid,
)
from cute_attn.formats.stack import Stack
from cute_attn.reference import merge_rows
from cute_attn.runtime.device import device_info

_VECTOR = 8  # elements of q that are copied at a time


class RowMerge:
    """Where the rows of one `CompositeAttention` are copied to, and their states merged from.

    Args:
        shape: sizes and options.
        fixed: addresses must not change after the first plan (CUDA graphs).
        max_rows: capacity: most stacked rows of a step; None grows with the steps (fixed: as many
            as the first plan's, rounded up).
        on_host: merge with NumPy.

    Attributes:
        q: (capacity, num_qo_heads, head_dim_qk) copies of query rows.
        out, lse: (capacity, num_qo_heads, head_dim_vo) and (capacity, num_qo_heads), their states.
        tables: (2, capacity) int32: position and request of each copy.
        count: copies in the step; with `fixed` the capacity.
    """

    def __init__(
        self, shape: BatchShape, *, fixed: bool, max_rows: int | None, on_host: bool
    ) -> None:
        self._shape = shape
        self._fixed = fixed
        self._max_rows = max_rows
        self._capacity = 0
        self._host: tuple[npt.NDArray[np.int64], ...] = ()
        self._buffer: PlanBuffer | None = None
        self._kernels: tuple[Kernel, Kernel] | None = None  # copy, merge
        self._arguments: tuple[Arguments, Arguments]
        self._on_host = on_host
        self._order = None if on_host else StreamOrder(shape.device)
        self._uploaded: torch.cuda.Event | None = None
        self.count = 0
        self.q = self.out = self.lse = self.tables = torch.empty(0)

    def reserve(self, stack: Stack) -> bool:
        """Makes room for a step; whether that lost what was there.

        Raises:
            ValueError: the capacity is exceeded.
        """
        rows, most = max(stack.rows.size, stack.state_indptr.size - 1), self._max_rows
        if most is not None and rows > most:
            raise ValueError(f"the step has {rows} stacked query rows; max_rows is {most}")
        if self._capacity and rows <= self._capacity:
            return False
        if self._fixed and self._capacity:
            raise ValueError(
                f"the step has {rows} stacked query rows, but captured graphs have room for"
                f" {self._capacity}; give max_rows"
            )
        shape, device = self._shape, self._shape.device
        capacity = self._capacity = most or 1 << max(rows - 1, 0).bit_length()
        heads = (capacity, shape.num_qo_heads)
        self.q = torch.zeros((*heads, shape.head_dim_qk), dtype=shape.dtype, device=device)
        self.out = torch.empty((*heads, shape.head_dim_vo), dtype=shape.dtype, device=device)
        self.lse = torch.empty(heads, dtype=torch.float32, device=device)
        if self._on_host:
            self.tables = torch.zeros((2, capacity), dtype=torch.int32)
        else:
            self._buffer = PlanBuffer(5 * (capacity + 1), device)
            self.tables = self._buffer.memory.view(5, -1)[2:4, :capacity]
        return True

    def send(self, stack: Stack) -> None:
        """Sends a step to the device on the current stream, without waiting."""
        rows, tokens = stack.rows.size, stack.state_indptr.size - 1
        self.count = self._capacity if self._fixed else rows
        if self._buffer is None:
            self._host = (stack.rows, stack.state_indptr, stack.states)
            self.tables[0, :rows] = torch.from_numpy(stack.positions)
            self.tables[1, :rows] = torch.from_numpy(stack.requests)
            return
        staged = self._buffer.stage().reshape(5, -1)
        staged[:] = 0
        columns = (stack.rows, stack.states, stack.positions, stack.requests)
        for row, values in zip(staged, columns, strict=False):
            row[:rows] = values
        staged[4, : tokens + 1], staged[4, tokens + 1 :] = stack.state_indptr, -1
        assert self._order is not None
        with torch.cuda.device(self._shape.device):
            self._order.before_plan()
            self._uploaded = self._buffer.upload(staged.size)

    def copy(self, q: torch.Tensor) -> torch.Tensor:
        """(count, num_qo_heads, head_dim_qk) copies of query rows."""
        taken = self.q[: self.count]
        if self._buffer is None:
            rows = torch.from_numpy(self._host[0])
            taken[: rows.numel()] = q[rows]
            return taken
        if self.count == 0:
            return taken
        assert self._order is not None
        if self._elsewhere():
            assert self._uploaded is not None
            self._order.before_run(self._uploaded)
        shape = self._shape
        vectors, blocks = copy_rows_sizes(shape.num_qo_heads, shape.head_dim_qk)
        kernel, arguments = self._ready()[0], self._arguments[0]
        arguments.set(
            q=q.data_ptr(),
            rows=self._buffer.address,
            copies=taken.data_ptr(),
            token_stride=q.stride(0) // _VECTOR,
            head_stride=q.stride(1) // _VECTOR,
            row_vectors=vectors,
            row_blocks=blocks,
        )
        self._launch(kernel, (self.count * blocks, 1, 1), arguments)
        return taken

    def merge(self, out: torch.Tensor, lse: torch.Tensor | None) -> None:
        """Merges `self.out` and `self.lse` into out and lse, on the current stream."""
        tokens = out.shape[0]
        if self._buffer is None:
            rows, indptr, states = self._host
            planned, count = indptr.size - 1, rows.size
            v = self.out[:count].float().numpy()
            merged, merged_lse = merge_rows(v, self.lse[:count].numpy(), indptr, states)
            out[:planned] = torch.from_numpy(merged).to(out.dtype)
            if lse is not None:
                lse[:planned] = torch.from_numpy(merged_lse)
            return
        if tokens == 0:
            return
        shape = self._shape
        kernel, arguments = self._ready()[1], self._arguments[1]
        step = 4 * (self._capacity + 1)
        arguments.set(
            v=self.out.data_ptr(),
            lse=self.lse.data_ptr(),
            state_indptr=self._buffer.address + 4 * step,
            states=self._buffer.address + step,
            out=out.data_ptr(),
            out_lse=0 if lse is None else lse.data_ptr(),
            out_token_stride=out.stride(0),
            out_head_stride=out.stride(1),
            num_rows=tokens * shape.num_qo_heads,
            num_heads=shape.num_qo_heads,
        )
        grid = merge_rows_grid(shape.head_dim_vo, tokens * shape.num_qo_heads)
        self._launch(kernel, grid, arguments)
        if self._order is not None and self._elsewhere():
            self._order.after_run()

    def _ready(self) -> tuple[Kernel, Kernel]:
        if self._kernels is None:
            shape = self._shape
            arch = emitter_arch(device_info(shape.device.index).arch, AMPERE_DECODE)
            dtype = checks.DTYPE_NAMES[shape.dtype]
            copy, merge = _kernels(arch, dtype, shape.head_dim_qk, shape.head_dim_vo)
            self._kernels = copy, merge
            self._arguments = copy.arguments(), merge.arguments()  # a launch copies them
        return self._kernels

    def _launch(self, kernel: Kernel, grid: tuple[int, int, int], arguments: Arguments) -> None:
        device = self._shape.device
        stream = torch.cuda.current_stream(device).cuda_stream
        with torch.cuda.device(device):
            kernel.launch(grid, stream, arguments, device.index)

    def _elsewhere(self) -> bool:
        """Whether the current stream is another than the plan's."""
        assert self._order is not None
        stream = torch.cuda.current_stream(self._shape.device).cuda_stream
        return stream != self._order.plan_stream

    def check_tokens(self, tokens: int) -> None:
        """Raises ValueError if q has more rows than there is room for."""
        if tokens > self._capacity:
            raise ValueError(
                f"q has {tokens} rows, but there is room for {self._capacity} stacked query rows;"
                " give max_rows"
            )


@cache
def _kernels(arch: str, dtype: str, head_dim_qk: int, head_dim_vo: int) -> tuple[Kernel, Kernel]:
    merge = emit_merge_rows(arch, dtype, head_dim_vo)
    return ready(emit_copy_rows(arch, head_dim_qk)), ready(merge)
