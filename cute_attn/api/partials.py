"""Device memory for the partial results of split tiles, and the counters of their pieces.

A balanced plan has few pieces, whatever the lengths: the memory is known before any plan, and one
workspace may serve many objects that run on one stream. Plans of fixed pieces have as many as their
keys make: memory that belongs to one launch, and grows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from cute_attn.api import checks
from cute_attn.scheduler import ARRIVALS_BYTES, WorkspaceSize


class PartialsAt(NamedTuple):
    """Addresses of (slots, tile_q, head_dim_vo) and (slots, tile_q) float32 and (slots) int32."""

    out: int
    lse: int
    arrivals: int


class Workspace:
    """Memory for balanced plans.

    Args:
        device: a CUDA device.
        given: (bytes,) uint8 of the caller, or None: allocated.
        launch: 1 for the launch that runs beside another one.
    """

    def __init__(self, device: torch.device, given: torch.Tensor | None, launch: int) -> None:
        self._device = device
        self._given = given
        self._launch = launch
        self._memory: torch.Tensor | None = None
        self._reserved: tuple[WorkspaceSize, int, PartialsAt] | None = None  # by size and begin
        self.before = 0
        """Bytes of the first launch in a workspace of the caller, where this is the second."""

    def check(self, size: WorkspaceSize, schedule: str) -> None:
        """Raises ValueError if the caller's workspace is too small."""
        if self._given is None:
            return
        needed = size.total + self.before
        if self._given.numel() < needed:
            raise ValueError(
                f"workspace has {self._given.numel()} bytes; {schedule} needs {needed}"
                " (ask workspace_size() before planning)"
            )

    def reserve(self, size: WorkspaceSize) -> PartialsAt:
        """Memory of the size, the same as before if that is large enough."""
        # Partial results of another launch in the same workspace.
        at = 0 if self._given is None else self.before
        last = self._reserved
        if last is not None and last[0] is size and last[1] == at:
            return last[2]
        before = self._memory
        if self._given is not None:
            self._memory = self._given
        elif before is None or before.numel() < size.total:
            self._memory = torch.empty(size.total, dtype=torch.uint8, device=self._device)
        assert self._memory is not None
        if self._memory is not before:
            self._memory[:ARRIVALS_BYTES].zero_()  # from now on the kernels keep them at zero
        base = self._memory.data_ptr()
        arrivals, out, lse = (base + offset for offset in size.offsets_of(self._launch, at))
        reserved = PartialsAt(out, lse, arrivals)
        self._reserved = size, at, reserved
        return reserved


class PieceMemory:
    """Memory for plans of fixed pieces; grows."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._out = torch.empty(0, dtype=torch.float32, device=device)
        self._lse = torch.empty(0, dtype=torch.float32, device=device)
        self._arrivals = torch.empty(0, dtype=torch.int32, device=device)

    def reserve(self, slots: int, tile_q: int, head_dim_vo: int) -> PartialsAt:
        """Memory for so many partial results, the same as before if that is large enough.

        Args:
            slots: of the plan, at least one.
            tile_q, head_dim_vo: of the kernel.
        """
        rows = slots * tile_q
        if self._lse.numel() < rows or self._arrivals.numel() < slots:
            self._out = torch.empty(rows * head_dim_vo, dtype=torch.float32, device=self._device)
            self._lse = torch.empty(rows, dtype=torch.float32, device=self._device)
            # The kernels leave zeros behind.
            self._arrivals = torch.zeros(slots, dtype=torch.int32, device=self._device)
        return PartialsAt(self._out.data_ptr(), self._lse.data_ptr(), self._arrivals.data_ptr())


def check_workspace(workspace: Any, device: torch.device) -> None:
    """Raises unless it is (bytes,) uint8 on the device, at a multiple of 128 bytes."""
    checks.tensor("workspace", workspace, dims=(("bytes", None),), dtype=torch.uint8, device=device)
    checks.contiguous("workspace", workspace)
    if workspace.data_ptr() % 128:
        raise ValueError(
            f"workspace starts at {workspace.data_ptr():#x}; it takes an address that is a multiple"
            " of 128"
        )
